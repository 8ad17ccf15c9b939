"""The operation ``stacks``: the Python stacks of a node's live workers, or a worker's kernel state if it has none.

py-spy reads them from outside, where the host has it. Otherwise the hook's faulthandler, on a signal, appends them to a
file of the spool: it works while C code holds the interpreter, and the worker goes on. Of a worker that answers
neither, only the kernel state is reported.
"""

import os
import signal
import subprocess
import time
from typing import Any, Dict, List, Optional, Sequence

from ..helper.request import Request
from ..shared.processes.process_records import StackReport, StacksRequest
from ..shared.run.event_schema import WORKER_EXITED, WORKER_STARTED, NodeEvent, of_kind
from ..shared.schema.record import to_fields
from ..shared.wire.frames import parse_json
from ..spool.layout import Spool
from ..system import procfs
from ..system.programs import find_program
from ..system.small_files import text_of

STACK_SIGNAL = signal.SIGRTMIN + 7  # a worker's hook prints all stacks on it; sent only where it has a handler
ANSWER_TIMEOUT = 3.0  # seconds for a worker's first byte, and for py-spy
QUIET_TIME = 0.2  # seconds without growth after which a dump is complete
MAX_TEXT = 64 * 1024  # bytes of one worker's stacks
MAX_EARLIER = 1 << 20  # bytes of earlier dumps that are kept in a file


class LiveWorker:
    """A live worker, with its entry in the operation's answer."""

    def __init__(self, spool: Spool, event: NodeEvent) -> None:
        self.pid = event.pid or 0
        self.folder = "/proc/%d" % self.pid
        self.event = event
        self.read_kernel_state()
        self.source = self.text = self.why = ""
        self.path = spool.path("stacks", event.key)
        self.dump_start = self.size = 0
        self.changed = 0.0

    def read_kernel_state(self) -> None:
        """Read its state letter and the kernel function that it waits in."""
        self.state, self.wchan = kernel_state(self.pid), text_of(self.folder + "/wchan")

    def set_stacks(self, source: str, text: str) -> None:
        """Put the stacks into the entry; ``source``: which program printed them."""
        self.source, self.text = source, text

    def give_up(self, why: str) -> None:
        """Put into the entry why there are no stacks."""
        self.why = why

    def report(self) -> StackReport:
        """Its entry in the answer."""
        return StackReport(
            rank=self.event.rank,
            local_rank=self.event.local_rank,
            start=self.event.start,
            pid=self.pid,
            state=self.state,
            wchan=self.wchan,
            source=self.source,
            text=self.text,
            why=self.why,
        )


def stacks(request: Request) -> List[Dict[str, Any]]:
    """Operation: list the live workers of ``spool`` with their stacks.

    Each is ``{rank, local_rank, start, pid, state, wchan, source, text, why}``. ``source`` is ``py-spy`` (``text`` is
    its JSON), ``faulthandler`` (as it prints), or empty: then ``why`` says why.
    """
    asked = request.read_args(StacksRequest)
    spool = Spool(asked.spool)
    live = live_workers(spool.events())
    wanted = [event for event in live if asked.ranks is None or event.rank in asked.ranks]
    return [to_fields(report) for report in stack_reports(spool, wanted)]


def stack_reports(spool: Spool, live: Sequence[NodeEvent]) -> List[StackReport]:
    """The stacks of these live workers of a node; ``live`` are the events of their starts."""
    workers = [LiveWorker(spool, event) for event in live]
    spy = find_py_spy(spool.plan().python)
    ask_faulthandler(ask_py_spy(spy, workers) if spy else workers)
    return [worker.report() for worker in workers]


def live_workers(events: Sequence[NodeEvent]) -> List[NodeEvent]:
    """The ``worker_started`` events of workers that have not ended."""
    ended = {(event.key, event.pid) for event in of_kind(events, WORKER_EXITED)}  # a pid alone may be another's later
    return [event for event in of_kind(events, WORKER_STARTED) if event.pid and (event.key, event.pid) not in ended]


