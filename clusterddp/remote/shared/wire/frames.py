"""Frames between the operator and a helper: the same bytes over any pipe.

A frame is a 4-byte big-endian length, then that many bytes: a JSON header on one line, and a binary body.
A header holds ``id`` (request) and ``kind``:

    req     operator → helper   op, args: start an operation; parts: so many frames with its args follow instead
    args    operator → helper   a piece of the args' JSON, in the body
    data    both ways           a piece of the stream; the body's bytes are paid with credit
    end     both ways           the stream is complete; from the helper the body is the result's last piece
    error   helper → operator   message, remedy: the operation failed (id 0: the helper); killed: by a signal;
                                trace: the traceback of what it did not foresee; bug: whether that is a bug of ours
    cancel  operator → helper   end the operation
    credit  both ways           n: so many more bytes may be sent; from a helper each frame costs PER_FRAME more

Decoding is strict and total: whatever the bytes, it gives frames or raises ProtocolError. What a header's other
fields must be is checked by who reads them (fields.py).
"""

from struct import pack, unpack_from
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Union

from ..schema.json_text import encodable, from_json, to_json

PROTOCOL = 1
MAGIC = b"CLUSTERDDP/"
MAX_FRAME = 64 * 1024
MAX_BODY = 60 * 1024  # leaves the header room within MAX_FRAME
MAX_ARGS_PARTS = 256  # frames that hold the args of one request
LONGEST_LINE = 8 << 20  # bytes of a log line that are held as a whole; a longer one is taken as several
CREDIT = 1024 * 1024  # bytes in flight per stream before the reader has to grant more
PER_FRAME = 256  # what a data frame of a helper costs of that beside its body: many short ones take memory too
MAX_DEPTH = 32  # objects and lists within each other
MAX_ID = (1 << 53) - 1

Header = Dict[str, Any]


class Frame(NamedTuple):
    """One frame: header and body."""

    header: Header
    body: bytes


class ProtocolError(Exception):
    """The other side sent something that is no frame."""


def encode(header: Header, body: bytes = b"") -> bytes:
    """The bytes of one frame.

    Raises:
        ProtocolError: the frame would exceed MAX_FRAME bytes.
    """
    head = to_json(header).encode()
    size = len(head) + 1 + len(body)
    if size > MAX_FRAME:
        raise ProtocolError("frame of %d bytes is over %d" % (size, MAX_FRAME))
    return b"".join((pack(">I", size), head, b"\n", body))


def request_frames(ident: int, op: str, args: Dict[str, Any]) -> List[Frame]:
    """The frames that start an operation: one; where the args grow with the number of hosts, more.

    Raises:
        ProtocolError: the args are over what a helper takes.
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
    """Turns bytes as they come into frames.

    Args:
        limit: Bytes of the largest frame that is taken; may be changed later (a stranger gets less).

    Attributes:
        size: Bytes of the frame that was yielded last.
        texts: Texts in headers are made such that they can be written as UTF-8: they are to be shown, and no paths.
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self.size = 0
        self.texts = False
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take more bytes, yield every frame now complete.

        Raises:
            ProtocolError: the bytes are no frame; nothing after it can be read.
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
    """A frame from its bytes after the length; see ``Decoder`` for ``texts``.

    Raises:
        ProtocolError: no JSON object stands first, or its ``id`` or ``kind`` is none.
    """
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
    """A JSON value from another machine: UTF-8, finite numbers, each key once, nested at most MAX_DEPTH deep.

    Raises:
        ValueError: it is none; nothing else is raised, whatever the bytes.
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
