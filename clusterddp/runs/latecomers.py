"""Hosts that did not answer when an elastic run began join it when they do: looked for while a terminal follows it.

Not here: how a host joins (launch/join.py).
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterddp.api import Cluster
    from clusterddp.runs.run import Run

LOOK = 20.0  # seconds between two attempts to reach them


@contextlib.contextmanager
def awaited(cluster: Cluster, run: Run, notify: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, the hosts that were left out of the run's start are looked for."""
    over = threading.Event()

    def look(host: str) -> None:
        while not over.wait(LOOK):
            try:
                cluster.join(run, [host])
            except UnreachableError:
                continue
            except ClusterddpError as error:  # it is there and cannot take part, or the run takes nobody any more
                if not over.is_set():
                    notify(f"{host} cannot join: {error}")
                return
            notify(f"{host} joins; `clusterddp logs --follow {run.id}` shows its lines")
            return

    for host in run.record.get("left_out", ()):
        threading.Thread(target=look, args=(host,), name=f"await {host}", daemon=True).start()
    try:
        yield
    finally:
        over.set()
