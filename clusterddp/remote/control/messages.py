"""Define every message of run control: its fields, their types and ranges, and its encoding.

Those before the proof are explained in control/connection.py; the others travel in authenticated frames. ``decode``
returns one of them or raises DamagedError, whatever the bytes. Texts are cut when they are encoded to the lengths that
it allows, so it never refuses a message of ours. Supervisors of one run have the same code, so an unknown field is an
error.
"""

import enum
import json
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Type, Union

from ..shared.names.ip_address import is_address
from ..shared.schema.fields import DamagedError, Fields
from ..shared.schema.record import (
    checked,
    field,
    many,
    maybe,
    nested,
    read_record,
    readers_of,
    record,
    to_fields,
)
from ..shared.verdict.node_end import NodeEnd
from ..shared.wire.frames import parse_json
from .look_messages import LookPart, LookRequest, StallNotice
from .message_fields import (
    ATTEMPT,
    COUNT,
    MAX_CAUSE,
    MAX_NAME,
    MAX_NODES,
    MAX_PARTS,
    MAX_REASON,
    MAX_ROW_OVERHEAD,
    MAX_TABLE_PART,
    MAX_VERDICT_PART,
    MEMBER,
    NONCE,
    PORT,
    PROOF,
    cut,
    host_name,
    member_indexes,
    number_in,
    text_up_to,
)


class NodeState(enum.Enum):
    """The state of a node's part in an attempt, as the node reports it."""

    REPLICATING = "replicating"  # its agent starts when the replicated paths have arrived
    RUNNING = "running"  # its agent was started
    ENDING = "ending"  # its agent has ended, its other processes are being ended
    ENDED = "ended"  # no process of the attempt runs there any more
    STANDBY = "standby"  # it takes no part, but may in a later attempt


def _state(known: Fields, name: str) -> NodeState:
    return NodeState(known.check(name, {state.value for state in NodeState}.__contains__, "a node's state"))


@record
class Joined(NamedTuple):
    """What the other nodes need to know of a host that joined after the start."""

    host: str = field(host_name)
    address: str = field(checked(is_address, "an IP address"))
    nproc: int = field(number_in(1, MAX_NODES))
    control: int = field(number_in(1, 65535))  # its port for run control


@record
class NodeStatus(NamedTuple):
    """The status of a node, as it reports it."""

    state: NodeState = field(_state)
    attempt: int = field(ATTEMPT)
    # its agent's exit code; EXIT_STOPPED instead of 0 where it was told to end
    code: Optional[int] = field(Fields.maybe_number, default=None)
    curable: bool = field(Fields.flag, default=True)
    cause: str = field(text_up_to(MAX_CAUSE), default="")
    left: bool = field(Fields.flag, default=False)  # it has finished and leaves the run
    joined: Optional[Joined] = field(maybe(nested(Joined)), default=None)
    slow: bool = field(Fields.flag, default=False)  # its heartbeats go over TCP alone
    carry: int = field(PORT, default=0)  # its port from which new nodes get the replicated paths, or 0

    def to_json(self) -> Dict[str, Any]:
        """Return the status as a JSON object, its cause shortened to ``MAX_CAUSE`` characters."""
        joined = dict(self.joined._asdict()) if self.joined else None
        return dict(self._asdict(), state=self.state.value, cause=cut(self.cause, MAX_CAUSE), joined=joined)


@record
class Hello(NamedTuple):
    """The first message of a connection; ``nonce``: the called side's."""

    nonce: str = field(NONCE)


@record
class Call(NamedTuple):
    """The caller asks to be led; ``caller`` and ``called``: member indexes; ``nonce``: the caller's."""

    caller: int = field(MEMBER)
    called: int = field(MEMBER)
    nonce: str = field(NONCE)
    proof: str = field(PROOF)


@record
class Ask(NamedTuple):
    """The caller asks only whether the called node's part has ended; fields as in ``Call``."""

    caller: int = field(MEMBER)
    called: int = field(MEMBER)
    nonce: str = field(NONCE)
    proof: str = field(PROOF)


