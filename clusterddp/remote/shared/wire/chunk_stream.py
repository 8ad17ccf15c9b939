"""Transfer chunks between operator and host in bundles of at most 4 MiB, compressed where that pays.

A bundle is a line of JSON, ``[encoding, bytes sent, [[digest, bytes], …]]``, and its bytes. The reader checks each
chunk by its digest, holds one bundle at a time, and accepts nothing larger, whatever is sent.
"""

import zlib
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, List, Optional, Protocol, Sequence, Tuple

from ..schema.json_text import to_json
from .chunks import CHUNK, Chunk, digest_of
from .frames import parse_json

if TYPE_CHECKING:
    from .partial_files import Parts

PLAIN, ZLIB = "plain", "zlib"
MAX_CHUNKS = 4096  # of a bundle
_MAX_LINE = MAX_CHUNKS * 100
_SAMPLE_BYTES = 1 << 16  # bytes to compress first, to see whether it pays
_MAX_RATIO = 0.7  # of the sample's compressed size to its own: above it compression does not pay
_MIN_COMPRESSED = 512  # bytes below which compression gains nothing


class BadStream(ValueError):
    """The data received is no bundle, or a chunk does not match its digest."""


def group_chunks(chunks: Iterable[Chunk]) -> Iterator[Tuple[Chunk, ...]]:
    """Group chunks into bundles, in order."""
    group: List[Chunk] = []
    size = 0
    for chunk in chunks:
        if group and (size + chunk.size > CHUNK or len(group) == MAX_CHUNKS):
            yield tuple(group)
            group, size = [], 0
        group.append(chunk)
        size += chunk.size
    if group:
        yield tuple(group)


def bundle(chunks: Sequence[Tuple[str, bytes]], *, compress: bool) -> bytes:
    """Encode chunks and their digests as a bundle."""
    body, encoding = b"".join(data for _, data in chunks), PLAIN
    if compress and len(body) > _MIN_COMPRESSED:
        sample = body[:_SAMPLE_BYTES]
        if len(zlib.compress(sample, 1)) < _MAX_RATIO * len(sample):
            body, encoding = zlib.compress(body, 1), ZLIB
    return encode_head(encoding, len(body), [(digest, len(data)) for digest, data in chunks]) + body


def encode_head(encoding: str, size: int, chunks: Sequence[Tuple[str, int]]) -> bytes:
    """Encode a bundle's header line, which ``size`` bytes follow; ``chunks``: digest and length of each."""
    return to_json([encoding, size, chunks]).encode() + b"\n"


def bundles_of(data: bytes, *, compress: bool) -> Iterator[bytes]:
    """Encode arbitrary data as bundles, to be read by ``Incoming.content``."""
    for start in range(0, len(data), CHUNK):
        piece = data[start : start + CHUNK]
        yield bundle([(digest_of(piece), piece)], compress=compress)


class ChunkStream(Protocol):
    """The source of a manifest and chunks on a host: the operator alone (Incoming), or other hosts too."""

    def content(self, size: int) -> bytes:
        """What ``bundles_of`` has carried, of ``size`` bytes; raises BadStream if something else came."""

    def bundles(self, parts: "Parts", chunks: Iterable[Chunk]) -> Iterator[List[Tuple[str, bytes]]]:
        """Yield lists of digest and verified bytes as chunks arrive; a list may be empty while it takes long.

        The caller writes them to ``parts``; ``chunks`` are all chunks of the transfer, in order. Raises BadStream if
        the data is damaged.
        """


class Incoming:
    """Reads bundles from a byte stream; ``read`` returns its next piece, empty at the end."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._buffer = b""

    def content(self, size: int) -> bytes:
        """What ``bundles_of`` has carried, of ``size`` bytes; raises BadStream if something else came."""
        found = bytearray()
        while len(found) < size:
            came = self.bundle()
            if not came:
                raise BadStream("it was cut short")
            for _, data in came:
                found += data
        if len(found) > size:
            raise BadStream("it is longer than was said")
        return bytes(found)

    def bundles(self, parts: "Parts", chunks: Iterable[Chunk]) -> Iterator[List[Tuple[str, bytes]]]:  # noqa: ARG002
        """Yield bundles until the stream ends; see ``ChunkStream``."""
        return iter(self.bundle, None)

    def bundle(self) -> Optional[List[Tuple[str, bytes]]]:
        """Read the next bundle's chunks, each verified by its digest; None at the end. Raises BadStream."""
        line = self.line(_MAX_LINE)
        if not line:
            return None
        encoding, size, chunks = _read_head(line)
        body = self.take(size)
        total = sum(length for _, length in chunks)
        if encoding == ZLIB:
            body = _inflate(body, total)
        if len(body) != total:
            raise BadStream("a bundle is not as long as it says")
        found, at = [], 0
        for digest, length in chunks:
            data = body[at : at + length]
            at += length
            if digest_of(data) != digest:
                raise BadStream("a chunk came damaged")
            found.append((digest, data))
        return found

    def line(self, most: int) -> bytes:
        """The next line, of not many more than ``most`` bytes, without its end; empty at the end of the stream.

        Raises BadStream if it is longer, or the stream ends within it.
        """
        while b"\n" not in self._buffer:
            piece = self._read()
            if not piece and not self._buffer:
                return b""
            if not piece or len(self._buffer) > most:
                raise BadStream("it was cut short" if not piece else "a line is too long")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes; raises BadStream if the stream ends before."""
        pieces, left = [self._buffer], size - len(self._buffer)
        while left > 0:
            piece = self._read()
            if not piece:
                raise BadStream("it was cut short")
            pieces.append(piece)
            left -= len(piece)
        data = b"".join(pieces)
        self._buffer = data[size:]
        return data[:size]


def _read_head(line: bytes) -> Tuple[str, int, List[Tuple[str, int]]]:
    """Read and check a bundle's header line; raises BadStream."""
    try:
        encoding, size, chunks = parse_json(line)
        found = [(digest, length) for digest, length in chunks]
    except (ValueError, TypeError):
        raise BadStream("a bundle has no line") from None
    numbers: List[Any] = [size, *(length for _, length in found)]
    if encoding not in (PLAIN, ZLIB) or not all(type(one) is int and 0 <= one <= 2 * CHUNK for one in numbers):
        raise BadStream("a bundle's line is wrong")
    if not all(isinstance(digest, str) for digest, _ in found) or sum(length for _, length in found) > CHUNK:
        raise BadStream("a bundle's line is wrong")
    if not found:  # an endless series of them would block the reader
        raise BadStream("a bundle carries nothing")
    return encoding, size, found


def _inflate(body: bytes, total: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(body, total + 1)
    except zlib.error as error:
        raise BadStream("a bundle cannot be unpacked: %s" % error) from None
