"""Settings of the calling process: parent-death signal, child subreaper, no core dump, OOM score.

Each is best effort, and returns whether it worked: a host without ctypes still runs workers.
"""

import errno
import sys
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
MCL_CURRENT = 1


def libc() -> Any:
    """The C library, whose calls set ``ctypes.get_errno()``; raises OSError where Python cannot call it."""
    try:
        import ctypes  # minimal distribution pythons ship without it

        return ctypes.CDLL(None, use_errno=True)
    except ImportError:
        raise OSError(errno.EOPNOTSUPP, "no ctypes") from None


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = libc()
        import ctypes

        zero = ctypes.c_ulong(0)
        return bool(library.prctl(option, ctypes.c_ulong(value), zero, zero, zero) == 0)
    except (OSError, AttributeError):
        return False


def set_pdeathsig(sig: int) -> bool:
    """Have the kernel send ``sig`` to this process when its parent thread dies (0: no signal); whether that worked.

    The caller compares ``os.getppid()`` afterwards: a parent that died before the call is not noticed here.
    """
    return _prctl(PR_SET_PDEATHSIG, sig)


def set_subreaper() -> bool:
    """Make this process the parent of every orphan among its descendants; whether that worked."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1)


def lock_memory() -> bool:
    """Lock this process's present memory, so that no stalled disk delays it; whether the limit allows it."""
    try:
        return bool(libc().mlockall(MCL_CURRENT) == 0)
    except (OSError, AttributeError):
        return False


def forbid_core_dump() -> bool:
    """Prevent core files of this process, even through a piped ``core_pattern``; whether that worked."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass  # the next line alone suffices on Linux
    return _prctl(PR_SET_DUMPABLE, 0)


def set_oom_score_adj(score: int) -> bool:
    """Raise this process's ``oom_score_adj`` (-1000 to 1000), so that the kernel kills it earlier when memory runs out.

    Returns whether the process now has at least that score; a higher one is left as it is.
    """
    path = "/proc/self/oom_score_adj"
    try:
        with open(path) as file:
            if int(file.read()) >= score:
                return True
        with open(path, "w") as file:
            file.write(str(score))
    except (OSError, ValueError):
        return False
    return True
