"""One request to a helper, as its answers come in: no more is kept of them than was granted."""

from __future__ import annotations

import queue

from clusterddp.hosts.answers import FRAME
from clusterddp.remote.shared.wire.frames import CREDIT, MAX_FRAME, PER_FRAME, Frame, Header, ProtocolError

_MOST_GRANTS = 1 << 15  # frames that grant us more, which no credit bounds, that may wait
_OVERDRAFT = 2 * MAX_FRAME  # a helper sends a whole frame on its last byte of credit, and its end unpaid
_MOST_HEADERS = 1 << 20  # bytes of headers beyond FRAME each: the places of some ten thousand files of logs


class Exchange:
    """One request: its id, the frames that came for it, and whether its last one was taken."""

    def __init__(self, ident: int) -> None:
        self.ident = ident
        self.frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self.ended = False
        self.granted = CREDIT  # what the host may have sent, as it is paid for
        self.sent = self.received = 0  # bytes, frames whole and bodies
        self.given = 0  # bytes of bodies that the host was sent, or is being sent
        self._paid = 0  # by the host, for the frames it has sent
        self._headers = 0  # bytes of long headers
        self._heard = 0  # bytes that the host has granted us

    @property
    def late(self) -> int:
        """Bytes that may still come of it once nobody waits for more: what was granted, in frames of any length."""
        return 2 * (self.granted + _OVERDRAFT - self._paid)

    def take(self, frame: Frame, size: int) -> None:
        """Keep a frame, which had so many bytes, for whoever waits for it.

        Raises:
            ProtocolError: it is none of ours, or more than was granted.
        """
        header = frame.header
        if header["kind"] not in ("data", "end", "error", "credit"):
            raise ProtocolError(f"it answers with another frame: {str(header)[:80]}")
        self.received += len(frame.body)
        self._headers += max(0, size - len(frame.body) - FRAME)
        if header["kind"] == "credit":
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
        self._heard += grant
        if self._heard > self.given or self.frames.qsize() > _MOST_GRANTS:
            raise ProtocolError("it grants more than it was sent")


class Strays:
    """Frames that belong to no request that is there: a few are what was still on its way when a request was left."""

    def __init__(self) -> None:
        self._left = 1 << 20  # bytes that may still come

    def allow(self, size: int) -> None:
        """So many bytes more may come."""
        self._left += size

    def take(self, size: int) -> None:
        """One came, of so many bytes.

        Raises:
            ProtocolError: these are more than were ever asked for.
        """
        self._left -= size + FRAME
        if self._left < 0:
            raise ProtocolError("it sends more than was asked for")
