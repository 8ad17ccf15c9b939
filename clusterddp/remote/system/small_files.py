"""Small files of the kernel's and of settings, and folders, which may be missing or refuse to be read."""

import os
from typing import List


def text_of(path: str, most: int = -1) -> str:
    """A file's text, at most so many characters; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(most)
    except OSError:  # an entry in /sys that is not in use cannot even be read
        return ""


def sorted_names(folder: str) -> List[str]:
    """The names in a folder, sorted; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:  # it is not there, or is a zip file in a search path
        return []
