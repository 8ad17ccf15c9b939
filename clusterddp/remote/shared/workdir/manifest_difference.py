"""Encode a manifest as a difference from an earlier one: its new lines, and the ranges of unchanged lines.

A difference is lines of ASCII. One that begins with ``[`` is a line of the new manifest; ``=FIRST,END`` stands for the
lines FIRST to END - 1 of the earlier one, counted from 0 and in ascending order. So a whole manifest is its own
difference from an empty one. The receiver verifies the digest of the result; nothing is parsed for that.
"""

from typing import Callable, List, NamedTuple, Sequence, TypeVar, Union

from .manifest import BadManifest

T = TypeVar("T")


class UnchangedLines(NamedTuple):
    """Unchanged lines of the earlier manifest: from ``first`` up to, but not including, ``end``."""

    first: int
    end: int


Piece = Union[UnchangedLines, bytes]


def lines_of(data: bytes) -> List[bytes]:
    """Split a manifest into lines without newlines."""
    return data.split(b"\n")[:-1]


def difference(old: bytes, new: bytes) -> bytes:
    """Compute the difference that turns ``old`` into ``new``, both in canonical bytes."""
    positions = {line: number for number, line in enumerate(lines_of(old))}
    lines: List[bytes] = []
    first = end = 0  # of the unchanged lines that are not written yet
    for line in lines_of(new):
        position = positions.get(line, -1)
        if position == end and first < end:
            end += 1
            continue
        if first < end:
            lines.append(b"=%d,%d" % (first, end))
        if position >= end:
            first, end = position, position + 1
        else:
            lines.append(line)
            first = end
    if first < end:
        lines.append(b"=%d,%d" % (first, end))
    return b"".join(one + b"\n" for one in lines)


def pieces_of(encoded: bytes, count: int) -> List[Piece]:
    """Parse a difference from a manifest of ``count`` lines into pieces; raises BadManifest."""
    found: List[Piece] = []
    behind = 0
    for line in lines_of(encoded):
        if not line.startswith(b"="):
            found.append(line)
            continue
        try:
            first, end = map(int, line[1:].split(b","))
        except ValueError:
            raise BadManifest("not a difference of manifests: %.80r" % line) from None
        if not behind <= first < end <= count:
            raise BadManifest("not a difference of this manifest: %.80r" % line)
        found.append(UnchangedLines(first, end))
        behind = end
    return found


def splice(old: Sequence[T], pieces: Sequence[Piece], fresh: Callable[[bytes], T]) -> List[T]:
    """Build a list for the new manifest's lines: items of ``old`` for unchanged lines, else ``fresh(line)``."""
    found: List[T] = []
    for piece in pieces:
        if isinstance(piece, UnchangedLines):
            found += old[piece.first : piece.end]
        else:
            found.append(fresh(piece))
    return found


def dropped_lines(count: int, pieces: Sequence[Piece]) -> List[int]:
    """List the numbers of the earlier manifest's lines, out of ``count``, that were dropped."""
    found: List[int] = []
    behind = 0
    for piece in pieces:
        if isinstance(piece, UnchangedLines):
            found += range(behind, piece.first)
            behind = piece.end
    return found + list(range(behind, count))


def apply_difference(old: bytes, encoded: bytes) -> bytes:
    """Apply a difference to ``old``; the caller must verify the result's digest. Raises BadManifest."""
    lines = lines_of(old)
    return b"".join(line + b"\n" for line in splice(lines, pieces_of(encoded, len(lines)), lambda line: line))
