"""The streams of lines of a run's hosts, and whether anything still comes from who sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.logs.incoming import checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterddp.hosts.client import Host
    from clusterddp.logs.selection import Position, Selection
    from clusterddp.remote.shared.wire.frames import Frame


class Streams:
    """Opens a host's stream of the selected lines at a position, again after a break. Thread-safe.

    Args:
        run: The run's id.
        attempt: Of which attempt.
        spool: Finds that attempt's folder on a host.
        reader: Opens a helper that sees a host's files.
        selection: Which lines.
    """

    def __init__(
        self,
        run: str,
        attempt: int,
        spool: Callable[[str], str],
        reader: Callable[[str], Host],
        selection: Selection,
    ) -> None:
        self._run, self._attempt, self._selection = run, attempt, selection
        self._spool, self._reader = spool, reader
        self._readers: dict[str, Host] = {}  # by host, the one that was asked last

    def __call__(self, host: str, at: Position) -> Iterator[Frame]:
        """The frames of a host's lines.

        Raises:
            HostError: they cannot be had, or are damaged.
        """
        args = self._selection.args(self._spool(host), self._selection.resume_position(host, at))
        reader = self._readers[host] = self._reader(host)
        return checked(reader.stream("tail", args), host, self._run, self._attempt)

    def silence(self, host: str) -> float | None:
        """Seconds since something last came from who sends a host's lines; None where nothing ever has."""
        reader = self._readers.get(host)
        return reader.silence if reader else None

    def wake(self, host: str) -> None:
        """Ask who sends a host's lines for a sign of life; waits for nothing."""
        reader = self._readers.get(host)
        if reader and not reader.lost:
            reader.ask_for_life()

    def drop(self, host: str, reason: str) -> None:
        """End the connection to who sends a host's lines; its stream breaks, and is opened again over another."""
        reader = self._readers.get(host)
        if reader and not reader.lost:
            reader.close(reason)
