"""How a node's part in an attempt ended, in one small record: what the verdict over all nodes is made from. Pure.

    end = end_of(part)             # from its exit record and evidence
    small = fit(end)               # at most MAX_BYTES, as it travels and is kept

Times are by the operator's clock (ns).
"""

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from ..run.event_schema import STOPPING, WORKER_EXITED, NodeEvent, last_start
from ..run.run_state import ENDED_STATES, RunState
from ..run.spool_records import ExitRecord
from ..schema.fields import DamagedError, Fields
from ..schema.json_text import to_json
from ..schema.record import by_key, field, many, one_of, read_record, record, to_fields
from ..text.shortening import cut_in_the_middle
from .failures import (
    FAIL_FAST_REASON,
    MAX_TEXT,
    WORKER_FAILED,
    Evidence,
    FailedWorker,
    agent_output,
    clean,
    last_error_line,
    shortened,
    worker_failures,
)

MAX_BYTES = 2048  # bytes of an end that travels between hosts
MAX_FAILURES = 16  # of a node's workers that are told one by one
CONSEQUENTIAL_REASONS = (
    FAIL_FAST_REASON,
)  # reasons to stop a node that are no cause: what failed first is looked for elsewhere
_TEXT_LENGTHS = (1000, 300, 100, 30)  # characters that are tried for the texts, until all fits


@record
class Finished(NamedTuple):
    """A worker of the last start that ended with exit code 0, and not because it was told to end."""

    rank: int = field(Fields.number)
    local_rank: int = field(Fields.number)
    time_ns: int = field(Fields.integer)


@record
class NodeEnd(NamedTuple):
    """A node's end. ``state``: one of ENDED_STATES."""

    host: str = field(Fields.text)
    attempt: int = field(Fields.number)
    state: str = field(one_of(*ENDED_STATES))
    member: int = field(Fields.number, default=0)
    reason: str = field(Fields.text, default="")
    ours: bool = field(Fields.flag, default=False)  # a stop that nobody ordered
    agent_exit: Optional[int] = field(Fields.maybe_number, default=None)  # torchrun's exit code; None: it did not run
    rebooted: bool = field(Fields.flag, default=False)  # why it is lost
    ended: Optional[int] = field(Fields.maybe_integer, default=None)
    # when it was told to end, unless because another failed
    stopping: Optional[int] = field(Fields.maybe_integer, default=None)
    error_ns: int = field(Fields.number, default=0)  # of its clock
    start: int = field(Fields.number, default=0)  # of its workers, the last one
    agent: str = field(Fields.text, default="")  # the line of the agent's output that says what went wrong
    blames_worker: bool = field(Fields.flag, default=True)  # the agent says that a worker failed, or nothing
    output: str = field(Fields.text, default="")  # the end of the agent's output, where a known message may stand
    workdir: str = field(Fields.text, default="")
    exits: Mapping[str, str] = field(by_key(Fields.text), default={})  # exit code → ranks of the last start, as "0-3,7"
    finished: Tuple[Finished, ...] = field(many(Finished), default=())
    # the first of them, by class, then by time
    failures: Tuple[FailedWorker, ...] = field(many(FailedWorker), default=())
    failed: int = field(Fields.number, default=0)  # how many there were

    @property
    def lost_another(self) -> bool:
        """Whether it stopped because it had lost another node (supervisor/stop_conditions.py).

        Which host was lost and why is decided by the evidence.
        """
        return self.reason.endswith((" was lost", " were lost")) or " lost contact with " in self.reason


class EndedPart(NamedTuple):
    """What a node's end is made from."""

    host: str
    attempt: int
    ended: Optional[ExitRecord]  # None: its supervisor ended without a record
    evidence: Evidence
    clock_offset_ns: int = 0
    clock_error_ns: int = 0
    rebooted: bool = False


