"""One request to a helper and its answers; no more of them is kept than was granted."""

from __future__ import annotations

import queue

from clusterddp.hosts.answers import FRAME
from clusterddp.remote.shared.wire.frames import CREDIT, MAX_FRAME, PER_FRAME, Frame, Header, ProtocolError

_MOST_GRANTS = 1 << 15  # credit frames that may be queued; no credit bounds them
_OVERDRAFT = 2 * MAX_FRAME  # a helper may send a whole frame on its last byte of credit, and its end without any
_MOST_HEADERS = 1 << 20  # bytes of headers beyond FRAME each: positions of about ten thousand log files


class Exchange:
    """One request: its id, the frames received for it, and whether its last frame was read."""

    def __init__(self, ident: int) -> None:
        self.ident = ident
        self.frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self.ended = False
        self.granted = CREDIT  # bytes of credit the host has had
        self.sent = self.received = 0  # bytes: of whole frames sent, of bodies received
        self.given = 0  # bytes of bodies that the host was sent, or is being sent
        self._paid = 0  # bytes of credit the host has used
        self._headers = 0  # bytes of long headers
        self._credit_received = 0  # bytes that the host has granted us

    @property
    def late(self) -> int:
        """The most bytes that may still arrive after the request is abandoned: what was granted, with frame headers."""
        return 2 * (self.granted + _OVERDRAFT - self._paid)

    def take(self, frame: Frame, size: int) -> None:
        """Queue a frame of ``size`` bytes for the thread that waits for it; raises ProtocolError."""
        header = frame.header
        if frame.kind not in ("data", "end", "error", "credit"):
            raise ProtocolError(f"it answers with another frame: {str(header)[:80]}")
        self.received += len(frame.body)
        self._headers += max(0, size - len(frame.body) - FRAME)
        if frame.kind == "credit":
            self._take_grant(header)
        else:
            self._paid += len(frame.body) + PER_FRAME
        if self._paid > self.granted + _OVERDRAFT or self._headers > _MOST_HEADERS:
            raise ProtocolError("it sends more than was asked for")
        self.frames.put(frame)

    def _take_grant(self, header: Header) -> None:
        grant = header.get("n", 0)
        if type(grant) is not int or grant <= 0:
            raise ProtocolError(f"it answers with another frame: {str(header)[:80]}")
        self._credit_received += grant
        if self._credit_received > self.given or self.frames.qsize() > _MOST_GRANTS:
            raise ProtocolError("it grants more than it was sent")


class Strays:
    """A limit on frames that belong to no current request, which arrive late after a request was abandoned."""

    def __init__(self) -> None:
        self._left = 1 << 20  # bytes that may still come

    def allow(self, size: int) -> None:
        """Allow ``size`` more bytes."""
        self._left += size

    def take(self, size: int) -> None:
        """Count one frame of ``size`` bytes; raises ProtocolError if more bytes came than were allowed."""
        self._left -= size + FRAME
        if self._left < 0:
            raise ProtocolError("it sends more than was asked for")
