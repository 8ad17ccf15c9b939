"""Settings of the calling process: parent-death signal, child subreaper, no core dump, OOM score.

Best effort, and the result says so: a host without ctypes still runs workers.
"""

import sys
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
MCL_CURRENT = 1


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes  # minimal distribution pythons ship without it

        libc: Any = ctypes.CDLL(None, use_errno=True)
        zero = ctypes.c_ulong(0)
        return bool(libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def set_pdeathsig(sig: int) -> bool:
    """Have the kernel send ``sig`` to this process when its parent thread dies; 0 takes it back.

    The caller compares ``os.getppid()`` afterwards: a parent that died before the call is not noticed here.

    Returns:
        Whether the kernel took it.
    """
    return _prctl(PR_SET_PDEATHSIG, sig)


def set_subreaper() -> bool:
    """Make this process the parent of every orphan among its descendants; whether the kernel took it."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1)


def lock_memory() -> bool:
    """Keep in memory what this process has there, so that no stalled disk holds it up; whether the limit allows it."""
    try:
        import ctypes

        libc: Any = ctypes.CDLL(None, use_errno=True)
        return bool(libc.mlockall(MCL_CURRENT) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def forbid_core_dump() -> bool:
    """Leave no core file of this process, not even through a piped ``core_pattern``."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass  # the next line alone suffices on Linux
    return _prctl(PR_SET_DUMPABLE, 0)


def set_oom_score_adj(score: int, pid: int = 0) -> bool:
    """Raise a process's ``oom_score_adj``, so that the kernel kills it earlier when memory runs out.

    Args:
        score: -1000 to 1000; a value at or below the present one changes nothing.
        pid: Another process; 0 is this one.

    Returns:
        Whether the process now has at least that score.
    """
    path = "/proc/%s/oom_score_adj" % (pid or "self")
    try:
        with open(path) as file:
            if int(file.read()) >= score:
                return True
        with open(path, "w") as file:
            file.write(str(score))
    except (OSError, ValueError):
        return False
    return True
