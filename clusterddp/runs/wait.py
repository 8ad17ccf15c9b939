"""Waiting for a run's end without reading its lines: its hosts are asked twice a second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from clusterddp.errors import ClusterddpError, HostsError, RunError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.runs.verdict import Verdict
    from clusterddp.runs.view import RunView

LOOK = 0.5  # seconds between looks at a run's hosts
LOST_AFTER = 30.0  # seconds a host is still asked when all others have ended


class Viewed(Protocol):
    """The part of a ``Run`` that is asked."""

    id: str

    def view(self, *, brief: bool = False) -> RunView:
        """The run as its hosts tell it now."""

    def watched(self, view: RunView) -> Verdict | None:
        """The verdict on a run that was watched to its end, which the project keeps."""


def wait_for(run: Viewed, notify: Callable[[str], None], timeout: float | None = None) -> Verdict:
    """Ask until the run has ended. A host out of reach may come back: it is waited for like the run itself.

    Args:
        run: Which.
        notify: Takes a line each time no host answers.
        timeout: Seconds; None: as long as it takes.

    Raises:
        RunError: it has not ended in that time, or no host that answers knows it.
    """
    until = None if timeout is None else time.monotonic() + timeout
    silent_since: float | None = None
    while True:
        view = _view(run, notify)
        verdict = view.verdict() if view else None
        if view and not view.silent:
            silent_since = None
        elif verdict:
            silent_since = silent_since or time.monotonic()
        settled = view and view.kept and view.kept.by_majority  # who does not answer changes nothing of it
        if view and verdict and (settled or silent_since is None or time.monotonic() - silent_since > LOST_AFTER):
            return run.watched(view) or verdict
        if until is not None and time.monotonic() >= until:
            raise RunError(f"run {run.id} has not ended in {timeout:g} s")
        time.sleep(LOOK)


def _view(run: Viewed, notify: Callable[[str], None]) -> RunView | None:
    """The run as its hosts tell it; None while none of them answers."""
    try:
        view = run.view(brief=True)
        return view if view.live else run.view()
    except ClusterddpError as error:
        errors = error.errors if isinstance(error, HostsError) else [error]
        if isinstance(error, RunError) or not any(isinstance(one, UnreachableError) for one in errors):
            raise
        notify(f"{error}; trying again")
        return None
