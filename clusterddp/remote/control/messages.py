"""Define every message of run control: its fields, their types and ranges, and its encoding.

Those before the proof are explained in control/connection.py; the others travel in authenticated frames. ``decode``
returns one of them or raises DamagedError, whatever the bytes. Texts are cut when they are encoded to the lengths that
it allows, so it never refuses a message of ours. Supervisors of one run have the same code, so an unknown field is an
error.
"""

import enum
import json
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Type, Union

from ..shared.names.ip_address import is_address
from ..shared.schema.fields import DamagedError, Fields
from ..shared.schema.record import (
    Reader,
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
from ..shared.text.shortening import cut_in_the_middle
from ..shared.verdict.node_end import NodeEnd
from ..shared.wire.frames import parse_json

MAX_NODES = 4096
MAX_ATTEMPTS = 1_000_000
MAX_CAUSE = 300  # characters of a node's cause of failure
MAX_REASON = 1000  # characters of a reason, which may name many hosts
MAX_TABLE_PART = 48 * 1024  # bytes of a table's part; a single row is far smaller
MAX_ROW_OVERHEAD = 60  # bytes of a table's row besides its status: the member, the age, names and punctuation
MAX_VERDICT_PART = 24 * 1024  # characters of a verdict's part; JSON may escape each to two
MAX_PARTS = 1024  # of a verdict
MAX_NAME = 255  # characters of a host's name or address
NONCE_DIGITS, PROOF_DIGITS = 32, 64  # hexadecimal digits


class NodeState(enum.Enum):
    """The state of a node's part in an attempt, as the node reports it."""

    RUNNING = "running"  # its agent was started, or starts when the replicated paths have arrived
    ENDING = "ending"  # its agent has ended, its other processes are being ended
    ENDED = "ended"  # no process of the attempt runs there any more
    STANDBY = "standby"  # it takes no part, but may in a later attempt


def _text_up_to(limit: int) -> Reader[str]:
    """Return a reader of a text of at most ``limit`` characters, without NUL and lone surrogates."""
    return checked(lambda text: text == cut(text, limit), "a text of up to %d" % limit)


def _host(known: Fields, name: str) -> str:
    """Read a host's name as a node's plan may hold it."""
    known.filename(name)
    return _text_up_to(MAX_NAME)(known, name)


def _digits(count: int) -> Reader[str]:
    return checked(re.compile("[0-9a-f]{%d}" % count).fullmatch, "%d hexadecimal digits" % count)


def _number(minimum: int, maximum: int) -> Reader[int]:
    def read(known: Fields, name: str) -> int:
        value = known.number(name, maximum)
        if value < minimum:
            raise known.wrong(name, value, "at least %d" % minimum)
        return value

    return read


def _members(known: Fields, name: str) -> Tuple[int, ...]:
    members = known.numbers(name)
    if len(set(members)) < len(members) or max(members, default=0) >= MAX_NODES:
        raise known.wrong(name, members, "member indexes, each once")
    return members


def _state(known: Fields, name: str) -> NodeState:
    return NodeState(known.check(name, {state.value for state in NodeState}.__contains__, "a node's state"))


_MEMBER = _number(0, MAX_NODES - 1)
_ATTEMPT = _number(1, MAX_ATTEMPTS)
_PORT = _number(0, 65535)
_COUNT = _number(0, 1 << 53)
_NONCE, _PROOF = _digits(NONCE_DIGITS), _digits(PROOF_DIGITS)


@record
class Joined(NamedTuple):
    """What the other nodes need to know of a host that joined after the start."""

    host: str = field(_host)
    address: str = field(checked(is_address, "an IP address"))
    nproc: int = field(_number(1, MAX_NODES))
    control: int = field(_number(1, 65535))  # its port for run control


@record
class NodeStatus(NamedTuple):
    """The status of a node, as it reports it."""

    state: NodeState = field(_state)
    attempt: int = field(_ATTEMPT)
    code: Optional[int] = field(Fields.maybe_number, default=None)  # its agent's exit code
    curable: bool = field(Fields.flag, default=True)
    cause: str = field(_text_up_to(MAX_CAUSE), default="")
    left: bool = field(Fields.flag, default=False)  # it has finished and leaves the run
    joined: Optional[Joined] = field(maybe(nested(Joined)), default=None)
    slow: bool = field(Fields.flag, default=False)  # its heartbeats go over TCP alone
    carry: int = field(_PORT, default=0)  # its port from which new nodes get the replicated paths, or 0

    def to_json(self) -> Dict[str, Any]:
        """Return the status as a JSON object, its cause shortened to ``MAX_CAUSE`` characters."""
        joined = dict(self.joined._asdict()) if self.joined else None
        return dict(self._asdict(), state=self.state.value, cause=cut(self.cause, MAX_CAUSE), joined=joined)


@record
class Hello(NamedTuple):
    """The first message of a connection; ``nonce``: the called side's."""

    nonce: str = field(_NONCE)


@record
class Call(NamedTuple):
    """The caller asks to be led; ``caller`` and ``called``: member indexes; ``nonce``: the caller's."""

    caller: int = field(_MEMBER)
    called: int = field(_MEMBER)
    nonce: str = field(_NONCE)
    proof: str = field(_PROOF)


@record
class Ask(NamedTuple):
    """The caller asks only whether the called node's part has ended; fields as in ``Call``."""

    caller: int = field(_MEMBER)
    called: int = field(_MEMBER)
    nonce: str = field(_NONCE)
    proof: str = field(_PROOF)


@record
class Accept(NamedTuple):
    """The called node leads the caller from now on."""

    proof: str = field(_PROOF)


@record
class Redirect(NamedTuple):
    """Another node leads; ``member``: its member index."""

    member: int = field(_MEMBER)
    proof: str = field(_PROOF)


@record
class PartEnded(NamedTuple):
    """The called node's part has ended permanently: none of its processes run."""

    proof: str = field(_PROOF)


@record
class Heartbeat(NamedTuple):
    """A heartbeat, both ways."""

    majority: bool = field(Fields.flag)  # whether the sender knows of a leader with a majority
    number: int = field(_COUNT)
    echo: int = field(_COUNT)  # the newest number that the sender received
    # a leader's: seconds since its last contact with a majority; a follower's: since it last heard from another leader
    age: float = field(Fields.real)


@record
class StatusMessage(NamedTuple):
    """A node's status for the leader; ``operator_age``: seconds since any operator's contact; ``epoch``: its newest."""

    status: NodeStatus = field(nested(NodeStatus))
    operator_age: float = field(Fields.real)
    epoch: int = field(_COUNT, default=0)


@record
class NodeStatusRow(NamedTuple):
    """One node's status in a table; ``age``: seconds since the node reported it."""

    member: int = field(_MEMBER)
    age: float = field(Fields.real)
    status: NodeStatus = field(nested(NodeStatus))


@record
class TakingPart(NamedTuple):
    """The nodes that take part in an attempt, as decided by its leader; all others are lost or have failed."""

    attempt: int = field(_ATTEMPT)
    epoch: int = field(_COUNT)  # grows with each change
    members: Tuple[int, ...] = field(_members)  # the participants' member indexes
    ended: Tuple[int, ...] = field(_members, default=())  # those of nodes whose agents have ended successfully


@record
class StatusTable(NamedTuple):
    """A part of the leader's knowledge: statuses that are new to the receiver, and the attempt's participants."""

    rows: Tuple[NodeStatusRow, ...] = field(many(NodeStatusRow))
    operator_age: float = field(Fields.real)
    participants: Optional[TakingPart] = field(maybe(nested(TakingPart)), default=None)


@record
class EndOrder(NamedTuple):
    """An order to end the run or, with ``attempt``, only that attempt, which another may follow."""

    reason: str = field(_text_up_to(MAX_REASON))
    grace: float = field(Fields.real)  # seconds until SIGKILL
    # the cause lies with the launcher or its hosts (a lost host, a signal), not with the job or the user
    ours: bool = field(Fields.flag)
    attempt: Optional[int] = field(maybe(_ATTEMPT), default=None)


@record
class AttemptDecision(NamedTuple):
    """The next attempt, on ``members``, with the store of ``store`` at ``port``; without members the run is over."""

    attempt: int = field(_ATTEMPT)
    members: Tuple[int, ...] = field(_members, default=())
    store: int = field(_MEMBER, default=0)
    port: int = field(_PORT, default=0)
    reason: str = field(_text_up_to(MAX_REASON), default="")


@record
class EndMessage(NamedTuple):
    """The report to the leader of how the sender's part in the run ended."""

    end: NodeEnd = field(nested(NodeEnd))


@record
class VerdictPart(NamedTuple):
    """Part ``number`` (from 0) of the ``parts`` parts of the JSON of the leader's verdict."""

    number: int = field(_number(0, MAX_PARTS - 1))
    parts: int = field(_number(1, MAX_PARTS))
    text: str = field(_text_up_to(MAX_VERDICT_PART))


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
]

_KINDS: Dict[str, Type[Message]] = {
    kind.__name__: kind
    for kind in (
        Hello, Call, Ask, Accept, Redirect, PartEnded, Heartbeat, StatusMessage, StatusTable, EndOrder,
        AttemptDecision, EndMessage, VerdictPart,
    )
}  # fmt: skip


def cut(text: str, limit: int) -> str:
    """Shorten a text to at most ``limit`` characters and replace NUL and lone surrogates."""
    clean = text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")
    return cut_in_the_middle(clean, limit)


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


def verdict_parts(verdict: Dict[str, Any]) -> List[VerdictPart]:
    """Split a verdict's JSON object into parts that each fit in a frame."""
    text = json.dumps(verdict, separators=(",", ":"))
    texts = [text[start : start + MAX_VERDICT_PART] for start in range(0, len(text), MAX_VERDICT_PART)]
    return [VerdictPart(number, len(texts), part) for number, part in enumerate(texts)]


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
