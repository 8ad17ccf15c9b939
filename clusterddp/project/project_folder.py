"""The files of a project's ``.clusterddp/``, written privately and atomically, and never through a link.

An archive can bring such a folder along, with links in it to the user's own files. So every folder in it must be a real
one, and files are opened without following links.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FOLDER = ".clusterddp"
MOST_BYTES = 1 << 30  # of a file that is read
_SUFFIX = ".tmp"  # of files that are not finished


class UnwritableError(UsageError):
    """A project's folder cannot be written."""


def own(folder: Path, *names: str) -> Path:
    """Return ``.clusterddp/`` or a folder in it, after checking that no link leads there; it may not exist."""
    path = folder
    for name in ("", *names):
        path = path / name
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISDIR(mode):
            what = "a link" if stat.S_ISLNK(mode) else "no folder"
            raise UsageError(f"{path}: is {what}; clusterddp makes a folder there", remedy="remove it, or move it away")
        if mode & stat.S_IWOTH:
            raise UsageError(
                f"{path}: can be written by everyone",
                remedy=f"`chmod go-w {shlex.quote(str(path))}`, if what is in it is yours",
            )
    return path


def read(path: Path, most: int = MOST_BYTES, *, link: bool = False) -> bytes:
    """Read a file of ours; raises OSError if there is none; or it is a link, not a file, or larger than ``most``."""
    handle = os.open(path, os.O_RDONLY | (0 if link else os.O_NOFOLLOW) | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode) or info.st_size > most:
            raise OSError(0, "no file, or too large", str(path))
        return file.read(most)


def write(folder: Path, name: str, data: bytes) -> Path:
    """Write a file in ``.clusterddp/`` or a folder of it, 0600 and atomically; return its path."""
    with writing(folder):
        target = made(folder) / name
        own(folder, *Path(name).parts[:-1])
        target.parent.mkdir(mode=0o700, exist_ok=True)
        with unfinished(folder, [data]) as new:
            new.replace(target)
    return target


def append(folder: Path, name: str, data: bytes) -> None:
    """Append to a file in ``.clusterddp/``; raises UsageError if it cannot be written, or is a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with writing(folder):
        handle = os.open(made(folder) / name, flags, 0o600)
        try:
            os.write(handle, data)
        finally:
            os.close(handle)


def create(folder: Path, name: str, data: bytes) -> None:
    """Write a file in ``.clusterddp/`` atomically, unless there is one: of two at once the first one's stays."""
    with writing(folder), unfinished(made(folder), [data]) as new, contextlib.suppress(FileExistsError):
        os.link(new, folder / name)


def made(folder: Path) -> Path:
    """Make ``.clusterddp/`` itself, which git ignores; return it."""
    own(folder).mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        handle = os.open(folder / ".gitignore", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, b"*\n")
        finally:
            os.close(handle)
    return folder


@contextlib.contextmanager
def unfinished(folder: Path, pieces: Iterable[bytes], *, durable: bool = True) -> Iterator[Path]:
    """Yield a new 0600 file in ``.clusterddp/`` with these bytes, for the caller to rename; else it is removed.

    It is locked while somebody works on it: the file of a command that was killed is not, and is removed by the next
    command (``clear_unfinished``).

    ``durable``: its bytes are on disk before it is yielded.
    """
    handle, path = _new(folder)
    try:
        with os.fdopen(handle, "wb") as out:
            out.writelines(pieces)
            out.flush()
            if durable:
                os.fsync(handle)
            yield path
    finally:
        path.unlink(missing_ok=True)


def _new(folder: Path) -> tuple[int, Path]:
    """Return a new file's descriptor, which has its lock, and its path."""
    while True:
        handle, name = tempfile.mkstemp(dir=folder, suffix=_SUFFIX)
        with contextlib.suppress(OSError):  # a file system without locks: then nothing there is cleared either
            fcntl.flock(handle, fcntl.LOCK_SH)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # another command removed it as left behind, before it was locked


def clear_unfinished(folder: Path) -> None:
    """Remove unfinished files in ``.clusterddp/`` of commands that were killed; files in use stay."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # there is none, or it is a link
        return
    try:
        for name in os.listdir(descriptor):  # noqa: PTH208 - a descriptor
            if name.endswith(_SUFFIX):
                with contextlib.suppress(OSError):
                    _remove_if_left(descriptor, name)
    finally:
        os.close(descriptor)


def _remove_if_left(descriptor: int, name: str) -> None:
    """Remove a file of ours in an open folder; raises OSError if it is not a file, or somebody works on it."""
    handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
    try:
        info = os.fstat(handle)
        if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid():
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=descriptor)
    finally:
        os.close(handle)


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn errors of the operating system in the block into errors about the project's folder."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        remedy = "make room there" if full else "make the folder writable"
        raise UnwritableError(f"{folder}: cannot be written ({error.strerror})", remedy=remedy) from error
