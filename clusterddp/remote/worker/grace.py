"""How long a worker may take to end: the run's grace, but very little where another host of its round was lost.

torchrun ends the workers before it restarts them without a lost host. They then hang in a collective with that host and
can no longer agree on what to save at a SIGTERM; so they get the short grace that supervisors give for a lost host.

The lost hosts are listed in ``peers.json`` of the spool, which this node's supervisor writes.
"""

import json
import os
import signal
import time
from typing import FrozenSet

from ..shared.run.plan import PEERS

LOST_GRACE = 1.0  # seconds
CHECK_INTERVAL = 0.25  # seconds between looks at the lost hosts: one may become known here only after the SIGTERM
TIMER = signal.SIGALRM  # the signal for each look


class Grace:
    """The grace of one worker, whose start this is made at: hosts lost before take no part in its round.

    ``spool`` is the node's; ``seconds`` is the run's grace.
    """

    def __init__(self, spool: str, seconds: float) -> None:
        self._path, self._seconds = os.path.join(spool, PEERS), seconds
        self._lost_at_start = self._lost_hosts()
        self._end = 0.0  # end of the run's grace after the first SIGTERM; 0: none was sent

    def begin(self) -> None:
        """Start the grace, at the first SIGTERM."""
        if not self._end:
            self._end = time.monotonic() + self._seconds
            self._set_timer()

    def is_over(self) -> bool:
        """Whether SIGKILL is due; call it at each ``TIMER``. If not, another one is set."""
        end = self._end
        if self._lost_hosts() - self._lost_at_start:
            end = min(end, end - self._seconds + LOST_GRACE)
        over = time.monotonic() >= end
        if not over:
            self._set_timer()
        return over

    def _set_timer(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(0.001, min(CHECK_INTERVAL, self._end - time.monotonic())))

    def _lost_hosts(self) -> FrozenSet[str]:
        try:
            with open(self._path, encoding="utf-8") as stream:
                return frozenset(json.load(stream)["excluded"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # not there, or damaged
            return frozenset()
