"""Keep a run that is to end with its terminal: tell its hosts every few seconds that the operator is there.

Beside everything else, in a thread a host: neither a paused terminal nor another host that is out of reach may end
a run. One host that hears it is enough, the supervisors tell each other.
Not here: what happens when nobody is heard (remote/supervisor/stop_conditions.py).
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.runs.run import Run

RENEWAL = 10.0  # seconds between two renewals
ANSWER = 20.0  # seconds for a host to take one


@contextlib.contextmanager
def renewed(run: Run) -> Iterator[None]:
    """While the block runs, the run's lease is renewed; nothing for a run that outlives its terminal."""
    over = threading.Event()

    def renew(host: str) -> None:
        with contextlib.suppress(ClusterddpError):  # out of reach; the next renewal tries again
            run.cluster.host(host).call("renew", {"run": run.id, "host": host}, timeout=ANSWER)

    def keep(host: str) -> None:
        while not over.wait(RENEWAL):
            renew(host)

    for host in run.spools if run.record.get("on_disconnect") == "stop" else ():
        threading.Thread(target=keep, args=(host,), name=f"lease {host}", daemon=True).start()
    try:
        yield
    finally:
        over.set()
