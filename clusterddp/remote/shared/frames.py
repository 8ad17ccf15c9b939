"""Frames between the operator and a helper: the same bytes over any pipe.

A frame is a 4-byte big-endian length, then that many bytes: a JSON header on one line, and a binary body.
A header holds ``id`` (request) and ``kind``:

    req     operator → helper   op, args, credit: start an operation
    data    both ways           a piece of the stream; the body's bytes are paid with credit
    end     both ways           the stream is complete; from the helper the body is the result's last piece
    error   helper → operator   type, message: the operation failed
    cancel  operator → helper   end the operation
    credit  both ways           n: so many more body bytes may be sent

Not here: who sends what when (helper/loop.py, clusterddp/hosts/client.py).
"""

import json
import struct
from typing import Any, Dict, Iterator, NamedTuple

PROTOCOL = 1
MAGIC = b"CLUSTERDDP/"
MAX_FRAME = 64 * 1024
MAX_BODY = 60 * 1024  # leaves the header room within MAX_FRAME
CREDIT = 1024 * 1024  # body bytes in flight per stream before the reader has to grant more

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
    head = json.dumps(header, separators=(",", ":")).encode()
    size = len(head) + 1 + len(body)
    if size > MAX_FRAME:
        raise ProtocolError("frame of %d bytes is over %d" % (size, MAX_FRAME))
    return b"".join((struct.pack(">I", size), head, b"\n", body))


class Decoder:
    """Turns bytes as they come into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take more bytes, yield every frame now complete.

        Raises:
            ProtocolError: the bytes are no frame.
        """
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= 4:
                (size,) = struct.unpack_from(">I", buffer, start)
                if size > MAX_FRAME:
                    raise ProtocolError("frame of %d bytes is over %d" % (size, MAX_FRAME))
                if len(buffer) - start - 4 < size:
                    break
                payload = bytes(buffer[start + 4 : start + 4 + size])
                start += 4 + size
                yield parse(payload)
        finally:
            del buffer[:start]


def parse(payload: bytes) -> Frame:
    """A frame from its bytes after the length.

    Raises:
        ProtocolError: no JSON object stands first.
    """
    head, _, body = payload.partition(b"\n")
    try:
        header = json.loads(head)
    except ValueError as error:
        raise ProtocolError("a frame's header is not JSON: %r" % head[:80]) from error
    if not isinstance(header, dict):
        raise ProtocolError("a frame's header is not an object: %r" % head[:80])
    return Frame(header, body)
