"""The log streams of a run's hosts, and whether the machines that send them still answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.logs.incoming import check_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterddp.hosts.client import Host
    from clusterddp.logs.checked_frames import LogFrame
    from clusterddp.logs.selection import Position, Selection


class Streams:
    """Opens each host's stream of the selected lines of one attempt, at a position to go on from. Thread-safe.

    ``spool`` finds that attempt's folder on a host; ``reader`` opens a connection that can read the host's files.
    """

    def __init__(
        self, run: str, attempt: int, spool: Callable[[str], str], reader: Callable[[str], Host], selection: Selection
    ) -> None:
        self._run, self._attempt, self._selection = run, attempt, selection
        self._spool, self._reader = spool, reader
        self._readers: dict[str, Host] = {}  # by host, the connection used last

    def __call__(self, host: str, at: Position) -> Iterator[LogFrame]:
        """Yield the frames of a host's lines; raises HostError if the lines cannot be read, or are damaged."""
        args = self._selection.args(self._spool(host), self._selection.resume_position(host, at))
        reader = self._readers[host] = self._reader(host)
        return check_frames(reader.stream("tail", args), host, self._run, self._attempt)

    def silence(self, host: str) -> float | None:
        """Return the seconds since data last came from the machine that sends a host's lines; None if never."""
        reader = self._readers.get(host)
        return reader.silence if reader else None

    def connected(self, host: str) -> bool:
        """Return whether there is a connection to the machine that sends a host's lines."""
        reader = self._readers.get(host)
        return reader is not None and not reader.lost

    def ping(self, host: str) -> None:
        """Ping the machine that sends a host's lines; do not wait for the answer."""
        reader = self._readers.get(host)
        if reader and not reader.lost:
            reader.send_ping()

    def close_connection(self, host: str, reason: str) -> None:
        """Close the connection to the sender of a host's lines; the stream breaks, and is reopened over another."""
        reader = self._readers.get(host)
        if reader and not reader.lost:
            reader.close(reason)
