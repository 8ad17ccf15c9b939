"""What one host tells of the nodes it has of runs: asked, and checked where it enters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError
from clusterddp.remote.shared.node_reply import read_nodes

if TYPE_CHECKING:
    from clusterddp.hosts.client import Host


def nodes_of(host: Host, run: str) -> list[dict[str, Any]]:
    """The nodes of the runs whose ids begin so; of none by that host but its own.

    Raises:
        HelperError: the answer is damaged, or speaks of another host or run.
        UnreachableError: the connection broke.
    """
    answer = host.call("runs", {"run": run, "hosts": [host.name]})
    try:
        return read_nodes(answer, host.name, run)
    except ValueError as error:
        raise HelperError(host.name, f"what it tells of runs is damaged: {error}") from error
