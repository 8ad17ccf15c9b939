"""For how long a run has been hung by the judge, from complete looks at all its workers. Pure.

A run is stalled when each pair of successive looks, over the whole limit, has the same finding. A look at which some
worker could not be asked does not count; one at which something moves, any rank is at work, or somebody debugs a worker
starts the clock anew. Output plays no part.
"""

from typing import NamedTuple, Optional, Sequence, Tuple

from .hang_judge import HUNG, Finding, judge
from .trace_records import READ, ThreadWait, WorkerTrace
from .two_looks import compare

MAX_INTERVAL = 60.0  # seconds between two looks: a rank at work in one of these intervals is no stall
LOOKS = 4  # in the time of the limit
MISSED = 2.5  # intervals after which a look is too old to be compared
IO_SECONDS = 60.0  # in which a worker that reads or writes BUSY_BYTES (two_looks.py) is at work
TIMER_SECONDS = 30.0  # after which a wait for data may end without any, at the earliest
TRACED = "t"  # the kernel's state of a process that a debugger holds


class Look(NamedTuple):
    """All workers of a run at one moment, as far as they were asked within seconds."""

    at: float  # seconds, by a clock that never goes back
    world_size: int  # 0: the hosts do not agree on it
    traces: Tuple[WorkerTrace, ...]
    debugged: bool = False  # a worker is at a breakpoint, or somebody debugs it


class StallClock:
    """Takes one look after the other; ``limit`` is in seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.interval = min(MAX_INTERVAL, limit / LOOKS)
        self.reset()

    def reset(self) -> None:
        """Begin anew, as if there had been no look."""
        self._last: Optional[Look] = None
        self._finding: Optional[Finding] = None
        self._since = 0.0  # when the look was taken with which the finding began

    @property
    def started(self) -> bool:
        """Whether there was a look."""
        return self._last is not None

    def see(self, look: Look) -> Optional[Finding]:
        """Take a look; return why the run hangs if it has hung for the limit, else None."""
        last, self._last = self._last, look
        if last is None or not look.world_size or look.at - last.at > MISSED * self.interval:
            self._finding = None
            return None
        finding = self._judge(last, look)
        if finding is None:
            self._finding = None
            return None
        if self._finding is None or _essence(finding) != _essence(self._finding):
            self._since = last.at
        self._finding = finding
        return finding if look.at - self._since >= self.limit else None

    def _judge(self, last: Look, look: Look) -> Optional[Finding]:
        """What two looks show, if that is a hang and nobody debugs a worker."""
        if last.world_size != look.world_size or any(map(_is_debugged, (last, look))):
            return None
        before = per_second(last.traces, look.traces, look.at - last.at)
        world = range(look.world_size)
        finding = judge(world, before, look.traces)
        if finding.state != HUNG:
            return None
        looks = compare(world, before, look.traces)
        # Who is to blame may itself wait for a rank at work, by means that no trace has: the store, a receive, a file.
        # And of a rank at work a thread may wait at the store all the time.
        busy = looks.active(looks.world - looks.blocked)
        return None if busy else finding


def per_second(before: Sequence[WorkerTrace], after: Sequence[WorkerTrace], seconds: float) -> Sequence[WorkerTrace]:
    """The first of two looks as if it had been taken a second before the other, with what a worker used on average.

    The judge's thresholds are made for a second. What wakes up once in a while, as a thread that logs, is no work.
    """
    now = {(trace.rank, trace.start, trace.pid): trace for trace in after}
    return [_in_a_second(trace, now.get((trace.rank, trace.start, trace.pid), trace), seconds) for trace in before]


def _in_a_second(before: WorkerTrace, after: WorkerTrace, seconds: float) -> WorkerTrace:
    cpu_ms = (after.cpu_ms - before.cpu_ms) / max(1.0, seconds)
    io_bytes = (after.io_bytes - before.io_bytes) / max(1.0, seconds / IO_SECONDS)
    switches = {(wait.thread, wait.how): wait.switches for wait in after.threads}
    threads = tuple(_woken_in_a_second(wait, switches.get((wait.thread, wait.how)), seconds) for wait in before.threads)
    return before._replace(cpu_ms=after.cpu_ms - int(cpu_ms), io_bytes=after.io_bytes - int(io_bytes), threads=threads)


def _woken_in_a_second(wait: ThreadWait, later: Optional[int], seconds: float) -> ThreadWait:
    """A thread that waits; ``later``: how often it had begun to wait at the second look."""
    if later is None:
        return wait
    woken = later - wait.switches
    if wait.how == READ:  # the first data tells that it is at work; a wait for them may end by a timer
        return wait._replace(switches=later - max(0, woken - int(seconds / TIMER_SECONDS)))
    return wait._replace(switches=later - int(woken / max(1.0, seconds)))


def _is_debugged(look: Look) -> bool:
    return look.debugged or any(trace.state == TRACED for trace in look.traces)


def _essence(finding: Finding) -> Tuple[object, ...]:
    """What stays the same for as long as nothing moves."""
    return finding.kind, finding.ranks, finding.waiting, finding.group, finding.sequence
