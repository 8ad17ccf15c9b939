"""This process's open files, one of them the zipapp that it imports our modules from (system/indexed_code.py)."""

import os
import sys
from typing import Container, Optional

from .bootstrap import write_private


def close_all_but(kept: Container[int], *, code: bool = False) -> None:
    """Close every descriptor that is not ``kept``: a forked process holds all that its parent had open.

    With ``code`` our own code too: nothing of it can be imported any more.
    """
    own = None if code else code_handle()
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept and int(name) != own:
            try:
                os.close(int(name))
            except OSError:  # the listing's own handle is closed already
                pass


def code_handle() -> Optional[int]:
    """The zipapp that a helper runs from; None for a process that Python was started with it for."""
    found: Optional[int] = getattr(globals().get("__loader__"), "handle", None)
    return found


class OpenedCode:
    """The descriptor of the zipapp that this process runs from, while the context lasts.

    A class, because every connection imports this module, and ``contextlib`` takes longer than the rest of it.
    """

    def __enter__(self) -> int:
        handle = code_handle()
        self._own: Optional[int] = None
        if handle is None:
            # It was started by this path, in a folder of ours.
            self._own = handle = os.open(sys.argv[0], os.O_RDONLY | os.O_CLOEXEC)
        return handle

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            os.close(self._own)


def own_code() -> bytes:
    """The zipapp that this process runs from, by the descriptor that its modules come from."""
    with OpenedCode() as handle:
        return whole(handle)


def whole(handle: int) -> bytes:
    """The whole content of an open file."""
    return os.pread(handle, os.fstat(handle).st_size, 0)


def keep_file(handle: int, path: str) -> None:
    """Hard-link an open file to ``path``, or copy it where a hard link is not possible.

    A name takes no room, and the file lasts as long as it has any. What is kept is what is open, whatever lies at its
    path by now. Others may not have been able to read or write it, so one that is not ours alone is copied.
    """
    info = os.fstat(handle)
    if info.st_uid == os.getuid() and not info.st_mode & 0o077:
        try:
            _give_name(handle, path)
        except OSError:  # another file system, one without links, as many as it can have, removed meanwhile
            pass
        else:
            return
    write_private(path, whole(handle), durable=False)


def _give_name(handle: int, path: str) -> None:
    """Hard-link an open file to ``path``.

    Raises:
        OSError: it cannot have one.
    """
    folder = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # with a folder Python calls linkat, which follows the kernel's link to what is open
        os.link(str(handle), path, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
