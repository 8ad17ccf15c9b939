"""Disk space: reserve it for records that must be written on a full disk, punch holes in files, measure folders."""

import errno
import fcntl
import os
from typing import Dict, Tuple

from .prctl import libc

FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
# Errors that trying again in a moment does not change: read-only, full, removed, or another user's by now.
LASTING_ERRNOS = (*FULL_ERRNOS, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR)
KEEP_SIZE, PUNCH_HOLE = 1, 2  # of fallocate(2)
RESERVED_SUFFIX = ".room"


def reserve_record(path: str, size: int) -> None:
    """Reserve ``size`` bytes for a record to be written at ``path`` later; on a full disk as many as are free."""
    try:
        handle = os.open(path + RESERVED_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        os.write(handle, b" " * size)  # written, not only allocated: not every file system has fallocate
    except OSError:
        pass  # what is there is kept
    finally:
        os.close(handle)


def write_reserved(path: str, data: bytes) -> None:
    """Write ``path`` into the space reserved for it, without a new disk block; raises OSError."""
    handle = os.open(path + RESERVED_SUFFIX, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if os.pwrite(handle, data, 0) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        os.ftruncate(handle, len(data))
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(path + RESERVED_SUFFIX, path)


def free_reserved(path: str) -> None:
    """Free the space reserved for ``path``."""
    try:
        os.unlink(path + RESERVED_SUFFIX)
    except FileNotFoundError:
        pass  # it was used


def preallocate(path: str, size: int) -> bool:
    """Preallocate ``size`` bytes for a file that is appended to, its length unchanged; whether that worked."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _fallocate(handle, KEEP_SIZE, 0, size)
        finally:
            os.close(handle)
    except OSError:
        return False
    return True


def free_preallocated(path: str) -> None:
    """Free the blocks preallocated after a file's end, unless another process has it open.

    A write lease makes whoever opens it meanwhile wait, or else a line could be appended and then cut off.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        info = os.fstat(handle)
        if info.st_blocks * 512 < info.st_size + info.st_blksize:
            return
        import signal  # expensive, and most who import this module free nothing

        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)  # the signal that reports a waiting process: ignored
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        os.ftruncate(handle, os.fstat(handle).st_size)
    except OSError:  # somebody has it open, or the file system knows no leases
        pass
    finally:
        os.close(handle)  # and the lease ends


def punch_hole(path: str, start: int, end: int) -> None:
    """Free the blocks from ``start`` to ``end`` of a file; its length and all offsets stay.

    Raises OSError where the file system cannot, or the file is missing.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        _fallocate(handle, PUNCH_HOLE | KEEP_SIZE, start, end - start)
    finally:
        os.close(handle)


def _fallocate(handle: int, mode: int, offset: int, size: int) -> None:
    library = libc()
    call = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if call is None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    import ctypes

    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(handle, mode, offset, size):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def disk_usage(folder: str) -> int:
    """The bytes that removing a folder frees: holes take no space, and files with further names elsewhere free none."""
    total = 0
    names_found: Dict[Tuple[int, int], int] = {}  # (device, inode) → its names in the folder so far
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                info = os.lstat(os.path.join(base, name))
            except OSError:  # removed meanwhile
                continue
            key = info.st_dev, info.st_ino
            names_found[key] = names_found.get(key, 0) + 1 if info.st_nlink > 1 else 1
            if names_found[key] == info.st_nlink:
                total += info.st_blocks * 512
    return total
