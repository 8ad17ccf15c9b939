"""Free what an ended node's folder needs no more: space reserved for a full disk, the start-up hook, sockets."""

import os

from ..system.disk_space import free_preallocated
from ..system.small_files import sorted_names

SOCKETS = ("traces", "debug")  # folders of the workers' sockets


def free_unneeded(folder: str) -> None:
    """Free what only the node's own processes needed; call it when none is left. What cannot be freed stays.

    The code stays: it is one more name of a file that the host keeps once (system/descriptors.py).
    """
    logs = os.path.join(folder, "logs")
    written = [os.path.join(logs, name) for name in sorted_names(logs) if name.endswith(".err")]
    for path in (os.path.join(folder, "events.jsonl"), *written):
        free_preallocated(path)
    hook = os.path.join(folder, "hook")
    for emptied in (os.path.join(hook, "__pycache__"), hook, *(os.path.join(folder, name) for name in SOCKETS)):
        _remove(emptied)


def _remove(folder: str) -> None:
    """Remove a folder and its files."""
    try:
        for name in sorted_names(folder) if not os.path.islink(folder) else ():
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:  # the disk is read-only, or another process does so too, or there is none
        pass
