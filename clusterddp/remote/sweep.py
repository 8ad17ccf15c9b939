"""Which processes on this host belong to one node of one run, and how they are ended.

A process is ours if it descends from the supervisor, carries the run's and the host's marker in its
environment, or holds a log file of the spool open for writing. Never by name. Another node's or run's is never
touched, nor anything of another user.
"""

import os
import signal
import time
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Set

from . import proc


class Process(NamedTuple):
    """A process by pid and start time, so that a reused pid is another one."""

    pid: int
    ticks: int
    command: str


def parents() -> Dict[int, int]:
    """Pid → parent's pid, of every process that can be seen."""
    table = {}
    for pid in _pids():
        fields = _stat(pid)
        if fields:
            table[pid] = int(fields[1])
    return table


def descendants(root: int) -> Set[int]:
    """All processes below ``root``, itself not included."""
    children: Dict[int, List[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: Set[int] = set()
    todo = [root]
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


def find(run: str, host: str, spool: str, supervisor: Optional[int]) -> List[Process]:
    """Every process of this node of this run but the supervisor itself and the caller's own."""
    mine = descendants(supervisor) if supervisor else set()
    markers = {b"CLUSTERDDP_RUN_ID=" + run.encode(), b"CLUSTERDDP_HOST=" + host.encode()}
    skip = {supervisor, os.getpid(), os.getppid()}
    found = []
    for pid in _pids():
        if pid not in skip and (pid in mine or _marked(pid, markers) or _writes_under(pid, spool + "/logs")):
            process = describe(pid)
            if process:
                found.append(process)
    return found


def describe(pid: int) -> Optional[Process]:
    """The process, or None if it is gone or a zombie (which holds nothing)."""
    fields = _stat(pid)
    if not fields or fields[0] == "Z":
        return None
    return Process(pid, proc.start_ticks(pid) or 0, _command(pid))


def end(look: Callable[[], List[Process]], grace: float, patience: float = 5.0) -> List[Process]:
    """SIGTERM all that ``look`` finds, SIGKILL what is left after ``grace`` s; returns the survivors.

    Looks again until nothing is found: a process may fork while it is being ended. ``patience``: seconds to
    wait for a killed process (uninterruptible sleep) before it counts as a survivor.
    """
    deadline = time.monotonic() + grace
    termed: Set[int] = set()
    while True:
        left = look()
        now = time.monotonic()
        if not left or now > deadline + patience:
            return left
        for process in left:
            if now >= deadline:
                send(process, signal.SIGKILL)
            elif process.pid not in termed:
                termed.add(process.pid)
                send(process, signal.SIGTERM)
        time.sleep(0.02)


def send(process: Process, number: int) -> None:
    """Signal the process if it still is the same one."""
    if proc.start_ticks(process.pid) == process.ticks:
        try:
            os.kill(process.pid, number)
        except (ProcessLookupError, PermissionError):  # gone meanwhile, or not ours to end: it stays found
            pass


def kill_group(group: int) -> None:
    """SIGKILL what is left of a process group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # nothing is left
        pass


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _stat(pid: int) -> List[str]:
    """The fields after the command's name: state, parent, …; empty if the process is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            return stream.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as stream:
            return stream.read(400).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _marked(pid: int, markers: Set[bytes]) -> bool:
    try:
        with open("/proc/%d/environ" % pid, "rb") as stream:
            return markers <= set(stream.read().split(b"\0"))
    except OSError:  # gone, or another user's
        return False


def _writes_under(pid: int, folder: str) -> bool:
    """Whether the process holds a file below ``folder`` open for writing; readers are no part of a run."""
    base = "/proc/%d/fd" % pid
    try:
        names = os.listdir(base)
    except OSError:
        return False
    for name in names:
        try:
            if not os.readlink(base + "/" + name).startswith(folder + "/"):
                continue
            if os.lstat(base + "/" + name).st_mode & 0o200:  # the link's mode tells how it was opened
                return True
        except OSError:
            continue
    return False
