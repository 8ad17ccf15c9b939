"""Every message of run control: its fields, their types and ranges, to bytes and back.

Before the proof (control/connection.py):

    Hello      called → caller   a nonce
    Call       caller → called   who calls whom, a nonce, a proof
    Ask        caller → called   the same, to ask only whether the part of who is called has ended for good
    Lead       called → caller   "I lead you from now on", proved
    Elsewhere  called → caller   "that one leads", proved; the connection ends
    Gone       called → caller   "my part has ended for good", proved; the connection ends

After it, in authenticated frames:

    Beat       both ways          what proves contact (control/contact.py); the lead answers each
    WordSaid   to the lead        a node's word on itself
    Table      from the lead      such words of many nodes, in parts
    Order      both ways          end the run, or one attempt of it
    Decision   both ways          what follows an attempt: another one on which nodes, or none
    EndSaid    to the lead        how a node's part in the run ended
    VerdictPart  from the lead    the verdict on the run, in parts

``decode`` is total: it returns one of these or raises DamagedError, whatever the bytes. What is written is cut to the
lengths that it allows, so a message of ours is never refused. Supervisors of one run have the same code: an
unknown field is an error.
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
    written,
)
from ..shared.text.shortening import cut_in_the_middle
from ..shared.verdict.node_report import NodeEnd
from ..shared.wire.frames import parse_json

MOST_NODES = 4096
MOST_ATTEMPTS = 1_000_000
CAUSE = 300  # characters of a node's cause of failure
REASON = 1000  # characters of a reason, which may name many hosts
PART = 48 * 1024  # bytes of a table's part; one row never comes near it
VERDICT_PART = 24 * 1024  # characters of a verdict's part; JSON may write each in two
MOST_PARTS = 1024  # of a verdict
NAME = 255  # characters of a host's name or address
NONCE, PROOF = 32, 64  # hexadecimal digits


class NodeState(enum.Enum):
    """What a node says its part of an attempt is doing."""

    RUNNING = "running"  # its agent was started, or is once what is carried has come
    ENDING = "ending"  # its agent has ended, its processes are being ended
    ENDED = "ended"  # nothing of the attempt runs there any more
    STANDBY = "standby"  # it takes no part, and may in a later attempt


def _short(most: int) -> Reader[str]:
    """A text of at most so many characters, that any file can hold."""
    return checked(lambda text: text == cut(text, most), "a text of up to %d" % most)


def _host(known: Fields, name: str) -> str:
    """A host's name as a node's plan may have it."""
    known.filename(name)
    return _short(NAME)(known, name)


def _digits(count: int) -> Reader[str]:
    return checked(re.compile("[0-9a-f]{%d}" % count).fullmatch, "%d hexadecimal digits" % count)


def _number(least: int, most: int) -> Reader[int]:
    def read(known: Fields, name: str) -> int:
        value = known.number(name, most)
        if value < least:
            raise known.wrong(name, value, "at least %d" % least)
        return value

    return read


def _places(known: Fields, name: str) -> Tuple[int, ...]:
    places = known.numbers(name)
    if len(set(places)) < len(places) or max(places, default=0) >= MOST_NODES:
        raise known.wrong(name, places, "places of nodes, each once")
    return places


def _state(known: Fields, name: str) -> NodeState:
    return NodeState(known.check(name, {state.value for state in NodeState}.__contains__, "a node's state"))


_PLACE = _number(0, MOST_NODES - 1)
_ATTEMPT = _number(1, MOST_ATTEMPTS)
_PORT = _number(0, 65535)
_COUNT = _number(0, 1 << 53)
_NONCE, _PROOF = _digits(NONCE), _digits(PROOF)


@record
class Joined(NamedTuple):
    """A host that joined after the start, as the others need to know it."""

    host: str = field(_host)
    address: str = field(checked(is_address, "an IP address"))
    nproc: int = field(_number(1, MOST_NODES))
    control: int = field(_number(1, 65535))  # its port of run control


@record
class Word(NamedTuple):
    """A node's last word on itself.

    ``left``: it is done for good; ``code``: its agent's exit code; ``slow``: its beats go over TCP alone; ``carry``:
    the port where new nodes get what is carried to them, or 0.
    """

    state: NodeState = field(_state)
    attempt: int = field(_ATTEMPT)
    code: Optional[int] = field(Fields.maybe_number, default=None)
    curable: bool = field(Fields.flag, default=True)
    cause: str = field(_short(CAUSE), default="")
    left: bool = field(Fields.flag, default=False)
    joined: Optional[Joined] = field(maybe(nested(Joined)), default=None)
    slow: bool = field(Fields.flag, default=False)
    carry: int = field(_PORT, default=0)

    def to_json(self) -> Dict[str, Any]:
        """As a JSON object."""
        joined = dict(self.joined._asdict()) if self.joined else None
        return dict(self._asdict(), state=self.state.value, cause=cut(self.cause, CAUSE), joined=joined)


@record
class Hello(NamedTuple):
    """``nonce``: of who was called."""

    nonce: str = field(_NONCE)


@record
class Call(NamedTuple):
    """``caller`` and ``called``: places; ``nonce``: the caller's."""

    caller: int = field(_PLACE)
    called: int = field(_PLACE)
    nonce: str = field(_NONCE)
    proof: str = field(_PROOF)


