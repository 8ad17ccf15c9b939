"""This process's open files, among them the zipapp from which our modules are imported (system/indexed_code.py)."""

import os
import sys
from typing import Container, Optional

from .bootstrap import write_private


def close_all_but(kept: Container[int], *, code: bool = False) -> None:
    """Close every descriptor that is not in ``kept``: a forked process has all that its parent had open.

    With ``code`` our own zipapp is closed too, and none of our modules can be imported any more.
    """
    own = None if code else code_handle()
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept and int(name) != own:
            try:
                os.close(int(name))
            except OSError:  # the listing's own handle is closed already
                pass


def code_handle() -> Optional[int]:
    """The descriptor of the zipapp that a helper runs from; None where Python was started with the zipapp's path."""
    found: Optional[int] = getattr(globals().get("__loader__"), "handle", None)
    return found


class OpenedCode:
    """A context with the descriptor of the zipapp that this process runs from.

    A class, because every connection imports this module, and importing ``contextlib`` takes longer than the rest of
    it.
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
    """The bytes of the zipapp that this process runs from."""
    with OpenedCode() as handle:
        return read_whole(handle)


def read_whole(handle: int) -> bytes:
    """The whole content of an open file."""
    return os.pread(handle, os.fstat(handle).st_size, 0)


def link_or_copy(handle: int, path: str) -> None:
    """Hard-link an open file to ``path``, or copy it where a hard link is not possible.

    A link takes no space, and the file lasts as long as it has any name. The open file is kept, whatever lies at its
    former path by now. A file that others could have read or written is copied instead.
    """
    info = os.fstat(handle)
    if info.st_uid == os.getuid() and not info.st_mode & 0o077:
        try:
            _hard_link(handle, path)
        except OSError:  # another file system, one without hard links, too many links, or the file was removed
            pass
        else:
            return
    write_private(path, read_whole(handle), durable=False)


def _hard_link(handle: int, path: str) -> None:
    """Hard-link an open file to ``path``; raises OSError where that is not possible."""
    folder = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # with a folder Python calls linkat, which follows the kernel's link to what is open
        os.link(str(handle), path, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
