"""stacks: where every live worker of a node is now: its Python stacks, or what the kernel says of it.

py-spy reads them from outside, where the host has it. Else the hook's faulthandler appends them to a file of the
spool, on a signal: it answers also while C code holds the interpreter, and the worker goes on. A worker that answers
neither is told of by its kernel state. Not here: reading the texts, and which ranks are at the same place
(processes/stacks.py of the operator's side).
"""

import json
import os
import shutil
import subprocess
import time
from typing import Any, Dict, List, Optional

from ..helper.request import Request
from ..spool.layout import Spool
from ..system import procfs

PATIENCE = 3.0  # seconds for a worker's first word, and for py-spy
QUIET = 0.2  # seconds without more after which a dump is whole
LONGEST = 64 * 1024  # bytes of one worker's stacks
KEPT = 1 << 20  # bytes of earlier dumps that are kept in a file


class Worker:
    """A live worker, and what was found out about it."""

    def __init__(self, spool: Spool, event: Dict[str, Any]) -> None:
        self.pid = int(event["pid"])
        self.found = {name: event[name] for name in ("rank", "local_rank", "start", "pid")}
        self.found.update(state=state(self.pid), wchan=_word("/proc/%d/wchan" % self.pid), source="", text="", why="")
        self.path = spool.path("stacks", "%d.%d" % (event["start"], event["local_rank"]))
        self.begin = self.size = 0
        self.changed = 0.0

    def take(self, source: str, text: str) -> None:
        """Note the stacks."""
        self.found.update(source=source, text=text)

    def give_up(self, why: str) -> None:
        """Note why there are none."""
        self.found["why"] = why


def stacks(request: Request) -> List[Dict[str, Any]]:
    """The live workers of ``spool``: ``{rank, local_rank, start, pid, state, wchan, source, text, why}`` each.

    ``source`` is ``py-spy`` (``text`` is its JSON) or ``faulthandler`` (as it prints), or empty: then ``why`` says why.
    """
    spool = Spool(request.args["spool"])
    workers = [Worker(spool, event) for event in live(spool.events())]
    spy = py_spy(str(spool.plan().get("python") or ""))
    stopped = [worker for worker in workers if worker.found["state"] == "T"]  # that is the news, not where it stands
    others = [worker for worker in workers if worker not in stopped]
    left = ask_py_spy(spy, others) if spy else others
    ask_faulthandler(left + stopped)
    return [worker.found for worker in workers]


def live(events: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The starts of workers that have not ended."""
    ended = {event["pid"] for event in events if event["event"] == "worker_exited"}
    return [event for event in events if event["event"] == "worker_started" and event["pid"] not in ended]


def py_spy(python: str) -> Optional[str]:
    """The program: beside the training interpreter, else on PATH."""
    beside = os.path.join(os.path.dirname(python), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def ask_py_spy(program: str, workers: List[Worker]) -> List[Worker]:
    """Look from outside without stopping anybody; returns the workers for which it did not work."""
    asked = []
    for worker in workers:
        argv = [program, "dump", "--nonblocking", "--json", "--pid", str(worker.pid)]
        try:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError:  # not a program for this machine
            return workers
        asked.append((worker, child))
    deadline = time.monotonic() + PATIENCE
    left = []
    for worker, child in asked:
        try:
            out, _ = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            out, _ = child.communicate()
        if child.returncode == 0 and _is_json(out):
            worker.take("py-spy", out.decode(errors="replace"))
        else:
            left.append(worker)
    return left


def _is_json(text: bytes) -> bool:
    try:
        return len(text) <= LONGEST and bool(json.loads(text))
    except ValueError:
        return False


def ask_faulthandler(workers: List[Worker]) -> None:
    """Have each worker append its stacks to its file, and read what came."""
    asked = [worker for worker in workers if _signalled(worker)]
    deadline = time.monotonic() + PATIENCE
    while asked and time.monotonic() < deadline:
        time.sleep(0.02)
        asked = [worker for worker in asked if not _whole(worker)]
    for worker in asked:
        if not worker.found["source"] and not _read(worker):
            worker.found.update(state=state(worker.pid), wchan=_word("/proc/%d/wchan" % worker.pid))
            worker.give_up("it does not answer")


def _signalled(worker: Worker) -> bool:
    """Send the signal where it does no harm: only to who catches it and has the file of this very spool open."""
    if worker.found["state"] in ("", "Z"):
        worker.give_up("it has just ended")
    elif not procfs.catches(worker.pid, procfs.STACK_SIGNAL) or not _has_open(worker.pid, worker.path):
        worker.give_up("it runs no Python of ours, or has not begun")
    elif worker.found["state"] == "T":
        worker.give_up("it is stopped (SIGSTOP)")
    elif _pending(worker.pid, procfs.STACK_SIGNAL):
        worker.give_up("it has not answered an earlier question")
    else:
        worker.begin = worker.size = _begin(worker.path)
        try:
            os.kill(worker.pid, procfs.STACK_SIGNAL)
        except OSError:
            worker.give_up("it has just ended")
            return False
        return True
    return False


def _begin(path: str) -> int:
    """Where the next dump will begin; what was dumped long before is dropped."""
    size = os.stat(path).st_size
    if size > KEPT:
        os.truncate(path, 0)
        return 0
    return size


def _whole(worker: Worker) -> bool:
    """Whether the dump has come and no more comes; then it is taken."""
    size, now = os.stat(worker.path).st_size, time.monotonic()
    if size != worker.size:
        worker.size, worker.changed = size, now
        return False
    return size > worker.begin and now - worker.changed > QUIET and _read(worker)


def _read(worker: Worker) -> bool:
    with open(worker.path, "rb") as stream:
        stream.seek(worker.begin)
        text = stream.read(LONGEST)
    worker.take("faulthandler" if text else "", text.decode(errors="replace"))
    return bool(text)


def _has_open(pid: int, path: str) -> bool:
    folder = "/proc/%d/fd" % pid
    try:
        own = os.stat(path)
        return any(_same(os.path.join(folder, name), own) for name in os.listdir(folder))
    except OSError:
        return False


def _same(path: str, other: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), other)
    except OSError:  # closed meanwhile
        return False


def _pending(pid: int, number: int) -> bool:
    return any(
        line.startswith(("SigPnd:", "ShdPnd:")) and int(line.split()[1], 16) >> (number - 1) & 1
        for line in _word("/proc/%d/status" % pid).splitlines()
    )


def state(pid: int) -> str:
    """The kernel's letter: R running, S sleeping, D uninterruptible, T stopped, Z ended; empty when it is gone."""
    fields = procfs.stat("/proc/%d" % pid)
    return fields[0] if fields else ""


def _word(path: str) -> str:
    try:
        with open(path) as stream:
            return stream.read()
    except OSError:
        return ""
