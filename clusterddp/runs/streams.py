"""The log streams of a run's hosts, and whether the machines that send them still answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.errors import UnreachableError
from clusterddp.logs.incoming import check_frames
from clusterddp.remote.shared.verdict.node_report import NodeReport
from clusterddp.runs.run_on_hosts import gather

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
        args = self._selection.args(self._spool(host), self._selection.resume_position(host, at))
        reader = self._readers[host] = self._run.reader(host)
        return check_frames(reader.stream("tail", args), host, self._run.id, self._run.attempt)

    def _spool(self, host: str) -> str:
        """Return the attempt's folder on a host, which is asked for it if it had not answered or joined before."""
        run = self._run
        if spool := run.spools.get(host):
            return spool
        reports, silent = gather(run.cluster, run.id, {host})
        spools = [node.spool for node in reports if isinstance(node, NodeReport) and node.attempt == run.attempt]
        if not spools:  # not known yet, and perhaps never: a caller that follows asks again
            raise UnreachableError(host, "no answer" if silent else f"no part of attempt {run.attempt} is there")
        return spools[0]

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
