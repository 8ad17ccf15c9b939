"""How long a worker may take to end: the run's grace, but little of it where another host of its round is gone.

torchrun ends the workers before it starts them again without a lost host. These hang in a collective with it then, and
what they would save at a SIGTERM they cannot agree on any more; so they get what supervisors give for a lost host.

Not here: who is gone (rendezvous/gone.py), the signals (worker/shim.py).
"""

import os
from typing import Callable, FrozenSet

from ..rendezvous.gone import gone_hosts

LOST_GRACE = 1.0  # seconds


def grace(spool: str, seconds: float) -> Callable[[], float]:
    """What gives the seconds between a SIGTERM of then and SIGKILL.

    Args:
        spool: Of the node. Who is gone by now takes no part in the worker's round.
        seconds: The run's grace.
    """
    path = os.path.join(spool, "peers.json")
    before = _gone(path)
    return lambda: min(seconds, LOST_GRACE) if _gone(path) - before else seconds


def _gone(path: str) -> FrozenSet[str]:
    return gone_hosts(path) or frozenset()