def end_of(part: EndedPart, *, member: int = 0, workdir: str = "") -> NodeEnd:
    """A node's end; ``member``: its member index; ``workdir``: where its workers worked."""
    offset, ended = part.clock_offset_ns, part.ended
    events = part.evidence.events
    stops = [e.time for e in events if e.kind == STOPPING and e.reason not in CONSEQUENTIAL_REASONS]
    last = last_start(events)
    exits = [event for event in events if event.kind == WORKER_EXITED and event.start == last]
    failures = [one.by_operator(offset) for one in worker_failures(part.evidence)]
    output = agent_output(part.evidence)
    well = [
        event for event in exits if not event.exit_code and not event.signals_received
    ]  # not because it was told to
    done = [Finished(event.rank, event.local_rank, event.time - offset) for event in well]
    return NodeEnd(
        host=part.host,
        member=member,
        attempt=part.attempt,
        state=ended.state if ended else RunState.LOST,
        reason=ended.reason if ended else "",
        ours=bool(ended and ended.ours),
        agent_exit=ended.agent_exit if ended else None,
        rebooted=part.rebooted,
        ended=ended.ended_unstepped - offset if ended else None,
        stopping=min(stops) - offset if stops else None,
        error_ns=part.clock_error_ns,
        start=last,
        agent=_agent_line(part.evidence, output),
        blames_worker=not output or WORKER_FAILED in output,
        output=output if ended and ended.state == RunState.FAILED else "",
        workdir=workdir,
        exits=_ranks_by_code(exits),
        finished=tuple(done),
        failures=tuple(failures),
        failed=len(failures),
    )


def _agent_line(evidence: Evidence, output: str) -> str:
    """The line of the agent's output that says what went wrong, or of a worker's whose failure is not on record."""
    of_agent = last_error_line(output)
    if WORKER_FAILED not in output or worker_failures(evidence):
        return of_agent
    lines = [last_error_line(clean(text)) for key, text in evidence.stderr.items() if key != "agent"]
    return max(filter(None, lines), key=lambda line: "Error" in line, default=of_agent)


def fit(end: NodeEnd, most: int = MAX_BYTES) -> NodeEnd:
    """Cut an end's texts and lists until its JSON has at most ``most`` bytes."""
    for number in (MAX_FAILURES, 8, 4, 1):
        for length in _TEXT_LENGTHS:
            small = _cut(end, number, length)
            if _fits(small, most):
                return small
    # Ranks in thousands of pieces, a path of thousands of characters, a time that a script's library made up.
    small = _cut(end, 1, 30)._replace(exits={}, workdir="", failures=())
    return small if _fits(small, most) else NodeEnd(end.host[:255], end.attempt, end.state, end.member)


def _cut(end: NodeEnd, number: int, length: int) -> NodeEnd:
    """Cut texts to ``length`` and lists to ``number``; the first failure keeps most, as the others follow from it."""
    longest = MAX_TEXT if number > 1 else min(MAX_TEXT, length)
    failures = [
        one._replace(
            text=shortened(one.text, min(length, 100) if position else longest, one.location),
            location=cut_in_the_middle(one.location, longest),
            output="" if position else one.output[-length:],
        )
        for position, one in enumerate(end.failures[:number])
    ]
    return end._replace(
        reason=cut_in_the_middle(clean(end.reason), longest),
        agent=cut_in_the_middle(end.agent, longest),
        output="" if failures else end.output[-length:],
        finished=end.finished[:number],
        failures=tuple(failures),
    )


def _fits(end: NodeEnd, most: int) -> bool:
    """Whether an end is small enough, and is read as it was written."""
    data = to_fields(end)
    try:
        return len(to_json(data)) <= most and bool(read_end(data))
    except DamagedError:
        return False


def _ranks_by_code(exits: Iterable[NodeEvent]) -> Dict[str, str]:
    """Exit code → the ranks that ended with it."""
    found: Dict[int, List[int]] = {}
    for event in exits:
        found.setdefault(event.exit_code, []).append(event.rank)
    return {str(code): ranges(ranks) for code, ranks in sorted(found.items())}


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers as text: ``0-3,7``."""
    parts: List[Tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ",".join("%d" % first if first == last else "%d-%d" % (first, last) for first, last in parts)


def read_end(data: Any) -> NodeEnd:
    """A node's end from its JSON object; raises DamagedError."""
    return read_record(NodeEnd, data, "end")