def find_py_spy(python: str) -> Optional[str]:
    """The path of py-spy: in the training interpreter's folder, else on PATH."""
    path = os.path.join(os.path.dirname(python), "py-spy")
    return path if os.access(path, os.X_OK) else find_program("py-spy", os.environ)


def ask_py_spy(program: str, workers: List[LiveWorker]) -> List[LiveWorker]:
    """Run py-spy on each worker, without pausing it; returns the workers for which that did not work."""
    asked = []
    for worker in workers:
        argv = [program, "dump", "--nonblocking", "--json", "--pid", str(worker.pid)]
        try:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError:  # not a program for this machine
            return workers
        asked.append((worker, child))
    deadline = time.monotonic() + ANSWER_TIMEOUT
    left = []
    for worker, child in asked:
        try:
            out, _ = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            out, _ = child.communicate()
        if child.returncode == 0 and _is_json(out):
            worker.set_stacks("py-spy", out.decode(errors="replace"))
        else:
            left.append(worker)
    return left


def _is_json(text: bytes) -> bool:
    try:
        return len(text) <= MAX_TEXT and bool(parse_json(text))
    except ValueError:
        return False


def ask_faulthandler(workers: List[LiveWorker]) -> None:
    """Signal each worker to append its stacks to its file, and read them."""
    asked = [worker for worker in workers if send_stack_signal(worker)]
    deadline = time.monotonic() + ANSWER_TIMEOUT
    while asked and time.monotonic() < deadline:
        time.sleep(0.02)
        asked = [worker for worker in asked if not _is_complete(worker)]
    for worker in asked:
        if not worker.source and not _read(worker):
            worker.read_kernel_state()
            worker.give_up("it does not answer")


def send_stack_signal(worker: LiveWorker) -> bool:
    """Send the stack signal if the worker handles it and has this spool's file open; whether it was sent."""
    if worker.state in ("", "Z"):
        worker.give_up("it has just ended")
    elif not (procfs.has_handler(worker.pid, STACK_SIGNAL) and procfs.has_open(worker.folder, worker.path)):
        worker.give_up("it runs no Python of ours, or has not begun")
    elif worker.state == "T":
        worker.give_up("it is stopped (SIGSTOP)")
    elif _is_pending(worker.pid, STACK_SIGNAL):
        worker.give_up("it has not answered an earlier question")
    else:
        worker.dump_start = worker.size = _next_offset(worker.path)
        try:
            os.kill(worker.pid, STACK_SIGNAL)
        except OSError:
            worker.give_up("it has just ended")
            return False
        return True
    return False


def _next_offset(path: str) -> int:
    """The offset at which the next dump will begin; a file larger than ``MAX_EARLIER`` bytes is emptied first."""
    size = os.stat(path).st_size
    if size > MAX_EARLIER:
        os.truncate(path, 0)
        return 0
    return size


def _is_complete(worker: LiveWorker) -> bool:
    """Whether the worker's dump is complete; if so, it has been read."""
    size, now = os.stat(worker.path).st_size, time.monotonic()
    if size != worker.size:
        worker.size, worker.changed = size, now
        return False
    return size > worker.dump_start and now - worker.changed > QUIET_TIME and _read(worker)


def _read(worker: LiveWorker) -> bool:
    """Read the worker's dump, if there is one."""
    with open(worker.path, "rb") as stream:
        stream.seek(worker.dump_start)
        text = stream.read(MAX_TEXT)
    worker.set_stacks("faulthandler" if text else "", text.decode(errors="replace"))
    return bool(text)


def _is_pending(pid: int, number: int) -> bool:
    """Whether the process was sent a signal that it has not handled yet."""
    status = procfs.status("/proc/%d" % pid)
    return any(procfs.has_signal(status.get(mask, ""), number) for mask in ("SigPnd", "ShdPnd"))


def kernel_state(pid: int) -> str:
    """A process's state letter: R running, S sleeping, D uninterruptible, T stopped, Z ended; empty if it is dead."""
    fields = procfs.stat_fields("/proc/%d" % pid)
    return fields[0] if fields else ""
