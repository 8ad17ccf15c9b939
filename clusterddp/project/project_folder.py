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
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FOLDER = ".clusterddp"
MAX_BYTES = 1 << 30  # default limit of a file that is read
_SUFFIX = ".tmp"  # of unfinished files


class UnwritableError(UsageError):
    """A project's folder cannot be written."""


def real_folder(folder: Path, *names: str) -> Path:
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


def read(path: Path, limit: int = MAX_BYTES, *, follow_link: bool = False) -> bytes:
    """Return a file's content; raises OSError if it is missing, a link, no regular file, or over ``limit`` bytes."""
    handle = os.open(path, os.O_RDONLY | (0 if follow_link else os.O_NOFOLLOW) | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode) or info.st_size > limit:
            raise OSError(0, "no file, or too large", str(path))
        return file.read(limit)


def write(folder: Path, name: str, data: bytes) -> Path:
    """Write a file in ``.clusterddp/`` or a folder of it, 0600 and atomically; return its path."""
    with raise_unwritable(folder):
        target = make_folder(folder) / name
        for parent in reversed(Path(name).parents):
            real_folder(folder, *parent.parts).mkdir(mode=0o700, exist_ok=True)
        with unfinished_file(folder, [data]) as new:
            new.replace(target)
    return target


def write_folder(folder: Path, name: str, files: Mapping[str, bytes]) -> Path:
    """Write a folder in ``.clusterddp/`` in place of the earlier one; return the path of the last of its files.

    The earlier one stays until all files are written.
    """
    with raise_unwritable(folder):
        target = real_folder(make_folder(folder), name)
        unfinished = Path(tempfile.mkdtemp(dir=folder, suffix=_SUFFIX))
        try:
            for file, data in files.items():
                write(folder, f"{unfinished.name}/new/{file}", data)
            with contextlib.suppress(FileNotFoundError):
                target.rename(unfinished / "earlier")
            (unfinished / "new").rename(target)
        finally:
            shutil.rmtree(unfinished)
    return target / list(files)[-1]


def append(folder: Path, name: str, line: bytes) -> None:
    """Append a line to a file in ``.clusterddp/``; raises UsageError if it cannot be written, or is a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with raise_unwritable(folder):
        handle = os.open(make_folder(folder) / name, flags, 0o600)
        try:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.EINVAL, f"{name} is no file")
            # A disk that was full may have cut the line before short.
            is_cut = info.st_size > 0 and os.pread(handle, 1, info.st_size - 1) != b"\n"
            whole = b"\n" * is_cut + line + b"\n"
            if os.write(handle, whole) < len(whole):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(handle)


def create(folder: Path, name: str, data: bytes) -> None:
    """Write a file in ``.clusterddp/`` atomically, unless there is one: of two at once the first one's stays."""
    with (
        raise_unwritable(folder),
        unfinished_file(make_folder(folder), [data]) as new,
        contextlib.suppress(FileExistsError),
    ):
        os.link(new, folder / name)


def make_folder(folder: Path) -> Path:
    """Make ``.clusterddp/`` and its .gitignore unless they exist; return it."""
    real_folder(folder).mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        handle = os.open(folder / ".gitignore", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, b"*\n")
        finally:
            os.close(handle)
    return folder


@contextlib.contextmanager
def unfinished_file(folder: Path, pieces: Iterable[bytes], *, durable: bool = True) -> Iterator[Path]:
    """Yield a new 0600 file in ``.clusterddp/`` with these bytes, for the caller to rename; else it is removed.

    It is locked meanwhile: one without a lock was left by a command that was killed, and ``clear_unfinished`` of the
    next command removes it. ``durable``: its bytes are on disk before it is yielded.
    """
    handle, path = _create_locked(folder)
    try:
        with os.fdopen(handle, "wb") as out:
            out.writelines(pieces)
            out.flush()
            if durable:
                os.fsync(handle)
            yield path
    finally:
        path.unlink(missing_ok=True)


def _create_locked(folder: Path) -> tuple[int, Path]:
    """Return a new file's descriptor, which holds a shared lock, and its path."""
    while True:
        handle, name = tempfile.mkstemp(dir=folder, suffix=_SUFFIX)
        with contextlib.suppress(OSError):  # a file system without locks: then nothing there is cleared either
            fcntl.flock(handle, fcntl.LOCK_SH)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # another command took it for abandoned and removed it before it was locked


def clear_unfinished(folder: Path) -> None:
    """Remove unfinished files in ``.clusterddp/`` of commands that were killed; files in use stay."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # it does not exist, or is a link
        return
    try:
        for name in os.listdir(descriptor):  # noqa: PTH208 - a descriptor
            if name.endswith(_SUFFIX):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(descriptor, name)
    finally:
        os.close(descriptor)


def _remove_if_abandoned(descriptor: int, name: str) -> None:
    """Remove a file of ours in an open folder unless a process has it locked; raises OSError otherwise."""
    handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
    try:
        info = os.fstat(handle)
        if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid():
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=descriptor)
    finally:
        os.close(handle)


@contextlib.contextmanager
def raise_unwritable(folder: Path) -> Iterator[None]:
    """Raise UnwritableError, with a remedy, for an OSError in the block."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        remedy = "make room there" if full else "make the folder writable"
        raise UnwritableError(f"{folder}: cannot be written ({error.strerror})", remedy=remedy) from error