@record
class Accept(NamedTuple):
    """The called node leads the caller from now on."""

    proof: str = field(PROOF)


@record
class Redirect(NamedTuple):
    """Another node leads; ``member``: its member index."""

    member: int = field(MEMBER)
    proof: str = field(PROOF)


@record
class PartEnded(NamedTuple):
    """The called node's part has ended permanently: none of its processes run."""

    proof: str = field(PROOF)


@record
class Heartbeat(NamedTuple):
    """A heartbeat, both ways."""

    majority: bool = field(Fields.flag)  # whether the sender knows of a leader with a majority
    number: int = field(COUNT)
    echo: int = field(COUNT)  # the newest number that the sender received
    # a leader's: seconds since its last contact with a majority; a follower's: since another leader told it of one
    age: float = field(Fields.real)


@record
class StatusMessage(NamedTuple):
    """A node's status for the leader; ``operator_age``: seconds since any operator's contact; ``epoch``: its newest."""

    status: NodeStatus = field(nested(NodeStatus))
    operator_age: float = field(Fields.real)
    epoch: int = field(COUNT, default=0)


@record
class NodeStatusRow(NamedTuple):
    """One node's status in a table; ``age``: seconds since the node reported it."""

    member: int = field(MEMBER)
    age: float = field(Fields.real)
    status: NodeStatus = field(nested(NodeStatus))


@record
class TakingPart(NamedTuple):
    """The nodes that take part in an attempt, as decided by its leader; all others are lost or have failed."""

    attempt: int = field(ATTEMPT)
    epoch: int = field(COUNT)  # grows with each change
    members: Tuple[int, ...] = field(member_indexes)  # the participants' member indexes
    ended: Tuple[int, ...] = field(member_indexes, default=())  # those of nodes whose agents have ended successfully
    voters: int = field(COUNT, default=0)  # so many members, in order, are those of which a verdict needs a majority


@record
class StatusTable(NamedTuple):
    """A part of the leader's knowledge: statuses that are new to the receiver, and the attempt's participants."""

    rows: Tuple[NodeStatusRow, ...] = field(many(NodeStatusRow))
    operator_age: float = field(Fields.real)
    participants: Optional[TakingPart] = field(maybe(nested(TakingPart)), default=None)


@record
class EndOrder(NamedTuple):
    """An order to end the run or, with ``attempt``, only that attempt, which another may follow."""

    reason: str = field(text_up_to(MAX_REASON))
    grace: float = field(Fields.real)  # seconds until SIGKILL
    # the cause lies with the launcher or its hosts (a lost host, a signal), not with the job or the user
    ours: bool = field(Fields.flag)
    attempt: Optional[int] = field(maybe(ATTEMPT), default=None)


@record
class AttemptDecision(NamedTuple):
    """The next attempt, on ``members``, with the store of ``store`` at ``port``; without members the run is over."""

    attempt: int = field(ATTEMPT)
    members: Tuple[int, ...] = field(member_indexes, default=())
    store: int = field(MEMBER, default=0)
    port: int = field(PORT, default=0)
    reason: str = field(text_up_to(MAX_REASON), default="")


@record
class EndMessage(NamedTuple):
    """The report to the leader of how the sender's part in the run ended."""

    end: NodeEnd = field(nested(NodeEnd))


@record
class VerdictPart(NamedTuple):
    """Part ``number`` (from 0) of the ``parts`` parts of the JSON of the leader's verdict.

    ``final``: it is to be recorded; before that it is to be confirmed.
    """

    number: int = field(number_in(0, MAX_PARTS - 1))
    parts: int = field(number_in(1, MAX_PARTS))
    text: str = field(text_up_to(MAX_VERDICT_PART))
    final: bool = field(Fields.flag, default=True)


