"""The workers' Python stacks: parse what the hosts send, and group workers with equal stacks. Pure."""

import re
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from ..schema.fields import Fields
from ..schema.record import MAX_LENGTH, read_records, to_fields
from ..verdict.node_end import ranges
from ..wire.frames import parse_json
from .process_records import StackReport

_THREAD_LINE = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)[^(]*\(most recent call first\):$")
_FRAME_LINE = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_INSTALLED_FILE = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3[\d.]*/|^<")
_STATE_WORDS = {
    "R": "running",
    "S": "sleeping",
    "D": "in uninterruptible sleep",
    "T": "stopped",
    "t": "being traced",
    "Z": "ended",
}


class StackFrame(NamedTuple):
    """One call: file, line (0 if unknown), function."""

    file: str
    line: int
    function: str

    @property
    def installed(self) -> bool:
        """Whether the call is in the standard library or an installed package, rather than in the user's code."""
        return bool(_INSTALLED_FILE.search(self.file))

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line} in {self.function}"


class WorkerStack(NamedTuple):
    """One worker's stack: frames of its main thread, outermost first, and of other threads; or ``why`` it has none."""

    rank: int
    host: str
    local_rank: int
    pid: int
    state: str  # the kernel's state letter
    wchan: str  # the kernel function that it sleeps in; empty or 0 if none
    source: str  # the tool that read the stack: ``py-spy`` or ``faulthandler``
    why: str
    frames: Tuple[StackFrame, ...]
    threads: Tuple[Tuple[StackFrame, ...], ...]
    holds_gil: bool = False  # one of its threads held Python's lock, as far as the tool says

    @property
    def place(self) -> str:
        """The innermost frame of the user's own code, or the worker's kernel state."""
        if not self.frames:
            kernel = f" in {self.wchan}" if self.wchan.strip("0") else ""
            return f"{self.why or 'no Python frame'}; {_STATE_WORDS.get(self.state, self.state or 'gone')}{kernel}"
        user_frames = [frame for frame in self.frames if not frame.installed]
        return str((user_frames or self.frames)[-1])

    def to_json(self) -> Dict[str, Any]:
        """Return one object of the status's ``stacks``."""
        return {**to_fields(self), "place": self.place}


class StackGroup(NamedTuple):
    """Workers with equal stacks."""

    workers: Tuple[WorkerStack, ...]

    def __str__(self) -> str:
        ranks = ranges([worker.rank for worker in self.workers])
        first = self.workers[0]
        if len(self.workers) == 1:
            return f"rank {ranks} ({first.host}:{first.local_rank}): {first.place}"
        return f"ranks {ranks}: {first.place}"


def parse_stacks(host: str, workers: Any) -> List[WorkerStack]:
    """Decode a host's answer to the operation ``stacks``; raises DamagedError."""
    return [_build_stack(host, report) for report in read_records(StackReport, workers, "workers")]


def _build_stack(host: str, report: StackReport) -> WorkerStack:
    """Parse one worker's stack by the tool that read it; without frames if no tool could."""
    parse = {"py-spy": _parse_py_spy, "faulthandler": _parse_faulthandler}.get(report.source)
    threads = parse(report.text) if parse else []
    *others, main = threads or [()]
    return WorkerStack(
        rank=report.rank,
        host=host,
        local_rank=report.local_rank,
        pid=report.pid,
        state=report.state,
        wchan=report.wchan,
        source=report.source,
        why=report.why,
        frames=main,
        threads=tuple(others),
        holds_gil=report.source == "py-spy" and _owns_gil(report.text),
    )


def _parse_faulthandler(text: str) -> List[Tuple[StackFrame, ...]]:
    """Parse every thread's frames, the main thread's last, as faulthandler prints them."""
    threads: Dict[str, List[StackFrame]] = {}
    frames: List[StackFrame] = []
    for line in text.splitlines():
        thread, frame = _THREAD_LINE.match(line), _FRAME_LINE.match(line)
        if thread:
            if thread[1] in threads:  # a second dump, requested by someone else
                break
            frames = threads.setdefault(thread[1], [])
        elif frame:
            number = int(frame[2]) if frame[2].isdigit() else 0
            frames.append(StackFrame(file=frame[1], line=number, function=frame[3]))
    return [tuple(reversed(frames)) for frames in threads.values()]


def _parse_py_spy(text: str) -> List[Tuple[StackFrame, ...]]:
    """Parse every thread's frames, the main thread's last, from py-spy's JSON."""
    threads = _read_py_spy(text)
    threads.sort(key=lambda thread: thread.anything("os_thread_id") == thread.anything("pid"))  # equal: the main thread
    return [tuple(reversed(thread.each("frames", _parse_py_spy_frame))) for thread in threads]


def _read_py_spy(text: str) -> List[Fields]:
    """Read the threads of py-spy's JSON; none if it was cut off, or is no JSON."""
    try:
        data = parse_json(text.encode(errors="replace"))
    except ValueError:
        return []
    return list(Fields({"py-spy": data}, most=MAX_LENGTH).each("py-spy", lambda thread: thread))


def _owns_gil(text: str) -> bool:
    return any(thread.anything("owns_gil") is True for thread in _read_py_spy(text))


def _parse_py_spy_frame(frame: Fields) -> StackFrame:
    return StackFrame(file=frame.text("filename"), line=frame.integer("line"), function=frame.text("name"))


def group_stacks(stacks: Sequence[WorkerStack]) -> List[StackGroup]:
    """Group workers with equal stacks, the largest group first."""
    by_stack: Dict[Any, List[WorkerStack]] = {}
    for stack in sorted(stacks, key=lambda stack: stack.rank):
        by_stack.setdefault(stack.frames or (stack.host, stack.place), []).append(stack)
    groups = [StackGroup(workers=tuple(workers)) for workers in by_stack.values()]
    return sorted(groups, key=lambda group: (-len(group.workers), group.workers[0].rank))
