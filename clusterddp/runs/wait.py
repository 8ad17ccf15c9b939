"""Wait for a run's end without reading its lines, by asking its hosts twice a second."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, RunError, UnreachableError, single_errors
from clusterddp.runs.ending import LOST_AFTER, SILENCE_LIMIT, clock_time
from clusterddp.runs.run_on_hosts import BRIEF, gather
from clusterddp.runs.view.run_view import run_views
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.runs.run_on_hosts import RunOnHosts, Site
    from clusterddp.runs.view.run_view import RunView
    from clusterddp.runs.view.verdict_lines import Verdict

POLL_INTERVAL = 0.5  # seconds between two polls of a run's hosts
REPORT_AFTER = 10.0  # seconds of silence after which the silent hosts are reported
FIND_TIMEOUT = 10.0  # seconds for any host to report the run; then all are waited for, as long as connections may take
_ID = re.compile(r"[a-z0-9]{10}")  # a full run id: only that selects the same run whichever hosts answer


def find_soon(site: Site, reference: str) -> RunView | None:
    """Return the run with this id as soon as any host reports it; None if the caller has to search further."""
    if not _ID.fullmatch(reference):
        return None
    began = time.monotonic()
    while True:
        try:
            reports, silent = gather(site, reference, None, BRIEF, quiet=True, patience=SILENCE_LIMIT)
            answered = not silent
        except ClusterddpError:  # no host has answered; the further search reports it
            reports, silent, answered = [], [], False
        own_reports = [report for report in reports if report.run == reference]
        if own_reports:
            (view,) = run_views(own_reports, silent, {})
            return view
        waited = time.monotonic() - began
        if answered or waited < SILENCE_LIMIT or waited >= FIND_TIMEOUT:  # so early: all have refused at once
            return None
        time.sleep(POLL_INTERVAL)


def wait_for(run: RunOnHosts, notify: Callable[[str], None], timeout: float | None = None) -> Verdict:
    """Poll until the run has ended. A host out of reach may come back, so it is waited for like the run itself.

    If the hosts that answer have saved how the run ended, and it cannot go on elsewhere, the others are not waited for.
    ``notify`` receives a line when hosts have not answered for a while. Raises RunError if the run has not ended after
    ``timeout`` seconds, or no host that answers knows it.
    """
    deadline = None if timeout is None else time.monotonic() + timeout

    def check_deadline(_line: str = "") -> None:
        if deadline is not None and time.monotonic() >= deadline:
            raise RunError(f"run {run.id} has not ended in {timeout:g} s")

    silence = _SilenceReporter(run.id, notify)
    lost_since: float | None = None  # since when all but silent hosts have ended
    brought = 0  # the last attempt whose hosts were brought the values of the run's secrets
    while True:
        view = _query_view(run)
        if run.secrets and view and view.live and view.attempt > brought:
            brought = run.at(view).begun(check_deadline).attempt
            continue
        silence.note(view)
        verdict = view.verdict() if view else None
        if view and verdict:
            lost_since = lost_since or time.monotonic()
            if not view.silent or view.settled or time.monotonic() - lost_since > LOST_AFTER:
                return run.watched(view) or verdict
        if view and not view.silent:
            lost_since = None
        check_deadline()
        time.sleep(POLL_INTERVAL)


def _query_view(run: RunOnHosts) -> RunView | None:
    """Return the run as its hosts report it; None while none of them answers."""
    try:
        view = run.view(brief=True, quiet=True, patience=SILENCE_LIMIT)
        return view if view.live else run.view(quiet=True, patience=SILENCE_LIMIT)
    except ClusterddpError as error:
        if not nobody_answers(error):
            raise
        return None


def nobody_answers(error: ClusterddpError) -> bool:
    """Whether an error only means that hosts do not answer at the moment, so that they are worth asking again."""
    return any(isinstance(one, UnreachableError) for one in single_errors(error))


class _SilenceReporter:
    """Reports which hosts have not answered for a while, once per silence."""

    def __init__(self, run: str, notify: Callable[[str], None]) -> None:
        self._run, self._notify = run, notify
        self._since: dict[str, float] = {}  # host, or an empty name for all of them → since when (epoch)
        self._reported: set[str] = set()

    def note(self, view: RunView | None) -> None:
        """Record the latest view of the run; None: no host answered."""
        silent = [""] if view is None else list(view.silent)
        for name in self._since.keys() - set(silent):
            del self._since[name]
            self._reported.discard(name)
        now = time.time()
        for name in silent:
            self._since.setdefault(name, now)
        due = [name for name in silent if now - self._since[name] > REPORT_AFTER and name not in self._reported]
        if due:
            self._reported.update(due)
            names = folded_names(due) if view else f"no host of run {self._run}"
            verb = "do" if due[1:] else "does"
            words = f"{names} {verb} not answer" if view else f"{names} answers"
            self._notify(f"{words} since {clock_time(min(self._since[name] for name in due))}; asking on")
