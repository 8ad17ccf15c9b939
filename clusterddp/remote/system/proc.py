"""Small facts about processes and small calls to the kernel, for whatever runs on a host.

Everything here is best effort and says so by its result: a host without /proc or ctypes still runs workers.
Not here: deciding which processes are ours (stop), waiting for them (shim, supervisor).
"""

import os
import signal
import sys
from typing import Any, Iterable, List, Optional

# A worker's hook prints all stacks on it; send it only where catches() says so. The operator's machine may have no
# real-time signals and imports this all the same.
STACK_SIGNAL = getattr(signal, "SIGRTMIN", 34) + 7

ESTABLISHED, LISTENING = "01", "0A"  # in /proc/net/tcp

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36


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


def forbid_core_dump() -> bool:
    """Leave no core file of this process, not even through a piped ``core_pattern``."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass  # the next line alone suffices on Linux
    return _prctl(PR_SET_DUMPABLE, 0)


def set_oom_score_adj(score: int, pid: int = 0) -> bool:
    """Raise the kernel's wish to choose this process first when memory runs out.

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


def start_ticks(pid: int) -> Optional[int]:
    """When a process started, in clock ticks since boot; None when it is gone or hidden.

    With the pid it names one process for ever: a reused pid has other ticks.
    """
    fields = stat("/proc/%d" % pid)
    return int(fields[19]) if len(fields) > 19 else None


def stat(place: str) -> List[str]:
    """What the kernel tells of a process or thread after its name: state, parent, …; empty when it is gone."""
    try:
        with open(place + "/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()  # the name may hold anything
    except OSError:
        return []


def ports(state: str, tables: Iterable[str] = ("/proc/net/tcp", "/proc/net/tcp6")) -> List[int]:
    """This host's ports of all TCP sockets in a state (``LISTENING``, ``ESTABLISHED``), one for each socket."""
    found: List[int] = []
    for table in tables:
        try:
            with open(table, encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
        except OSError:  # no IPv6 on this host
            continue
        found += [int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == state]
    return found


def boot_identity() -> str:
    """A string that changes when the host, or the container this process is in, was started anew."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = "unknown"
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return "%s:%d:%d" % (boot, namespace, start_ticks(1) or 0)


def catches(pid: int, sig: int) -> bool:
    """Whether a process has a handler of its own for ``sig``: only then is it safe to send."""
    try:
        with open("/proc/%d/status" % pid) as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (sig - 1) & 1)
    except (OSError, ValueError, IndexError):
        pass  # gone or hidden: nothing to send to
    return False
