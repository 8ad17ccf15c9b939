"""Read small files of the kernel or of settings, folders, and locks, that may be missing or unreadable."""

import errno
import fcntl
import os
import stat
from typing import AnyStr, List, Union


def text_of(path: str, max_chars: int = -1) -> str:
    """A file's text, at most ``max_chars`` characters of it; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(max_chars)
    except OSError:  # it is missing, or an entry in /sys that is not in use
        return ""


def sorted_names(folder: str) -> List[str]:
    """The names in a folder, sorted; empty where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:  # it is not there, or is a zip file in a search path
        return []


def names_in(folder: AnyStr) -> List[AnyStr]:
    """The names in a folder; empty where there is none. Raises OSError if it cannot be read."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def nearest_folder(path: AnyStr) -> AnyStr:
    """The folder itself, or its nearest parent that exists."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def open_regular_in(path: str, flags: int) -> int:
    """Open, as an ``opener``, a file as ``open_regular`` does, in a folder that is no link either; raises OSError."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return open_regular("/proc/self/fd/%d/%s" % (folder, os.path.basename(path)), flags)
    finally:
        os.close(folder)


def open_regular(path: Union[str, bytes], flags: int) -> int:
    """Open, as an ``opener``, a file that others may have put there: follow no link, and do not block on a pipe.

    Raises OSError if it is not a regular file.
    """
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is no file", path)
    return handle


def is_locked(path: str) -> bool:
    """Whether any process, here or on a host that shares the folder, holds the file's lock; False without a file.

    Raises OSError if it is a link.
    """
    try:
        # Another user's program may have named the folder (processes/orphans.py): no pipe blocks, no link leads on.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except BlockingIOError:  # this is the NFS server; it asks the client that has opened the file (a delegation)
        return True
    try:
        return not try_lock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def try_lock(handle: int, kind: int) -> bool:
    """Lock an open file (``fcntl.LOCK_SH`` or ``LOCK_EX``) unless another process's lock rules that out; never wait.

    Raises OSError on a file system without locks.
    """
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
