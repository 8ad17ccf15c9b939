"""Chunks on their way, from the operator to a host or back: bundles of at most 4 MiB, compressed where that pays.

A bundle is a line of JSON, ``[encoding, bytes on the way, [[digest, bytes], …]]``, and its bytes. Whoever reads has
each chunk proved by its digest, holds one bundle at a time, and takes nothing larger, whatever is sent.
"""

import zlib
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, List, Optional, Protocol, Sequence, Tuple

from ..schema.json_text import to_json
from .chunks import CHUNK, Chunk, digest_of
from .frames import parse_json

if TYPE_CHECKING:
    from .partial_files import Parts

PLAIN, ZLIB = "plain", "zlib"
MOST_CHUNKS = 4096  # of a bundle
_LINE = MOST_CHUNKS * 100
_SAMPLE = 1 << 16  # bytes that tell whether compressing pays
_PAYS = 0.7
_WORTH = 512  # bytes below which nothing is gained


class BadStream(ValueError):
    """What came are no bundles, or a chunk is not what its digest says."""


def grouped(chunks: Iterable[Chunk]) -> Iterator[Tuple[Chunk, ...]]:
    """The chunks of each bundle, in order."""
    group: List[Chunk] = []
    size = 0
    for chunk in chunks:
        if group and (size + chunk.size > CHUNK or len(group) == MOST_CHUNKS):
            yield tuple(group)
            group, size = [], 0
        group.append(chunk)
        size += chunk.size
    if group:
        yield tuple(group)


def bundle(chunks: Sequence[Tuple[str, bytes]], *, compress: bool) -> bytes:
    """A bundle of chunks and their digests."""
    body, encoding = b"".join(data for _, data in chunks), PLAIN
    if compress and len(body) > _WORTH:
        sample = body[:_SAMPLE]
        if len(zlib.compress(sample, 1)) < _PAYS * len(sample):
            body, encoding = zlib.compress(body, 1), ZLIB
    return head(encoding, len(body), [(digest, len(data)) for digest, data in chunks]) + body


def head(encoding: str, size: int, chunks: Sequence[Tuple[str, int]]) -> bytes:
    """The line before the ``size`` bytes of a bundle of chunks, each a digest and a length."""
    return to_json([encoding, size, chunks]).encode() + b"\n"


def bundles_of(data: bytes, *, compress: bool) -> Iterator[bytes]:
    """Bundles that carry ``data`` itself; ``Incoming.content`` reads it."""
    for start in range(0, len(data), CHUNK):
        piece = data[start : start + CHUNK]
        yield bundle([(digest_of(piece), piece)], compress=compress)


class ChunkStream(Protocol):
    """What brings a manifest and chunks to a host: the operator alone (Incoming), or other hosts too."""

    def content(self, size: int) -> bytes:
        """What ``bundles_of`` has carried, of ``size`` bytes.

        Raises:
            BadStream: something else came.
        """

    def bundles(self, parts: "Parts", chunks: Iterable[Chunk]) -> Iterator[List[Tuple[str, bytes]]]:
        """Digest and proved bytes of chunks as they come; nothing at times, where it takes long.

        Args:
            parts: Where they are put.
            chunks: All of the transfer, in order.

        Raises:
            BadStream: they came damaged.
        """


class Incoming:
    """Reads bundles from pieces as they come; ``read`` gives the next one, empty at the end."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._buffer = b""

    def content(self, size: int) -> bytes:
        """What ``bundles_of`` has carried, of ``size`` bytes.

        Raises:
            BadStream: something else came.
        """
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
        """As of ``ChunkStream``."""
        return iter(self.bundle, None)

    def bundle(self) -> Optional[List[Tuple[str, bytes]]]:
        """The next bundle's chunks, each proved by its digest; None at the end.

        Raises:
            BadStream: it is none.
        """
        line = self._line()
        if not line:
            return None
        encoding, size, chunks = _head(line)
        body = self._take(size)
        total = sum(length for _, length in chunks)
        if encoding == ZLIB:
            body = _inflated(body, total)
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

    def _line(self) -> bytes:
        while b"\n" not in self._buffer:
            piece = self._read()
            if not piece and not self._buffer:
                return b""
            if not piece or len(self._buffer) > _LINE:
                raise BadStream("it was cut short" if not piece else "a bundle's line is too long")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _take(self, size: int) -> bytes:
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


def _head(line: bytes) -> Tuple[str, int, List[Tuple[str, int]]]:
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
    if not found:  # without end they would hold up whoever waits for what was asked for
        raise BadStream("a bundle carries nothing")
    return encoding, size, found


def _inflated(body: bytes, total: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(body, total + 1)
    except zlib.error as error:
        raise BadStream("a bundle cannot be unpacked: %s" % error) from None
