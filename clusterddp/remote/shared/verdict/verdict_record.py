"""The verdict on a run as it is kept (``verdict.json``): one file, the same on every node that heard it. Pure.

When a run ends its lead writes it for all; a node that is cut off writes its own. One copy is enough to tell how it
ended, whatever becomes of the hosts. Of several that of the later attempt counts, then the one whose writer heard more
nodes, then that of the lower place.
"""

from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..run.spool_records import ENDINGS
from ..schema.fields import Fields
from ..schema.record import Readers, read_record, record, records
from ..text.shortening import cut_in_the_middle
from .failures import FailedWorker
from .judge import Failure, Judgement
from .node_report import FAILED_WORKER, NodeEnd

MOST_FAILURES = 32  # that are kept one by one
MOST_LINE = 1000  # characters
UNKNOWN = "unknown"  # the state of a run of which nobody can say now how it ended


class HostEnd(NamedTuple):
    """How one node ended."""

    host: str
    state: str
    ended: Optional[int] = None  # ns, by the operator's clock
    reason: str = ""
    workdir: str = ""
    exits: Mapping[str, str] = {}  # exit code → ranks, as "0-3,7"
    more: Mapping[str, Any] = {}


class VerdictRecord(NamedTuple):
    """A verdict, who wrote it, and whom he had heard."""

    attempt: int
    state: str
    exit_code: int
    line: str
    writer: str  # a host's name, or who watched
    place: int  # of the writer
    heard: Tuple[str, ...]
    missing: Tuple[str, ...] = ()
    written: int = 0  # ns, by the operator's clock
    ended: Optional[int] = None
    notice: str = ""
    failures: Tuple[Failure, ...] = ()  # the first of them, by class, then by time
    failed: int = 0  # how many there were
    said: Tuple[str, ...] = ()  # where a known message may stand
    hosts: Tuple[HostEnd, ...] = ()
    code: str = ""  # the digest of what ran
    more: Mapping[str, Any] = {}

    @property
    def by_majority(self) -> bool:
        """Whether its writer had heard more nodes than not: no other writer can have heard as many."""
        return len(self.heard) > len(self.missing)

    @property
    def stands(self) -> bool:
        """Whether no other copy of its attempt can count before it, whatever hosts tell that were not heard."""
        return self.by_majority or (len(self.heard) == len(self.missing) and self.place == 0)

    def brief(self) -> "VerdictRecord":
        """What a list of runs needs of it."""
        return self._replace(failures=(), hosts=(), said=self.said[:1])


def made(
    judgement: Judgement,
    ends: Sequence[NodeEnd],
    missing: Sequence[str],
    *,
    writer: str,
    place: int,
    code: str = "",
    written: int = 0,
) -> VerdictRecord:
    """The record of a judgement on these ends.

    Args:
        judgement: It.
        ends: Of the nodes that were heard.
        missing: Hosts that were not.
        writer: Who writes it.
        place: Of the writer.
        code: The digest of what ran.
        written: When, by the operator's clock (ns).
    """
    return VerdictRecord(
        attempt=max((end.attempt for end in ends), default=0),
        state=judgement.state,
        exit_code=judgement.exit_code,
        line=cut_in_the_middle(judgement.line, MOST_LINE),
        writer=writer,
        place=place,
        heard=tuple(end.host for end in ends),
        missing=tuple(missing),
        written=written,
        ended=max((end.ended for end in ends if end.ended is not None), default=None),
        notice=cut_in_the_middle(judgement.notice, MOST_LINE),
        failures=tuple(
            failure._replace(worker=failure.worker._replace(said="")) for failure in judgement.failures[:MOST_FAILURES]
        ),
        failed=judgement.failed,
        said=tuple(text[-MOST_LINE:] for text in judgement.said if text),
        hosts=tuple(HostEnd(end.host, end.state, end.ended, end.reason, end.workdir, end.exits) for end in ends),
        code=code,
    )


def best(copies: Iterable[VerdictRecord]) -> Optional[VerdictRecord]:
    """The copy that counts; None if there is none."""
    return max(copies, key=lambda copy: (copy.attempt, len(copy.heard), -copy.place), default=None)


def _state(fields: Fields, name: str) -> str:
    return fields.check(name, ENDINGS.__contains__, "one of " + ", ".join(ENDINGS))


def _maybe_integer(fields: Fields, name: str) -> Optional[int]:
    return fields.integer(name) if fields.given(name) else None


_FAILURE: Readers = {
    "host": Fields.text,
    "attempt": Fields.number,
    "error_ns": Fields.number,
    "worker": record(FailedWorker, FAILED_WORKER),
    "recovered": Fields.flag,
}
_HOST: Readers = {
    "host": Fields.text,
    "state": _state,
    "ended": _maybe_integer,
    "reason": Fields.text,
    "workdir": Fields.text,
    "exits": lambda fields, name: fields.mapping(name, Fields.text),
}
VERDICT: Readers = {
    "attempt": Fields.number,
    "state": _state,
    "exit_code": lambda fields, name: fields.number(name, 255),
    "line": Fields.text,
    "writer": Fields.text,
    "place": Fields.number,
    "heard": Fields.texts,
    "missing": Fields.texts,
    "written": Fields.integer,
    "ended": _maybe_integer,
    "notice": Fields.text,
    "failures": records(Failure, _FAILURE),
    "failed": Fields.number,
    "said": Fields.texts,
    "hosts": records(HostEnd, _HOST),
    "code": Fields.text,
}


def read_verdict(data: Any) -> VerdictRecord:
    """A verdict from its JSON object; raises DamagedError."""
    return read_record(VerdictRecord, VERDICT, data, "verdict")
