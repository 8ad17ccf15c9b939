"""Follow a run: show its lines as they come, and say how it ended.

Not here: merging and drawing lines (logs/), who failed first (verdict.py), ending the other hosts when one has
failed (the supervisors do that among themselves: remote/control.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, UnreachableError
from clusterddp.logs.merge import Merge, backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.logs.merge import Event
    from clusterddp.logs.selection import Selection
    from clusterddp.run import Run
    from clusterddp.verdict import Verdict

LOST_AFTER = 30.0  # seconds a host is still looked for when all others have ended
SETTLE = 30.0  # seconds for the hosts' exit records after their logs have ended


class Follower:
    """One run being followed.

    Args:
        run: The run.
        selection: Which lines.
        show: Takes each batch of events to draw.
    """

    def __init__(self, run: Run, selection: Selection, show: Callable[[list[Event]], None]) -> None:
        self.run, self.selection, self.show = run, selection, show
        self._merge: Merge | None = None
        self._alone_since: float | None = None

    def follow(self) -> Verdict | None:
        """Until every host has ended or is lost; then the verdict, or None while the run goes on or was only read."""
        stream = self.run.tail(self.selection)
        with Merge(self.run.spools, stream, follow=self.selection.follow, retry=self._retry) as self._merge:
            for events in self._merge:
                self.show(events)
        return self._verdict() if self.selection.follow else None

    def _retry(self, attempt: int, error: ClusterddpError) -> float | None:
        """Look for a lost host for ever while others live; for a while when they have ended."""
        merge = self._merge
        if not isinstance(error, UnreachableError) or not self.selection.follow:
            return None
        if merge and len(merge.ended) >= len(self.run.spools) - 1:
            self._alone_since = self._alone_since or time.monotonic()
            if time.monotonic() - self._alone_since > LOST_AFTER:
                return None
        return backoff(attempt, error)

    def _verdict(self) -> Verdict | None:
        """The hosts' logs have ended; their exit records are there, or come at once."""
        deadline = time.monotonic() + SETTLE
        while True:
            verdict = self.run.view().verdict()
            if verdict or time.monotonic() > deadline:
                return verdict
            time.sleep(0.1)
