"""Folders that are the user's alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, all 0700: ``Path.mkdir`` leaves the latter to the umask.

    Raises:
        OSError: one can't be made.
    """
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
