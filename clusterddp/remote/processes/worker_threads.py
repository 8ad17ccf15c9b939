"""What the threads of a worker do, as /proc shows them: how each waits, and how often it has begun to wait.

A thread that reads from a peer and is woken has got something. One that sleeps is woken by its timer. A library's
threads, and those of the server for traces, say nothing about the script, and are left out.
"""

import os
from typing import Dict, List, NamedTuple, Tuple

from ..shared.collectives.trace_records import LOCK, READ, SLEEP, ThreadWait
from ..system import procfs
from ..system.small_files import sorted_names, text_of

MAX_THREADS = 1024  # of a worker that are looked at
MAX_SENT = 8
ALL_SIGNALS = (1 << 31) - 1 & ~(1 << 8 | 1 << 18)  # as the server's threads block them: SIGKILL and SIGSTOP cannot be
POLLERS = ("pt_", "gloo_", "NCCL", "cuda")  # how the names of libraries' threads begin
LONG_WAIT = 30000  # milliseconds: a wait for data with such a limit does not end by its timer between two looks
TIMED_CALLS = {"7": 3, "232": 4, "281": 4}  # on x86-64, poll and epoll_wait: where the limit stands in ``syscall``
# How the names begin of the kernel's functions in which a thread waits.
_LOCKS = ("futex",)
_SLEEPS = ("hrtimer_nanosleep", "do_nanosleep")
_READS = (
    "unix_stream_", "wait_woken", "sk_wait_data", "sk_stream_wait", "tcp_recvmsg", "sock_alloc_send", "__skb_wait",
    "pipe_", "anon_pipe_",
)  # fmt: skip
_POLLS = ("poll_schedule_timeout", "ep_poll", "do_epoll_wait")


class ThreadTimes(NamedTuple):
    """The threads of one worker."""

    waits: Tuple[ThreadWait, ...]  # of the script's threads, the main thread's first
    idle_ms: int  # CPU time that the server for traces and the libraries' pollers have used
    server: Tuple[str, ...]  # the numbers of the threads of the server for traces, in the order they were made


def look_at_threads(pid: int) -> ThreadTimes:
    """What the threads of a process do now."""
    waits: List[ThreadWait] = []
    server: List[str] = []
    idle_ms = 0
    for name in sorted(sorted_names("/proc/%d/task" % pid), key=lambda name: (name != str(pid), name))[:MAX_THREADS]:
        folder = "/proc/%d/task/%s" % (pid, name)
        status = procfs.status(folder)
        if name != str(pid) and (_is_the_servers(status) or status.get("Name", "").startswith(POLLERS)):
            idle_ms += cpu_ms(folder)
            server += [name] * _is_the_servers(status)
            continue
        how = _how(folder, status)
        if how and (how != LOCK or name == str(pid)):
            waits.append(ThreadWait(int(name), how, _number(status.get("voluntary_ctxt_switches", ""))))
    waits.sort(key=lambda wait: (wait.thread != pid, wait.how != READ))
    return ThreadTimes(tuple(waits[:MAX_SENT]), idle_ms, tuple(sorted(server, key=int)))


def cpu_ms(folder: str, *, children: bool = False) -> int:
    """The CPU time of the process or thread with this folder in /proc so far, in milliseconds; 0 if it has ended.

    ``children``: with that of its children that have ended.
    """
    try:
        times = procfs.stat_fields(folder)[11 : 15 if children else 13]
        return sum(map(int, times)) * 1000 // os.sysconf("SC_CLK_TCK")
    except ValueError:
        return 0


def core_wait_ms(pid: int) -> int:
    """How long the main thread of a process has been ready to run without a core to run on; 0 if that is not known.

    Where very many processes want the cores, a worker that computes gets little CPU time, but much of this.
    """
    fields = text_of("/proc/%d/schedstat" % pid).split()
    return _number(fields[1]) // 1_000_000 if len(fields) > 1 else 0


def _is_the_servers(status: Dict[str, str]) -> bool:
    """Whether a thread is one of the server for traces, which the hook made without signals."""
    return _number(status.get("SigBlk", ""), 16) & ALL_SIGNALS == ALL_SIGNALS


def _how(folder: str, status: Dict[str, str]) -> str:
    """How a thread waits; empty if it does not, or that is not known."""
    if status.get("State", "").startswith("D"):
        return READ  # from a disk or a file server
    where = text_of(folder + "/wchan")
    if where.startswith(_POLLS):
        return READ if _waits_long(folder) else ""
    return READ if where.startswith(_READS) else SLEEP if where.startswith(_SLEEPS) else LOCK * where.startswith(_LOCKS)


def _waits_long(folder: str) -> bool:
    """Whether a thread waits for data without a limit, or a long one; no where the kernel does not show it."""
    call = text_of(folder + "/syscall").split()
    place = TIMED_CALLS.get(call[0]) if call and os.uname().machine == "x86_64" else None
    limit = _number(call[place], 16) & 0xFFFFFFFF if place and len(call) > place else 0
    return limit >= LONG_WAIT  # without a limit it is -1


def _number(text: str, base: int = 10) -> int:
    try:
        return int(text, base)
    except ValueError:
        return 0
