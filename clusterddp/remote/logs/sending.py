"""Chunks of log files as frames of the operation ``tail``: short ones of a worker's two files share a frame.

What such a frame holds is said, and checked, in shared/log_frames.py. Not here: which chunks (logs/tail.py).
"""

from typing import Any, Dict, List, Tuple

from ..helper.request import Request
from ..shared.frames import MAX_BODY
from ..shared.log_frames import MOST_PIECES
from .files import Chunk, LogFile


class ChunkSender:
    """Sends chunks in the order given; short ones are buffered and sent together, at the latest by ``flush``.

    Args:
        request: Where to.
        offset_ns: By how much this host's clock is ahead of the operator's.
    """

    def __init__(self, request: Request, offset_ns: int) -> None:
        self._request, self._offset_ns = request, offset_ns
        self._first: Dict[str, Tuple[LogFile, Chunk]] = {}  # file → its first chunk that waits
        self._next: Dict[str, int] = {}
        self._pieces: List[int] = []  # sizes, of the two files in turn
        self._bodies: List[bytes] = []
        self._size = 0
        self._latest = ""  # the file of the last piece

    def send(self, file: LogFile, chunk: Chunk) -> None:
        """Send a chunk at once, in a frame of its own."""
        self.flush()
        header = self._header(file, chunk, chunk.next)
        if chunk.body[-1:] != b"\n":
            header["open"] = True
        self._request.send(chunk.body, **header)

    def take(self, file: LogFile, chunk: Chunk) -> None:
        """Buffer a chunk to send it in one frame with adjacent ones; one that ends in mid-line is sent at once."""
        if chunk.body[-1:] != b"\n" or len(chunk.body) > MAX_BODY // 2:
            self.send(file, chunk)
            return
        if self._bodies and not self._goes_with(file, chunk):
            self.flush()
        self._first.setdefault(file.name, (file, chunk))
        self._next[file.name] = chunk.next
        if file.name == self._latest:
            self._pieces[-1] += len(chunk.body)
        else:
            self._pieces.append(len(chunk.body))
        self._latest = file.name
        self._bodies.append(chunk.body)
        self._size += len(chunk.body)

    def _goes_with(self, file: LogFile, chunk: Chunk) -> bool:
        if self._size + len(chunk.body) > MAX_BODY or len(self._pieces) >= MOST_PIECES:
            return False
        other, first = self._first.get(file.name) or next(iter(self._first.values()))
        if first.time != chunk.time:  # a frame has one time, by which those of several hosts are merged
            return False
        if other is file:
            return self._next[file.name] == chunk.offset
        return (other.start, other.local_rank) == (file.start, file.local_rank)

    def flush(self) -> None:
        """Send the buffered chunks as one frame."""
        if not self._bodies:
            return
        headers = [self._header(file, chunk, self._next[name]) for name, (file, chunk) in self._first.items()]
        if len(headers) > 1:
            headers[0]["beside"] = {name: headers[1][name] for name in ("offset", "next", "time") if name in headers[1]}
            headers[0]["pieces"] = self._pieces
        body = b"".join(self._bodies)
        self._first, self._next, self._pieces, self._bodies, self._size, self._latest = {}, {}, [], [], 0, ""
        self._request.send(body, **headers[0])

    def dropped(self, file: LogFile, chunk: Chunk, count: int) -> None:
        """Report that ``count`` bytes before a chunk were deleted from the log."""
        self.flush()
        self._request.send(b"", dropped=count, **self._header(file, chunk, chunk.offset))

    def _header(self, file: LogFile, chunk: Chunk, following: int) -> Dict[str, Any]:
        """A data frame's header: ``time`` is the operator's; ``open`` when the body ends within a line."""
        header: Dict[str, Any] = {
            "file": file.name,
            "start": file.start,
            "local_rank": file.local_rank,
            "rank": file.rank,
            "stream": file.stream,
            "offset": chunk.offset,
            "next": following,
        }
        if chunk.time is not None:
            header["time"] = chunk.time - self._offset_ns
        return header
