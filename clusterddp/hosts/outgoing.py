"""What another thread sends to an operation while its answers are read: no more than the host has granted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.wire.frames import CREDIT, MAX_BODY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Write = Callable[[Mapping[str, Any], bytes], object]


class Outgoing:
    """The operator's data of one operation; ``Host.stream`` attaches it while the operation runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._write: Write | None = None
        self._leave: Callable[[], object] = lambda: None
        self._credit = CREDIT
        self._over = False  # the operation has ended

    @property
    def attached(self) -> bool:
        """Whether the operation runs."""
        return self._write is not None

    def attach(self, write: Write, leave: Callable[[], object] = lambda: None) -> None:
        """The operation has begun; ``write`` sends a frame of it, ``leave`` ends the reading of its answers."""
        with self._changed:
            self._write, self._leave = write, leave
            self._changed.notify_all()

    def detach(self) -> None:
        """The operation has ended: who waits to send gives up."""
        with self._changed:
            self._write, self._over = None, True
            self._changed.notify_all()

    def grant(self, size: int) -> None:
        """The host takes so many more bytes."""
        with self._changed:
            self._credit += size
            self._changed.notify_all()

    def send(self, body: bytes) -> bool:
        """Send data as the host takes it; whether the operation still runs.

        Raises:
            HostError: the connection broke.
        """
        for piece in pieces([body]):
            with self._changed:
                self._changed.wait_for(lambda: self._over or (self._write and self._credit > 0))
                self._credit -= len(piece)
                write = self._write
            if write is None:
                return False
            write({"kind": "data"}, piece)
        return True

    def order(self, **header: Any) -> bool:
        """Send a frame that carries no data and costs no credit; whether the operation runs, so that it arrives."""
        write = self._write
        if write is not None:
            write({"kind": "data", **header}, b"")
        return write is not None

    def leave(self) -> None:
        """Give the operation up, whatever the host does: who reads its answers is at their end."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._write)
        self._leave()

    def end(self) -> None:
        """Nothing more comes."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._write)
            write = self._write
        if write is not None:
            write({"kind": "end"}, b"")


def pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces that fit a frame."""
    for chunk in chunks:
        for start in range(0, len(chunk), MAX_BODY):
            yield chunk[start : start + MAX_BODY]
