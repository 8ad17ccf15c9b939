"""Folders that are the user's alone."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, all 0700: ``Path.mkdir`` leaves the latter to the umask.

    Raises:
        OSError: one can't be made.
    """
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def user_cache() -> Path:
    """Our folder in this user's cache: ``$XDG_CACHE_HOME/clusterddp``, else ``~/.cache/clusterddp``.

    Raises:
        OSError: this user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")  # noqa: PTH111, PTH117 - Path's raises
    if not os.path.isabs(base):  # noqa: PTH117
        raise FileNotFoundError(errno.ENOENT, "this user has no home folder", base)
    return Path(base) / "clusterddp"


@contextlib.contextmanager
def opened_private(folder: Path) -> Iterator[int]:
    """The descriptor of a folder in which only this user can write, judged by what was opened.

    Raises:
        OSError: it is not there, or another user may write in it.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _refuse_others(os.fstat(handle), folder)
        yield handle
    finally:
        os.close(handle)


def read_private(folder: int, name: str) -> bytes:
    """The bytes of a file, in a folder of ``opened_private``, which only this user can have written.

    Raises:
        OSError: it is not there, is a link or no file, or another user may have written it.
    """
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(handle, "rb") as file:
        info = os.fstat(handle)
        _refuse_others(info, Path(name))
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "is no file", name)
        return file.read()


def _refuse_others(info: os.stat_result, path: Path) -> None:
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "can be written by another user", str(path))