@record
class Ask(NamedTuple):
    """As Call."""

    caller: int = field(_PLACE)
    called: int = field(_PLACE)
    nonce: str = field(_NONCE)
    proof: str = field(_PROOF)


@record
class Lead(NamedTuple):
    """The called one leads the caller."""

    proof: str = field(_PROOF)


@record
class Elsewhere(NamedTuple):
    """``place`` leads."""

    place: int = field(_PLACE)
    proof: str = field(_PROOF)


@record
class Gone(NamedTuple):
    """The part of who is called has ended for good: nothing of it runs."""

    proof: str = field(_PROOF)


@record
class Beat(NamedTuple):
    """``majority``: whether the sender knows of a lead with one; ``number``: its own, ``echo``: the newest it heard.

    ``age``: seconds since a lead's last contact with a majority, or since a follower heard another lead.
    """

    majority: bool = field(Fields.flag)
    number: int = field(_COUNT)
    echo: int = field(_COUNT)
    age: float = field(Fields.real)


@record
class WordSaid(NamedTuple):
    """``operator``: seconds since the sender heard an operator, here or elsewhere; ``epoch``: the newest it knows."""

    word: Word = field(nested(Word))
    operator: float = field(Fields.real)
    epoch: int = field(_COUNT, default=0)


@record
class NodeStatusRow(NamedTuple):
    """One node's word in a table; ``age``: seconds since it was said."""

    place: int = field(_PLACE)
    age: float = field(Fields.real)
    word: Word = field(nested(Word))


@record
class TakingPart(NamedTuple):
    """Who takes part in an attempt, as its leader says.

    ``epoch`` grows with each change; ``places``: they take part; ``ended``: their agents have ended well. The other
    places of the attempt are excluded: lost, or failed.
    """

    attempt: int = field(_ATTEMPT)
    epoch: int = field(_COUNT)
    places: Tuple[int, ...] = field(_places)
    ended: Tuple[int, ...] = field(_places, default=())


@record
class StatusTable(NamedTuple):
    """A part of what the lead knows: the words that are new to the receiver, and who takes part in the attempt."""

    rows: Tuple[NodeStatusRow, ...] = field(many(NodeStatusRow))
    operator: float = field(Fields.real)
    part: Optional[TakingPart] = field(maybe(nested(TakingPart)), default=None)


@record
class EndOrder(NamedTuple):
    """The run is to end; with ``attempt`` that attempt only, and another may follow.

    ``grace``: seconds until SIGKILL. ``ours``: the reason is ours (a lost host, a signal), not the job's or the user's.
    """

    reason: str = field(_short(REASON))
    grace: float = field(Fields.real)
    ours: bool = field(Fields.flag)
    attempt: Optional[int] = field(maybe(_ATTEMPT), default=None)


