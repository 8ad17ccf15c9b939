"""Hosts that did not answer when an elastic run began join it once they do, while a terminal follows it.

Not here: how a host joins (launch/join.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from clusterddp.errors import ClusterddpError, UnreachableError
from clusterddp.runs.background import repeated

if TYPE_CHECKING:
    import contextlib
    import threading
    from collections.abc import Callable, Sequence

    from clusterddp.runs.run import Run

LOOK = 20.0  # seconds between two attempts to reach them


class Joins(Protocol):
    """What is needed of a Cluster."""

    def join(self, run: Run, hosts: Sequence[str]) -> Any:
        """Let hosts take part in a live run."""


def awaited(cluster: Joins, run: Run, notify: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
    """While the block runs, look for the hosts that were left out at the run's start, and let them join."""

    def look(host: str, over: threading.Event) -> bool:
        try:
            cluster.join(run, [host])
        except UnreachableError:
            return True
        except ClusterddpError as error:  # it is there and cannot take part, or the run takes nobody any more
            if not over.is_set():
                notify(f"{host} cannot join: {error}")
            return False
        notify(f"{host} joins; `clusterddp logs --follow {run.id}` shows its lines")
        return False

    return repeated(run.record.get("left_out", ()), look, every=LOOK)
