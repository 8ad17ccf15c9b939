"""The verdict on a run as it is kept (``verdict.json``): one file, the same on every node that heard it. Pure.

When a run ends its leader writes it for all; a node that is cut off writes its own. One copy is enough to tell how it
ended, whatever becomes of the hosts. Of several that of the later attempt counts, then the one whose writer heard more
nodes, then that of the lower member index.
"""

from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..run.run_state import ENDED_STATES
from ..schema.fields import Fields
from ..schema.record import by_key, field, many, one_of, read_record, record
from ..text.shortening import cut_in_the_middle
from .judge import EarlyExit, Failure, Judgement
from .node_end import NodeEnd

MAX_FAILURES = 32  # that are kept one by one
MAX_LINE = 1000  # characters


@record
class HostEnd(NamedTuple):
    """How one node ended."""

    host: str = field(Fields.text)
    state: str = field(one_of(*ENDED_STATES))
    ended: Optional[int] = field(Fields.maybe_integer, default=None)  # ns, by the operator's clock
    reason: str = field(Fields.text, default="")
    workdir: str = field(Fields.text, default="")
    exits: Mapping[str, str] = field(by_key(Fields.text), default={})  # exit code → ranks, as "0-3,7"
    more: Mapping[str, Any] = {}


@record
class VerdictRecord(NamedTuple):
    """A verdict, who wrote it, and whom he had heard."""

    attempt: int = field(Fields.number)
    state: str = field(one_of(*ENDED_STATES))
    exit_code: int = field(lambda fields, name: fields.number(name, 255))
    line: str = field(Fields.text)
    writer: str = field(Fields.text)  # a host's name, or who watched
    member: int = field(Fields.number)  # of the writer
    reported: Tuple[str, ...] = field(Fields.texts)
    missing: Tuple[str, ...] = field(Fields.texts, default=())
    written: int = field(Fields.integer, default=0)  # ns, by the operator's clock
    ended: Optional[int] = field(Fields.maybe_integer, default=None)
    notice: str = field(Fields.text, default="")
    failures: Tuple[Failure, ...] = field(many(Failure), default=())  # the first of them, by class, then by time
    failed: int = field(Fields.number, default=0)  # how many there were
    early: Tuple[EarlyExit, ...] = field(many(EarlyExit), default=())  # the one they come from, if any
    texts: Tuple[str, ...] = field(Fields.texts, default=())  # where a known message may stand
    hosts: Tuple[HostEnd, ...] = field(many(HostEnd), default=())
    code: str = field(Fields.text, default="")  # the digest of what ran
    more: Mapping[str, Any] = {}

    @property
    def by_majority(self) -> bool:
        """Whether its writer had heard more nodes than not: no other writer can have heard as many."""
        return len(self.reported) > len(self.missing)

    @property
    def stands(self) -> bool:
        """Whether no other copy of its attempt can count before it, whatever hosts report that were not heard."""
        return self.by_majority or (len(self.reported) == len(self.missing) and self.member == 0)

    def brief(self) -> "VerdictRecord":
        """The part of a verdict that a list of runs needs."""
        return self._replace(failures=(), hosts=(), texts=self.texts[:1])


def make_verdict(
    judgement: Judgement,
    ends: Sequence[NodeEnd],
    missing: Sequence[str],
    *,
    writer: str,
    member: int,
    code: str = "",
    written: int = 0,
) -> VerdictRecord:
    """The record of a judgement on these ends, and on the hosts ``missing`` that sent none.

    ``writer`` and ``member`` are the writing host and its member index, ``code`` is the digest of what ran,
    ``written`` the time by the operator's clock (ns).
    """
    return VerdictRecord(
        attempt=max((end.attempt for end in ends), default=0),
        state=judgement.state,
        exit_code=judgement.exit_code,
        line=cut_in_the_middle(judgement.line, MAX_LINE),
        writer=writer,
        member=member,
        reported=tuple(end.host for end in ends),
        missing=tuple(missing),
        written=written,
        ended=max((end.ended for end in ends if end.ended is not None), default=None),
        notice=cut_in_the_middle(judgement.notice, MAX_LINE),
        failures=tuple(
            failure._replace(worker=failure.worker._replace(output="")) for failure in judgement.failures[:MAX_FAILURES]
        ),
        failed=judgement.failed,
        early=judgement.early,
        texts=tuple(text[-MAX_LINE:] for text in judgement.texts if text),
        hosts=tuple(HostEnd(end.host, end.state, end.ended, end.reason, end.workdir, end.exits) for end in ends),
        code=code,
    )


def best_verdict(copies: Iterable[VerdictRecord]) -> Optional[VerdictRecord]:
    """The copy that counts; None if there is none."""
    return max(copies, key=lambda copy: (copy.attempt, len(copy.reported), -copy.member), default=None)


def read_verdict(data: Any) -> VerdictRecord:
    """A verdict from its JSON object; raises DamagedError."""
    return read_record(VerdictRecord, data, "verdict")
