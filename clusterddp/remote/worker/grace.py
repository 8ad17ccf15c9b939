"""How long a worker may take to end: the run's grace, but little of it where another host of its round is gone.

torchrun ends the workers before it starts them again without a lost host. These hang in a collective with it then, and
what they would save at a SIGTERM they cannot agree on any more; so they get what supervisors give for a lost host.

Who is gone stands in ``peers.json`` of the spool, which this node's supervisor keeps.
"""

import json
import os
import signal
import time
from typing import FrozenSet

from ..shared.run.plan import PEERS

LOST_GRACE = 1.0  # seconds
LOOK = 0.25  # seconds between looks at who is gone: that may be known here only after the SIGTERM
TIMER = signal.SIGALRM  # what comes at each look


class Grace:
    """One worker's, from its start on: who is gone by then takes no part in its round.

    Args:
        spool: Of the node.
        seconds: The run's grace.
    """

    def __init__(self, spool: str, seconds: float) -> None:
        self._path, self._seconds = os.path.join(spool, PEERS), seconds
        self._before = self._gone()
        self._end = 0.0  # when the first SIGTERM came and the run's own grace; 0: none came

    def begin(self) -> None:
        """SIGTERM was sent."""
        if not self._end:
            self._end = time.monotonic() + self._seconds
            self._look_again()

    def is_over(self) -> bool:
        """To be asked at each ``TIMER``: whether SIGKILL is due; if not there is another one."""
        end = self._end
        if self._gone() - self._before:
            end = min(end, end - self._seconds + LOST_GRACE)
        over = time.monotonic() >= end
        if not over:
            self._look_again()
        return over

    def _look_again(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(0.001, min(LOOK, self._end - time.monotonic())))

    def _gone(self) -> FrozenSet[str]:
        try:
            with open(self._path, encoding="utf-8") as stream:
                return frozenset(json.load(stream)["gone"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # not there, or damaged
            return frozenset()
