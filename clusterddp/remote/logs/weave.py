"""Send many short lines of a worker's two files at once, in the order of the worker's marks."""

from typing import Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..shared.logs.log_frames import MAX_PIECES
from ..shared.wire.frames import MAX_BODY
from .output_files import LogChunk, LogFile

_NEWLINE = 10


class Woven(NamedTuple):
    """Whole lines of both files, in pieces that alternate between the files."""

    files: Tuple[LogFile, LogFile]  # the first piece's file, the other
    offsets: Tuple[int, int]  # where the pieces begin in each
    sizes: List[int]  # of the pieces
    body: bytes
    time: Optional[int]  # as a LogChunk's

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
    """Combine lines from the files' positions on into one frame, in order, and move the positions past them.

    ``files`` are stdout's and stderr's, ``lines`` the whole lines that follow in each, all with the same ``time``.
    ``marks`` are the sizes (of stdout's, of stderr's file) up to which was written in turn. The result has two pieces
    or more, up to the first that has bytes of both files or ends within a line; None if there are fewer.
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
        elif len(sizes) < MAX_PIECES:
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
