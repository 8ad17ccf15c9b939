"""What a host reports of one node of a run: the state, records and evidence in its spool, as one value. Pure.

Who a node is must be right. An event, a worker's error, a verdict or the state of the peers that is damaged counts as
missing, like one that was torn on the host's own disk.
"""

from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Tuple, Type, TypeVar

from ..logs.log_frames import MAX_ATTEMPT, is_run
from ..run.event_schema import NodeEvent, event_json, maybe_event
from ..run.run_record import RunRecord
from ..run.spool_records import ExitRecord, PeersRecord
from ..schema.fields import DamagedError, Fields
from ..schema.record import MAX_LENGTH, Reader, by_key, checked, field, maybe, nested, nullable, record, to_fields
from .failures import Evidence, WorkerError
from .judge import VerdictRecord
from .node_end import EndedPart, NodeEnd

T = TypeVar("T")
OFTEN_EMPTY = ("peers", "joined", "rebooted", "end", "errors", "stderr")  # are not sent where they say nothing


def _up_to(most: int) -> Reader[int]:
    return lambda fields, name: fields.number(name, most)


def _unless_damaged(read: Callable[[Fields, str], T]) -> "Reader[Optional[T]]":
    """The reader of a field that counts as null where it is damaged."""

    def read_or_none(fields: Fields, name: str) -> Optional[T]:
        try:
            return read(fields, name) if fields.given(name) else None
        except DamagedError:
            return None

    return read_or_none


def _or_read_before(kind: Type[T], read: Callable[[Fields, str], Any]) -> Reader[Any]:
    """The reader of a field that may hold the record itself: the operator has read it from another node's answer."""

    def read_unless_done(fields: Fields, name: str) -> Any:
        value = fields.anything(name)
        return value if type(value) is kind else read(fields, name)

    return read_unless_done


def _events(fields: Fields, name: str) -> Tuple[NodeEvent, ...]:
    return tuple(event for event in map(maybe_event, fields.array(name)) if event is not None)


@record
class NodeReport(NamedTuple):
    """One node of one attempt of a run, as its host reports it. Times are ns by the host's clock."""

    run: str = field(checked(is_run, "a run's id"))
    attempt: int = field(_up_to(MAX_ATTEMPT))
    host: str = field(Fields.filename)
    node_rank: int = field(_up_to(MAX_LENGTH))
    spool: str = field(Fields.shown_path)
    record: RunRecord = field(_or_read_before(RunRecord, nested(RunRecord)))
    state: str = field(Fields.text)
    events: Tuple[NodeEvent, ...] = field(_events)
    clock_offset_ns: int = field(Fields.integer)  # of the host's clock from the operator's
    pids: Tuple[int, ...] = field(Fields.numbers)  # of the run's processes there
    clock_error_ns: int = nullable(Fields.number, default=0)
    standby: bool = nullable(Fields.flag, default=False)  # a spare
    exit: Optional[ExitRecord] = field(maybe(nested(ExitRecord)), default=None)
    last_output: Optional[int] = field(Fields.maybe_number, default=None)  # when a worker printed last
    verdict: Optional[VerdictRecord] = field(
        _or_read_before(VerdictRecord, _unless_damaged(nested(VerdictRecord))), default=None
    )
    concluding: bool = nullable(Fields.flag, default=False)  # it has ended, and agrees with the others on the verdict
    rebooted: bool = nullable(Fields.flag, default=False)  # why it is lost
    peers: Optional[PeersRecord] = field(_unless_damaged(nested(PeersRecord)), default=None)
    joined: Optional[int] = field(Fields.maybe_number, default=None)  # agents that have come to its rendezvous store
    end: Optional[NodeEnd] = field(maybe(nested(NodeEnd)), default=None)  # in a brief report, in place of evidence
    errors: Mapping[str, Optional[WorkerError]] = nullable(by_key(maybe(nested(WorkerError))), default={})
    stderr: Mapping[str, str] = nullable(by_key(Fields.any_text), default={})

    @property
    def evidence(self) -> Evidence:
        """What it has on record of its workers."""
        return Evidence(self.events, self.errors, self.stderr)

    @property
    def part(self) -> EndedPart:
        """What its end is made from."""
        clock = self.clock_offset_ns, self.clock_error_ns
        return EndedPart(self.host, self.attempt, self.exit, self.evidence, *clock, rebooted=self.rebooted)


def to_json(report: NodeReport) -> Dict[str, Any]:
    """A report as it is sent."""
    found = to_fields(report._replace(events=()))
    found["events"] = [event_json(event) for event in report.events]
    for name in OFTEN_EMPTY:
        if found[name] is None or found[name] is False or found[name] == {}:
            del found[name]
    return found
