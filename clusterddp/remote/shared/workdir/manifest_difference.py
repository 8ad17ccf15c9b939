"""A manifest told by what an earlier one says already: its new lines, and which of the earlier lines stay.

A difference is lines of ASCII. One that begins with ``[`` is a line of the new manifest; ``=FIRST,END`` stands for the
lines FIRST to END - 1 of the earlier one, counted from 0 and only ever going on. So a whole manifest is its own
difference from an empty one. Whoever applies one proves the digest of what comes out; nothing is parsed for that.
"""

from typing import Callable, List, NamedTuple, Sequence, TypeVar, Union

from .manifest import BadManifest

T = TypeVar("T")


class UnchangedLines(NamedTuple):
    """Lines of the earlier manifest that stay: from ``first`` up to ``end``, which is not among them."""

    first: int
    end: int


Piece = Union[UnchangedLines, bytes]


def lines_of(data: bytes) -> List[bytes]:
    """The lines of a manifest, without their ends."""
    return data.split(b"\n")[:-1]


def difference(old: bytes, new: bytes) -> bytes:
    """What makes ``new`` of ``old``, both in canonical bytes."""
    places = {line: number for number, line in enumerate(lines_of(old))}
    told: List[bytes] = []
    first = end = 0  # of the lines that stay, not told yet
    for line in lines_of(new):
        place = places.get(line, -1)
        if place == end and first < end:
            end += 1
            continue
        if first < end:
            told.append(b"=%d,%d" % (first, end))
        if place >= end:
            first, end = place, place + 1
        else:
            told.append(line)
            first = end
    if first < end:
        told.append(b"=%d,%d" % (first, end))
    return b"".join(one + b"\n" for one in told)


def pieces_of(told: bytes, count: int) -> List[Piece]:
    """The pieces of a difference from a manifest of ``count`` lines.

    Raises:
        BadManifest: it is none.
    """
    found: List[Piece] = []
    behind = 0
    for line in lines_of(told):
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


def spliced(old: Sequence[T], pieces: Sequence[Piece], fresh: Callable[[bytes], T]) -> List[T]:
    """What belongs to each line of the new manifest: that of the line that stays, or ``fresh(line)`` of a new one."""
    found: List[T] = []
    for piece in pieces:
        if isinstance(piece, UnchangedLines):
            found += old[piece.first : piece.end]
        else:
            found.append(fresh(piece))
    return found


def left_out(count: int, pieces: Sequence[Piece]) -> List[int]:
    """The numbers of the earlier lines, ``count`` in all, that do not stay."""
    found: List[int] = []
    behind = 0
    for piece in pieces:
        if isinstance(piece, UnchangedLines):
            found += range(behind, piece.first)
            behind = piece.end
    return found + list(range(behind, count))


def applied(old: bytes, told: bytes) -> bytes:
    """The manifest that a difference makes of ``old``; its digest is to be proved.

    Raises:
        BadManifest: it is no difference of this manifest.
    """
    lines = lines_of(old)
    return b"".join(line + b"\n" for line in spliced(lines, pieces_of(told, len(lines)), lambda line: line))
