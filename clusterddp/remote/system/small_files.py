"""Read small files of the kernel or of settings, and folders, that may be missing or unreadable."""

import os
from typing import List


def text_of(path: str, most: int = -1) -> str:
    """A file's text, at most ``most`` characters of it; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(most)
    except OSError:  # it is missing, or an entry in /sys that is not in use
        return ""


def sorted_names(folder: str) -> List[str]:
    """The names in a folder, sorted; empty where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:  # it is not there, or is a zip file in a search path
        return []
