"""Let hosts that did not answer when an elastic run started join it later, while a terminal follows the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, UnreachableError
from clusterddp.runs.background import repeated_on_hosts

if TYPE_CHECKING:
    import contextlib
    import threading
    from collections.abc import Callable, Sequence

    from clusterddp.runs.run import Run

INTERVAL = 20.0  # seconds between two attempts to reach them


def joining_late_hosts(
    run: Run, join: Callable[[Run, Sequence[str]], object], notify: Callable[[str], None]
) -> contextlib.AbstractContextManager[None]:
    """While the block runs, try every ``INTERVAL`` s to join each host that was left out at the run's start.

    ``join`` lets hosts take part in a live run.
    """

    def try_to_join(host: str, over: threading.Event) -> bool:
        try:
            join(run, [host])
        except UnreachableError:
            return True
        except ClusterddpError as error:  # the host answers but cannot take part, or the run takes no more hosts
            if not over.is_set():
                notify(f"{host} cannot join: {error}")
            return False
        notify(f"{host} joins; `clusterddp logs --follow {run.id}` shows its lines")
        return False

    return repeated_on_hosts(run.record.left_out, try_to_join, every=INTERVAL)
