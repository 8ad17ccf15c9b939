"""Let hosts that did not answer when an elastic run started join it later, while a terminal follows the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from clusterddp.errors import ClusterddpError, UnreachableError
from clusterddp.runs.background import repeated_on_hosts

if TYPE_CHECKING:
    import contextlib
    import threading
    from collections.abc import Callable, Sequence

    from clusterddp.runs.run import Run

INTERVAL = 20.0  # seconds between two attempts to reach them


class CanJoin(Protocol):
    """The part of ``Cluster`` that this module uses."""

    def join(self, run: Run, hosts: Sequence[str]) -> Any:
        """Let hosts take part in a live run."""


def joining_late_hosts(
    cluster: CanJoin, run: Run, notify: Callable[[str], None]
) -> contextlib.AbstractContextManager[None]:
    """While the block runs, try every ``INTERVAL`` s to join each host that was left out at the run's start."""

    def try_to_join(host: str, over: threading.Event) -> bool:
        try:
            cluster.join(run, [host])
        except UnreachableError:
            return True
        except ClusterddpError as error:  # the host answers but cannot take part, or the run takes no more hosts
            if not over.is_set():
                notify(f"{host} cannot join: {error}")
            return False
        notify(f"{host} joins; `clusterddp logs --follow {run.id}` shows its lines")
        return False

    return repeated_on_hosts(run.record.left_out, try_to_join, every=INTERVAL)
