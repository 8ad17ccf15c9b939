"""One request to a helper and its answers; a helper that sends more than it was granted is an error."""

from __future__ import annotations

import queue

from clusterddp.hosts.answers import FRAME_COST
from clusterddp.remote.shared.wire.frames import CREDIT, MAX_FRAME, PER_FRAME, Frame, Header, ProtocolError

_MAX_QUEUED_GRANTS = 1 << 15  # credit frames that may be queued; no credit bounds them
_OVERDRAFT = 2 * MAX_FRAME  # a helper may send a whole frame on its last byte of credit, and its end without any
_MAX_HEADER_BYTES = 1 << 20  # bytes of headers beyond FRAME_COST each: positions of about ten thousand log files


class Exchange:
    """One request: its id, the frames received for it, and whether its last frame was read."""

    def __init__(self, ident: int) -> None:
        self.ident = ident
        self.frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self.ended = False
        self.granted = CREDIT  # bytes of credit the host has had
        self.sent = self.received = 0  # bytes: of whole frames sent, of bodies received
        self.offered = 0  # bytes of bodies sent to the host, counted before they are written
        self._credit_used = 0  # bytes of credit the host has used
        self._headers = 0  # bytes of long headers
        self._credit_received = 0  # bytes that the host has granted us

    @property
    def max_late_bytes(self) -> int:
        """The most bytes that may still arrive after the request is abandoned: what was granted, with frame headers."""
        return 2 * (self.granted + _OVERDRAFT - self._credit_used)

    def take(self, frame: Frame, size: int) -> None:
        """Queue a frame of ``size`` bytes for the thread that waits for it; raises ProtocolError."""
        header = frame.header
        if frame.kind not in ("data", "end", "error", "credit"):
            raise ProtocolError(f"it answers with another frame: {str(header)[:80]}")
        self.received += len(frame.body)
        self._headers += max(0, size - len(frame.body) - FRAME_COST)
        if frame.kind == "credit":
            # Without what else the header holds: no credit bounds the memory of that while they are queued.
            frame = Frame({"kind": "credit", "n": self._take_grant(header)}, b"")
        else:
            self._credit_used += len(frame.body) + PER_FRAME
        if self._credit_used > self.granted + _OVERDRAFT or self._headers > _MAX_HEADER_BYTES:
            raise ProtocolError("it sends more than was asked for")
        self.frames.put(frame)

    def _take_grant(self, header: Header) -> int:
        """Count and return what the host lets us send; raises ProtocolError if that is more than we have offered."""
        grant = header.get("n", 0)
        if type(grant) is not int or grant <= 0:
            raise ProtocolError(f"it answers with another frame: {str(header)[:80]}")
        self._credit_received += grant
        if self._credit_received > self.offered or self.frames.qsize() > _MAX_QUEUED_GRANTS:
            raise ProtocolError("it grants more than it was sent")
        return grant


class LateFrames:
    """A limit on the bytes of frames that arrive after their request was abandoned."""

    def __init__(self) -> None:
        self._allowed = 1 << 20  # bytes that may still come

    def allow(self, size: int) -> None:
        """Allow ``size`` more bytes."""
        self._allowed += size

    def take(self, size: int) -> None:
        """Count one frame of ``size`` bytes; raises ProtocolError if more bytes came than were allowed."""
        self._allowed -= size + FRAME_COST
        if self._allowed < 0:
            raise ProtocolError("it sends more than was asked for")
