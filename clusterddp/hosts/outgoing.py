"""Data sent to an operation by another thread while its answers are read.

A frame is sent once there is any credit, so up to one frame more than the host has granted.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.wire.frames import CREDIT, MAX_BODY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Write = Callable[[Mapping[str, Any], bytes], object]


class Outgoing:
    """The operator's data for one operation; ``Host.stream`` attaches it while the operation runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._write: Write | None = None
        self._leave: Callable[[], object] = lambda: None
        self._credit = CREDIT
        self._early: list[Mapping[str, Any]] = []  # the headers of orders given before the operation began
        self._ended = False  # the operation has ended

    def attach(self, write: Write, leave: Callable[[], object] = lambda: None) -> None:
        """Start sending: ``write`` sends a frame of the operation, ``leave`` ends the reading of its answers.

        Orders that were given before are sent now. Raises HostError.
        """
        with self._changed:
            self._write, self._leave = write, leave
            self._changed.notify_all()
        for header in self._early:
            write({"kind": "data", **header}, b"")

    def detach(self) -> None:
        """Stop sending, as the operation has ended; threads that wait to send give up."""
        with self._changed:
            self._write, self._ended = None, True
            self._changed.notify_all()

    def grant(self, size: int) -> None:
        """Allow ``size`` more bytes, as the host has granted them."""
        with self._changed:
            self._credit += size
            self._changed.notify_all()

    def send(self, body: bytes) -> bool:
        """Send data, each frame once there is any credit; return whether the operation still runs. Raises HostError."""
        for piece in pieces([body]):
            with self._changed:
                self._changed.wait_for(lambda: self._ended or (self._write and self._credit > 0))
                self._credit -= len(piece)
                write = self._write
            if write is None:
                return False
            write({"kind": "data"}, piece)
        return True

    def order(self, **header: Any) -> None:
        """Send a frame that has only a header, which needs no credit, as soon as the operation runs."""
        with self._changed:
            write = self._write
            if write is None and not self._ended:
                self._early.append(header)
        if write is not None:
            write({"kind": "data", **header}, b"")

    def leave(self) -> None:
        """Abandon the operation, whatever the host does: end the reading of its answers."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._write)
        self._leave()

    def end(self) -> None:
        """Tell the host that no more data follows."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._write)
            write = self._write
        if write is not None:
            write({"kind": "end"}, b"")


def pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Split the data into pieces that fit in a frame."""
    for chunk in chunks:
        for start in range(0, len(chunk), MAX_BODY):
            yield chunk[start : start + MAX_BODY]
