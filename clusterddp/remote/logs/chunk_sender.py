"""Send chunks of log files as frames of the operation ``tail``."""

from typing import Any, Dict, Optional, Union

from ..helper.request import Request
from .output_files import LogChunk, LogFile
from .weave import Woven


class ChunkSender:
    """Sends chunks in the order given."""

    def __init__(self, request: Request, offset_ns: int) -> None:
        self._request, self._offset_ns = request, offset_ns

    def send(self, file: LogFile, chunk: Union[LogChunk, Woven]) -> None:
        """Send a chunk, or pieces of a worker's two files, in one frame."""
        if isinstance(chunk, Woven):
            self._send_woven(chunk)
            return
        header = self._header(file, chunk.offset, chunk.next, chunk.time)
        if chunk.body[-1:] != b"\n":
            header["open"] = True
        self._request.send(chunk.body, **header)

    def _send_woven(self, woven: Woven) -> None:
        (begin, other_begin), (end, other_end) = woven.offsets, woven.next
        header = self._header(woven.files[0], begin, end, woven.time)
        header["pieces"], header["second"] = woven.sizes, {"offset": other_begin, "next": other_end}
        if woven.time is not None:
            header["second"]["time"] = header["time"]
        self._request.send(woven.body, **header)

    def dropped(self, file: LogFile, chunk: LogChunk, count: int) -> None:
        """Report that ``count`` bytes before a chunk were deleted from the log."""
        self._request.send(b"", dropped=count, **self._header(file, chunk.offset, chunk.offset, chunk.time))

    def _header(self, file: LogFile, offset: int, following: int, time: Optional[int]) -> Dict[str, Any]:
        """A data frame's header; ``time`` is in the operator's clock."""
        header: Dict[str, Any] = {
            "file": file.name,
            "start": file.start,
            "local_rank": file.local_rank,
            "rank": file.rank,
            "stream": file.stream,
            "offset": offset,
            "next": following,
        }
        if time is not None:
            header["time"] = time - self._offset_ns
        return header
