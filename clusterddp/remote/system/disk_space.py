"""Room on a disk: kept for what must be written when the disk is full, and given back from the head of a file.

Not here: whose room, and when (logs/limit.py, spool/layout.py).
"""

import errno
import os

FULL = (errno.ENOSPC, errno.EDQUOT)
KEEP_SIZE, PUNCH_HOLE = 1, 2  # of fallocate(2)
SUFFIX = ".room"


def keep(path: str, size: int) -> None:
    """Lay ``size`` bytes aside for a record to be written at ``path`` later; without room for them nothing is kept."""
    try:
        handle = os.open(path + SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        os.write(handle, b" " * size)  # written, not only allocated: not every file system has fallocate
    except OSError:
        pass  # what is there is kept
    finally:
        os.close(handle)


def use(path: str, data: bytes) -> None:
    """Write the whole of ``path`` into the room kept for it: no new block is needed.

    Raises:
        OSError: nothing was kept, or too little.
    """
    handle = os.open(path + SUFFIX, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if os.pwrite(handle, data, 0) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        os.ftruncate(handle, len(data))
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(path + SUFFIX, path)


def drop(path: str) -> None:
    """Keep no room any more."""
    try:
        os.unlink(path + SUFFIX)
    except FileNotFoundError:
        pass  # it was used


def reserve(path: str, size: int) -> bool:
    """Give a file that is appended to room for ``size`` bytes, its length unchanged; False where that cannot be."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _fallocate(handle, KEEP_SIZE, 0, size)
        finally:
            os.close(handle)
    except OSError:
        return False
    return True


def punch(path: str, start: int, end: int) -> None:
    """Give back the bytes from ``start`` to ``end``; the file's length and all other offsets stay.

    Raises:
        OSError: the file system cannot, or the file is gone.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        _fallocate(handle, PUNCH_HOLE | KEEP_SIZE, start, end - start)
    finally:
        os.close(handle)


def _fallocate(handle: int, mode: int, offset: int, size: int) -> None:
    try:
        import ctypes  # minimal distribution pythons ship without it

        libc = ctypes.CDLL(None, use_errno=True)
        call = getattr(libc, "fallocate64", None) or libc.fallocate
    except (ImportError, OSError, AttributeError):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP)) from None
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(handle, mode, offset, size):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
