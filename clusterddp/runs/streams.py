"""The log streams of a run's hosts, and whether the machines that send them still answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.errors import UnreachableError
from clusterddp.logs.incoming import check_frames
from clusterddp.runs.ask_workers import find_spool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.hosts.client import Host
    from clusterddp.logs.checked_frames import LogFrame
    from clusterddp.logs.selection import Position, Selection
    from clusterddp.runs.run_on_hosts import RunOnHosts


class Streams:
    """Opens a host's stream of selected log lines of one attempt of a run, from a given position on. Thread-safe."""

    def __init__(self, run: RunOnHosts, selection: Selection) -> None:
        self._run, self._selection = run, selection
        self._readers: dict[str, Host] = {}  # by host, the connection used last

    def __call__(self, host: str, at: Position) -> Iterator[LogFrame]:
        """Yield the frames of a host's lines; raises HostError if the lines cannot be read, or are damaged."""
        spool = find_spool(self._run, host)  # of one that had not answered, or had not joined before
        if not spool:  # not known yet, and perhaps never: a caller that follows asks again
            raise UnreachableError(host, f"no part of attempt {self._run.attempt} is there")
        args = self._selection.args(spool, self._selection.resume_position(host, at))
        reader = self._readers[host] = self._run.reader(host)
        return check_frames(reader.stream("tail", args), host, self._run.id, self._run.attempt)

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
