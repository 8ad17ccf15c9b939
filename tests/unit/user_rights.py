"""The rights of a user who is not root."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes the rights of another user")


@contextlib.contextmanager
def another_user(folder: Path) -> Iterator[None]:
    """Take the rights of another user, who may search a folder of root's and those above it."""
    for above in (folder, *folder.parents):
        if not above.stat().st_mode & 0o001:
            above.chmod(0o755)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
