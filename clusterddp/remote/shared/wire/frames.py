"""Frames between the operator and a helper: the same bytes over any pipe.

A frame is a 4-byte big-endian length, then that many bytes: a JSON header on one line, and a binary body.
A header holds ``id`` (request) and ``kind``:

    req     operator → helper   op, args: start an operation; parts: the number of args frames that follow instead
    args    operator → helper   a piece of the args' JSON, in the body
    data    both ways           a piece of the stream; the body's bytes are paid with credit
    end     both ways           the stream is complete; from the helper the body is the result's last piece
    error   helper → operator   message, remedy: the operation failed (id 0: the helper); killed: by a signal;
                                trace: the traceback of what it did not foresee; bug: whether that is a bug of ours
    cancel  operator → helper   end the operation
    credit  both ways           n: how many more bytes may be sent; from a helper each frame costs PER_FRAME more

Decoding is strict and total: whatever the bytes, it yields frames or raises ProtocolError. A header's other fields are
checked by the code that reads them (schema/fields.py).
"""

from struct import pack, unpack_from
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Union

from ..schema.json_text import encodable, from_json, to_json

PROTOCOL = 1
MAGIC = b"CLUSTERDDP/"
MAX_FRAME = 64 * 1024
MAX_BODY = 60 * 1024  # leaves the header room within MAX_FRAME
MAX_ARGS_PARTS = 256  # frames that hold the args of one request
LONGEST_LINE = 8 << 20  # bytes of a log line that are held as a whole; a longer line is split
CREDIT = 1024 * 1024  # bytes in flight per stream before the reader has to grant more
PER_FRAME = 256  # credit that a helper's data frame costs beside its body: many short ones take memory too
MAX_DEPTH = 32  # objects and lists within each other
MAX_ID = (1 << 53) - 1

Header = Dict[str, Any]


class Frame(NamedTuple):
    """One frame: header and body."""

    header: Header
    body: bytes

    @property
    def kind(self) -> Any:
        """What the frame is: ``data``, ``end``, ``error``, ``credit``, …; every decoded frame has a kind."""
        return self.header["kind"]


class ProtocolError(Exception):
    """The other side sent bytes that are no valid frame."""


def encode(header: Header, body: bytes = b"") -> bytes:
    """Encode one frame; raises ProtocolError if the frame would exceed MAX_FRAME bytes."""
    head = to_json(header).encode()
    size = len(head) + 1 + len(body)
    if size > MAX_FRAME:
        raise ProtocolError("frame of %d bytes is over %d" % (size, MAX_FRAME))
    return b"".join((pack(">I", size), head, b"\n", body))


def request_frames(ident: int, op: str, args: Dict[str, Any]) -> List[Frame]:
    """Make the frames that start an operation: one, or several where the arguments are too large for one.

    Raises ProtocolError if the arguments are larger than a helper accepts.
    """
    text = to_json(args).encode()
    if len(text) <= MAX_BODY:
        return [Frame({"id": ident, "kind": "req", "op": op, "args": args}, b"")]
    parts = [text[start : start + MAX_BODY] for start in range(0, len(text), MAX_BODY)]
    if len(parts) > MAX_ARGS_PARTS:
        raise ProtocolError("args of %d bytes are over %d" % (len(text), MAX_ARGS_PARTS * MAX_BODY))
    head = Frame({"id": ident, "kind": "req", "op": op, "parts": len(parts)}, b"")
    return [head, *(Frame({"id": ident, "kind": "args"}, part) for part in parts)]


class Decoder:
    """Decodes frames from a byte stream, up to ``limit`` bytes each; the limit may be changed later.

    Connections that have not authenticated get less. ``size`` is the size in bytes of the frame that was yielded last.
    ``texts`` makes all texts in headers encodable as UTF-8, because they are shown and are no paths.
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self.size = 0
        self.texts = False
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take more bytes and yield every frame that is now complete.

        Raises ProtocolError if the bytes are no frame; the rest of the stream cannot be read.
        """
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= 4:
                (size,) = unpack_from(">I", buffer, start)
                if size > self.limit:
                    raise ProtocolError("frame of %d bytes is over %d" % (size, self.limit))
                if len(buffer) - start - 4 < size:
                    break
                payload = bytes(buffer[start + 4 : start + 4 + size])
                start += 4 + size
                self.size = size
                yield parse(payload, texts=self.texts)
        finally:
            del buffer[:start]


def parse(payload: bytes, *, texts: bool = False) -> Frame:
    """Parse a frame's bytes after the length; see ``Decoder`` for ``texts``. Raises ProtocolError."""
    head, _, body = payload.partition(b"\n")
    try:
        header = parse_json(head)
        if texts and (b"\\ud" in head or b"\\uD" in head):
            header = encodable(header)
    except ValueError as error:
        raise ProtocolError("a frame's header is not JSON: %s: %r" % (error, head[:80])) from error
    if type(header) is not dict:
        raise ProtocolError("a frame's header is not an object: %r" % head[:80])
    kind, ident = header.get("kind"), header.get("id", 0)
    if type(kind) is not str or type(ident) is not int or not 0 <= ident <= MAX_ID:
        raise ProtocolError("a frame's header has no kind, or no id: %r" % head[:80])
    return Frame(header, body)


def parse_json(text: Union[bytes, bytearray]) -> Any:
    """Parse JSON from another machine: UTF-8, finite numbers, each key once, nested at most MAX_DEPTH deep.

    Raises ValueError if the bytes are no such JSON; no other exception is raised, whatever the bytes.
    """
    try:
        value = from_json(text.decode())
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if text.count(b"{") + text.count(b"[") > MAX_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = _containers([value])
    for _ in range(MAX_DEPTH):
        level = [inner for one in level for inner in _containers(one.values() if type(one) is dict else one)]
    if level:
        raise ValueError("it is nested too deep")


def _containers(values: Iterable[Any]) -> List[Any]:
    return [value for value in values if type(value) in (dict, list)]