@record
class Confirmation(NamedTuple):
    """The answer to the leader's verdict: the sender confirms it, and will confirm no other."""

    member: int = field(MEMBER)  # of the verdict's writer
    written: int = field(Fields.integer)  # when it was written


@record
class Confirmed(NamedTuple):
    """The leader's verdict is final: a majority has confirmed it. To those that have it; the others get its parts."""

    member: int = field(MEMBER)
    written: int = field(Fields.integer)


Message = Union[
    Hello,
    Call,
    Ask,
    Accept,
    Redirect,
    PartEnded,
    Heartbeat,
    StatusMessage,
    StatusTable,
    EndOrder,
    AttemptDecision,
    EndMessage,
    VerdictPart,
    Confirmation,
    Confirmed,
    LookRequest,
    LookPart,
    StallNotice,
]

FROM_LEADER = (StatusTable, VerdictPart, Confirmed, LookRequest, StallNotice)
TO_LEADER = (StatusMessage, EndMessage, Confirmation, LookPart)

_KINDS: Dict[str, Type[Message]] = {
    kind.__name__: kind
    for kind in (
        Hello, Call, Ask, Accept, Redirect, PartEnded, Heartbeat, StatusMessage, StatusTable, EndOrder,
        AttemptDecision, EndMessage, VerdictPart, Confirmation, Confirmed, LookRequest, LookPart, StallNotice,
    )
}  # fmt: skip


def encode(message: Message) -> bytes:
    """Encode a message as JSON."""
    fields: Dict[str, Any] = message._asdict()
    if isinstance(message, StatusTable):
        fields["rows"] = [
            {"member": member, "age": round(age, 3), "status": status.to_json()} for member, age, status in message.rows
        ]
        fields["participants"] = message.participants and dict(message.participants._asdict())
    if isinstance(message, StatusMessage):
        fields["status"] = message.status.to_json()
    if isinstance(message, EndMessage):
        fields["end"] = to_fields(message.end)
    if isinstance(message, (EndOrder, AttemptDecision)):
        fields["reason"] = cut(message.reason, MAX_REASON)
    if isinstance(message, LookPart):
        fields = to_fields(message)
    return _dump(dict(fields, kind=type(message).__name__))


def status_tables(
    rows: List[NodeStatusRow], operator_age: float, participants: Optional[TakingPart] = None
) -> List[StatusTable]:
    """Split rows into tables that each fit in a frame; without rows, return one empty table."""
    groups: List[List[NodeStatusRow]] = [[]]  # the rows of each table
    size = size_without_rows = len(_dump({"participants": participants}))
    for row in rows:
        row_size = len(_dump(row.status.to_json())) + MAX_ROW_OVERHEAD
        if size + row_size > MAX_TABLE_PART:
            groups.append([])
            size = size_without_rows
        groups[-1].append(row)
        size += row_size
    return [StatusTable(tuple(group), operator_age, participants) for group in groups]


def verdict_parts(verdict: Dict[str, Any], *, final: bool) -> List[VerdictPart]:
    """Split a verdict's JSON object into parts that each fit in a frame."""
    text = json.dumps(verdict, separators=(",", ":"))
    texts = [text[start : start + MAX_VERDICT_PART] for start in range(0, len(text), MAX_VERDICT_PART)]
    return [VerdictPart(number, len(texts), part, final) for number, part in enumerate(texts)]


def _dump(value: Dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def decode(payload: bytes) -> Message:
    """Decode a message and check every field; raises DamagedError if the bytes are no valid message."""
    try:
        data = parse_json(payload)
    except ValueError as error:
        raise DamagedError(str(error)) from None
    name = Fields(data).text("kind")
    if name not in _KINDS:
        raise DamagedError("%r is no message of run control" % name[:MAX_NAME])
    kind = _KINDS[name]
    readers = readers_of(kind)
    if data.keys() != readers.keys() | {"kind"}:
        raise DamagedError("%s has other fields than %s" % (name, ", ".join(readers)))
    message: Message = read_record(kind, data, name)
    return message
