"""Renew the lease of ``--on-disconnect stop``: tell every host of the run that the operator is still connected.

It is enough that one host receives it, because the supervisors pass it on; they stop the run after 60 s without one.
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
    """Renew the run's lease while the block runs; do nothing for a run that outlives its terminal."""

    def renew(host: str, _: threading.Event) -> bool:
        with contextlib.suppress(ClusterddpError):  # unreachable; the next renewal tries again
            run.reader(host).call("renew", {"run": run.id, "host": host}, timeout=ANSWER)
        return True

    return repeated_on_hosts(run.spools if run.record.on_disconnect == "stop" else (), renew, every=RENEWAL)