@record
class AttemptDecision(NamedTuple):
    """``attempt`` begins on ``places``, its store on ``store`` at ``port``; without places the run is over."""

    attempt: int = field(_ATTEMPT)
    places: Tuple[int, ...] = field(_places, default=())
    store: int = field(_PLACE, default=0)
    port: int = field(_PORT, default=0)
    reason: str = field(_short(REASON), default="")


@record
class EndSaid(NamedTuple):
    """How the sender's part ended."""

    end: NodeEnd = field(nested(NodeEnd))


@record
class VerdictPart(NamedTuple):
    """The ``number``th of so many parts of the verdict's JSON."""

    number: int = field(_number(0, MOST_PARTS - 1))
    parts: int = field(_number(1, MOST_PARTS))
    text: str = field(_short(VERDICT_PART))


Message = Union[
    Hello,
    Call,
    Ask,
    Lead,
    Elsewhere,
    Gone,
    Beat,
    WordSaid,
    StatusTable,
    EndOrder,
    AttemptDecision,
    EndSaid,
    VerdictPart,
]

_KINDS: Dict[str, Type[Message]] = {
    kind.__name__: kind
    for kind in (
        Hello, Call, Ask, Lead, Elsewhere, Gone, Beat, WordSaid, StatusTable, EndOrder, AttemptDecision, EndSaid,
        VerdictPart,
    )
}  # fmt: skip


def cut(text: str, most: int) -> str:
    """Text that any message may hold: at most so many characters, without NUL and lone surrogates."""
    clean = text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")
    return cut_in_the_middle(clean, most)


def encode(message: Message) -> bytes:
    """A message's bytes."""
    fields: Dict[str, Any] = message._asdict()
    if isinstance(message, StatusTable):
        fields["rows"] = [
            {"place": place, "age": round(age, 3), "word": word.to_json()} for place, age, word in message.rows
        ]
        fields["part"] = message.part and dict(message.part._asdict())
    if isinstance(message, WordSaid):
        fields["word"] = message.word.to_json()
    if isinstance(message, EndSaid):
        fields["end"] = written(message.end)
    if isinstance(message, (EndOrder, AttemptDecision)):
        fields["reason"] = cut(message.reason, REASON)
    return _dump(dict(fields, kind=type(message).__name__))


def in_parts(rows: List[NodeStatusRow], operator: float, part: Optional[TakingPart] = None) -> List[StatusTable]:
    """Tables that hold the rows, each small enough for a frame; one even without rows."""
    parts: List[List[NodeStatusRow]] = [[]]
    size = head = len(_dump({"part": part}))
    for row in rows:
        length = len(_dump(row.word.to_json())) + 60
        if size + length > PART:
            parts.append([])
            size = head
        parts[-1].append(row)
        size += length
    return [StatusTable(tuple(rows), operator, part) for rows in parts]


def verdict_parts(verdict: Dict[str, Any]) -> List[VerdictPart]:
    """A verdict's JSON object in parts, each small enough for a frame."""
    text = json.dumps(verdict, separators=(",", ":"))
    texts = [text[start : start + VERDICT_PART] for start in range(0, len(text), VERDICT_PART)]
    return [VerdictPart(number, len(texts), part) for number, part in enumerate(texts)]


def _dump(value: Dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def decode(payload: bytes) -> Message:
    """The message of some bytes, every field checked.

    Raises:
        DamagedError: there is none.
    """
    try:
        data = parse_json(payload)
    except ValueError as error:
        raise DamagedError(str(error)) from None
    name = Fields(data).text("kind")
    if name not in _KINDS:
        raise DamagedError("%r is no message of run control" % name[:NAME])
    kind = _KINDS[name]
    readers = readers_of(kind)
    if data.keys() != readers.keys() | {"kind"}:
        raise DamagedError("%s has other fields than %s" % (name, ", ".join(readers)))
    message: Message = read_record(kind, data, name)
    return message
