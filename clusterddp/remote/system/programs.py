"""Find programs on PATH. ``shutil.which`` does it too, but importing ``shutil`` takes as long as starting Python."""

import os
from typing import Mapping, Optional


def find_program(name: str, environment: Mapping[str, str]) -> Optional[str]:
    """Search the folders of PATH for an executable file; return its path, or None."""
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None
