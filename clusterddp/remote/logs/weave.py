"""Many short lines of a worker's two files at once, in the order that its marks give them."""

from typing import Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..shared.run.log_frames import MOST_PIECES
from ..shared.wire.frames import MAX_BODY
from .output_files import LogChunk, LogFile

_NEWLINE = 10


class Woven(NamedTuple):
    """Whole lines of both files, in pieces of the one and the other in turn."""

    files: Tuple[LogFile, LogFile]  # the first piece's, the other
    offsets: Tuple[int, int]  # where they begin
    sizes: List[int]  # of the pieces
    body: bytes
    time: Optional[int]  # as a Chunk's

    @property
    def next(self) -> Tuple[int, int]:
        """The offsets after it."""
        return self.offsets[0] + sum(self.sizes[::2]), self.offsets[1] + sum(self.sizes[1::2])

    def split(self) -> Iterator[Tuple[LogFile, LogChunk]]:
        """Each piece as a chunk of its file."""
        offsets, begin = list(self.offsets), 0
        for number, size in enumerate(self.sizes):
            of = number % 2
            yield self.files[of], LogChunk(offsets[of], self.body[begin : begin + size], self.time)
            offsets[of] += size
            begin += size


def weave(
    files: Tuple[LogFile, LogFile], lines: Sequence[bytes], marks: Iterable[Tuple[int, int]], time: Optional[int]
) -> Optional[Woven]:
    """What a frame holds of the lines that begin where the files stand; moves the files past it.

    Args:
        files: stdout's, stderr's.
        lines: The bytes of whole lines that follow in each.
        marks: What follows in order: (offset in stdout's, in stderr's) up to which it was written.
        time: Of all these lines.

    Returns:
        Two pieces or more, up to the first that has bytes of both files or ends within a line; None if there are fewer.
    """
    begin = files[0].pos, files[1].pos
    at = list(begin)
    sizes: List[int] = []
    pieces: List[bytes] = []
    latest = -1
    room = MAX_BODY
    for mark in marks:
        stream = int(mark[0] <= at[0])
        size = mark[stream] - at[stream]
        if size <= 0:
            continue
        skipped = at[stream] - begin[stream]
        piece = lines[stream][skipped : skipped + size]
        room -= size
        if (not stream and mark[1] > at[1]) or len(piece) < size or piece[-1] != _NEWLINE or b"\r" in piece or room < 0:
            break
        if stream == latest:
            sizes[-1] += size
        elif len(sizes) < MOST_PIECES:
            sizes.append(size)
        else:
            break
        pieces.append(piece)
        at[stream] += size
        latest = stream
    if len(sizes) < 2:
        return None
    files[0].pos, files[1].pos = at
    first = latest ^ (len(sizes) + 1) % 2  # the last piece's, if the number of pieces is odd
    return Woven((files[first], files[1 - first]), (begin[first], begin[1 - first]), sizes, b"".join(pieces), time)
