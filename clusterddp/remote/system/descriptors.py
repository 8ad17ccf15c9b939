"""This process's open files, one of them the zipapp that it imports our modules from (system/indexed_code.py)."""

import os
import sys
from typing import Container, Optional


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


def own_code() -> bytes:
    """The zipapp that this process runs from, by the descriptor that its modules come from."""
    handle = code_handle()
    if handle is not None:
        return os.pread(handle, os.fstat(handle).st_size, 0)
    with open(sys.argv[0], "rb") as stream:  # it was started by this path, in a folder of ours
        return stream.read()
