"""One request to a helper, as its answers come in: no more is kept of them than was granted.

Not here: who waits for them (client.py).
"""

from __future__ import annotations

import queue

from clusterddp.remote.shared.frames import CREDIT, MAX_FRAME, Frame, ProtocolError

_MOST_EMPTY = 1 << 16  # frames without a body, which no credit bounds, that may wait
_OVERDRAFT = 2 * MAX_FRAME  # a helper sends a whole frame on its last byte of credit, and its end unpaid


class Exchange:
    """One request: its id, the frames that came for it, and whether its last one was taken."""

    def __init__(self, ident: int) -> None:
        self.ident = ident
        self.frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self.ended = False
        self.granted = CREDIT  # body bytes that the host may have sent
        self.sent = self.received = 0  # bytes

    def take(self, frame: Frame) -> None:
        """Keep a frame for whoever waits for it.

        Raises:
            ProtocolError: it is none of ours, or more than was granted.
        """
        header = frame.header
        grant = header.get("n", 0)
        if header["kind"] not in ("data", "end", "error", "credit") or type(grant) is not int or grant < 0:
            raise ProtocolError(f"it answers with another frame: {str(header)[:80]}")
        self.received += len(frame.body)
        if self.received > self.granted + _OVERDRAFT or (not frame.body and self.frames.qsize() > _MOST_EMPTY):
            raise ProtocolError("it sends more than was asked for")
        self.frames.put(frame)
