"""Lease renewal for ``--on-disconnect stop``: every host of the run is told that the operator is still there.

One host that hears it is enough, the supervisors tell each other; they stop the run after 60 s without one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError
from clusterddp.runs.background import repeated_on_hosts

if TYPE_CHECKING:
    import threading

    from clusterddp.runs.run import Run

RENEWAL = 10.0  # seconds between two renewals
ANSWER = 20.0  # seconds for a host to take one


def lease_renewal(run: Run) -> contextlib.AbstractContextManager[None]:
    """While the block runs, renew the run's lease; nothing for a run that outlives its terminal."""

    def renew(host: str, _: threading.Event) -> bool:
        with contextlib.suppress(ClusterddpError):  # out of reach; the next renewal tries again
            run.reader(host).call("renew", {"run": run.id, "host": host}, timeout=ANSWER)
        return True

    return repeated_on_hosts(run.spools if run.record.on_disconnect == "stop" else (), renew, every=RENEWAL)
