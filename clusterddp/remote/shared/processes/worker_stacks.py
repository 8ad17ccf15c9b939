"""The workers' Python stacks: parse what the hosts send, and group workers with equal stacks. Pure."""

import re
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from ..schema.fields import DamagedError, Fields
from ..schema.record import MAX_LENGTH, field, many, read_records, record, to_fields
from ..text.shortening import cut_in_the_middle
from ..verdict.node_end import ranges
from ..wire.frames import parse_json
from .process_records import StackReport

_THREAD_LINE = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+).{0,200} \(most recent call first\):$")
_FRAME_LINE = re.compile(r'^  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)$')
_INSTALLED_FILE = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python3[\d.]*/|/hook/(rank_debugger|sitecustomize)\.py$|^<"
)
_DEBUGGER = "/hook/rank_debugger.py"  # a worker's own, at a breakpoint
MAX_SHOWN = 3000  # characters of the calls of a stack that travels between hosts
MAX_TEXT = 200  # characters of a file's or a function's name there
STOPPED = "T"  # the kernel's state of a process that SIGSTOP has stopped
_STATE_WORDS = {
    "R": "running",
    "S": "sleeping",
    "D": "in uninterruptible sleep",
    STOPPED: "stopped",
    "t": "being traced",
    "Z": "ended",
}


@record
class StackFrame(NamedTuple):
    """One call: file, line (0 if unknown), function."""

    file: str = field(Fields.text)
    line: int = field(Fields.integer)
    function: str = field(Fields.text)

    @property
    def installed(self) -> bool:
        """Whether the call is in the standard library or an installed package, rather than in the user's code."""
        return bool(_INSTALLED_FILE.search(self.file))

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line} in {self.function}"


def _threads(fields: Fields, name: str) -> Tuple[Tuple[StackFrame, ...], ...]:
    return tuple(many(StackFrame)(Fields({name: frames}, fields.prefix), name) for frames in fields.array(name))


@record
class WorkerStack(NamedTuple):
    """One worker's stack: frames of its main thread, outermost first, and of other threads; or ``why`` it has none."""

    rank: int = field(Fields.number)
    host: str = field(Fields.text)
    local_rank: int = field(Fields.number)
    pid: int = field(Fields.number)
    state: str = field(Fields.text)  # the kernel's state letter
    wchan: str = field(Fields.text)  # the kernel function that it sleeps in; empty or 0 if none
    source: str = field(Fields.text)  # the tool that read the stack: ``py-spy`` or ``faulthandler``
    why: str = field(Fields.text)
    frames: Tuple[StackFrame, ...] = field(many(StackFrame))
    threads: Tuple[Tuple[StackFrame, ...], ...] = field(_threads)
    # one of its threads held Python's lock, as far as the tool says
    holds_gil: bool = field(Fields.flag, default=False)

    @property
    def at_breakpoint(self) -> bool:
        """Whether the worker waits at ``breakpoint()`` or an uncaught exception, or is at pdb's prompt there."""
        return any(frame.file.endswith(_DEBUGGER) for frame in self.frames)

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
        state = "; stopped (SIGSTOP)" if first.frames and first.state == STOPPED else ""
        if len(self.workers) == 1:
            return f"rank {ranks} ({first.host}:{first.local_rank}): {first.place}{state}"
        return f"ranks {ranks}: {first.place}{state}"


def parse_stacks(host: str, workers: Any) -> List[WorkerStack]:
    """Decode a host's answer to the operation ``stacks``; raises DamagedError."""
    return [build_stack(host, report) for report in read_records(StackReport, workers, "workers")]


def cut_stack(stack: WorkerStack) -> WorkerStack:
    """What a sentence needs of a stack: the main thread's innermost calls, and the innermost of the user's own."""
    frames = [frame._replace(file=_cut(frame.file), function=_cut(frame.function)) for frame in stack.frames]
    own = [frame for frame in frames if not frame.installed][-1:]
    inner: List[StackFrame] = []
    room = MAX_SHOWN
    for frame in reversed(frames):
        room -= len(frame.file) + len(frame.function)
        if room < 0:
            break
        inner.insert(0, frame)
    shown = inner if not own or own[0] in inner else [*own, *inner]
    return stack._replace(wchan=_cut(stack.wchan), why=_cut(stack.why), frames=tuple(shown), threads=())


def _cut(text: str) -> str:
    """A worker's text without what a terminal would obey, and short."""
    return cut_in_the_middle("".join(letter if letter.isprintable() else "?" for letter in text), MAX_TEXT)


def build_stack(host: str, report: StackReport) -> WorkerStack:
    """Parse one worker's stack by the tool that read it; without frames if no tool could."""
    parse = {"py-spy": _parse_py_spy, "faulthandler": _parse_faulthandler}.get(report.source)
    why = report.why
    try:
        threads, holds_gil = parse(report.text) if parse else ([], False)
    except DamagedError as error:  # it takes nothing from the other workers
        threads, holds_gil, why = [], False, "what %s printed is damaged: %s" % (report.source, error)
    *others, main = threads or [()]
    return WorkerStack(
        rank=report.rank,
        host=host,
        local_rank=report.local_rank,
        pid=report.pid,
        state=report.state,
        wchan=report.wchan,
        source=report.source,
        why=why,
        frames=main,
        threads=tuple(others),
        holds_gil=holds_gil,
    )


def _parse_faulthandler(text: str) -> Tuple[List[Tuple[StackFrame, ...]], bool]:
    """Parse every thread's frames, the main thread's last, as faulthandler prints them; it knows no lock's holder."""
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
    return [tuple(reversed(frames)) for frames in threads.values()], False


def _parse_py_spy(text: str) -> Tuple[List[Tuple[StackFrame, ...]], bool]:
    """Parse every thread's frames, the main thread's last, from py-spy's JSON, and whether one holds Python's lock."""
    threads = _read_py_spy(text)
    threads.sort(key=lambda thread: thread.anything("os_thread_id") == thread.anything("pid"))  # equal: the main thread
    holds_gil = any(thread.anything("owns_gil") is True for thread in threads)
    return [tuple(reversed(thread.each("frames", _parse_py_spy_frame))) for thread in threads], holds_gil


def _read_py_spy(text: str) -> List[Fields]:
    """Read the threads of py-spy's JSON; none if it was cut off, or is no JSON."""
    try:
        data = parse_json(text.encode(errors="replace"))
    except ValueError:
        return []
    return list(Fields({"py-spy": data}, most=MAX_LENGTH).each("py-spy", lambda thread: thread))


def _parse_py_spy_frame(frame: Fields) -> StackFrame:
    return StackFrame(file=frame.text("filename"), line=frame.integer("line"), function=frame.text("name"))


def group_stacks(stacks: Sequence[WorkerStack]) -> List[StackGroup]:
    """Group workers with equal stacks, the largest group first."""
    by_stack: Dict[Any, List[WorkerStack]] = {}
    for stack in sorted(stacks, key=lambda stack: stack.rank):
        same = (stack.state == STOPPED, stack.frames) if stack.frames else (stack.host, stack.place)
        by_stack.setdefault(same, []).append(stack)
    groups = [StackGroup(workers=tuple(workers)) for workers in by_stack.values()]
    return sorted(groups, key=lambda group: (-len(group.workers), group.workers[0].rank))
