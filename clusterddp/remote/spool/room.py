"""Free what an ended node's folder needs no more: space reserved for a full disk, and the start-up hook."""

import os

from ..system.disk_space import free_preallocated
from ..system.small_files import sorted_names


def free_unneeded(folder: str) -> None:
    """Free what only the node's own processes needed; call it when none is left. What cannot be freed stays.

    The code stays: it is one more name of a file that the host keeps once (system/descriptors.py).
    """
    logs = os.path.join(folder, "logs")
    written = [os.path.join(logs, name) for name in sorted_names(logs) if name.endswith(".err")]
    for path in (os.path.join(folder, "events.jsonl"), *written):
        free_preallocated(path)
    hook = os.path.join(folder, "hook")
    compiled = os.path.join(hook, "__pycache__")
    try:
        for name in sorted_names(compiled):
            os.unlink(os.path.join(compiled, name))
        os.unlink(os.path.join(hook, "sitecustomize.py"))
        for emptied in (compiled, hook):
            os.rmdir(emptied)
    except OSError:  # the disk is read-only, or another process does so too
        pass
