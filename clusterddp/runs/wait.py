"""Waiting for a run's end without reading its lines: its hosts are asked twice a second.

A host that is silent already when the command begins holds it up no more than one that falls silent later.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from clusterddp.errors import ClusterddpError, HostsError, RunError, UnreachableError
from clusterddp.runs.ending import LOST_AFTER, SILENT, clock_time
from clusterddp.runs.node_answers import BRIEF, Wanted
from clusterddp.runs.run_view import run_views
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from clusterddp.runs.run_view import RunView
    from clusterddp.runs.verdict_lines import Verdict

R_co = TypeVar("R_co", covariant=True)  # a run, as its cluster holds it
LOOK = 0.5  # seconds between looks at a run's hosts
SAY = 10.0  # seconds of silence after which it is said who does not answer
SOON = 10.0  # seconds in which some host is to know the run, before all are waited for as long as a connection may take
_ID = re.compile(r"[a-z0-9]{10}")  # a whole run id; only that means the same run whoever else would answer


class Viewed(Protocol):
    """The part of a ``Run`` that is asked."""

    id: str

    def view(self, *, brief: bool = False, quiet: bool = False, patience: float) -> RunView:
        """The run as its hosts tell it now."""

    def watched(self, view: RunView) -> Verdict | None:
        """The verdict on a run that was watched to its end, which the project keeps."""


class Cluster(Protocol[R_co]):
    """The part of a ``Cluster`` that a run is looked for in."""

    def gather(
        self,
        run: str,
        hosts: Container[str] | None = None,
        wanted: Wanted = ...,
        *,
        quiet: bool = False,
        patience: float | None = None,
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """The run's nodes as the hosts tell them, and the hosts that do not answer."""

    def attach(self, view: RunView) -> R_co:
        """The run that a view is of."""


def find_soon(cluster: Cluster[R_co], reference: str) -> R_co | None:
    """The run of an id as soon as a host tells of it, whoever is silent; None where it has to be looked for further."""
    if not _ID.fullmatch(reference):
        return None
    began = time.monotonic()
    while True:
        try:
            told, silent = cluster.gather(reference, None, BRIEF, quiet=True, patience=SILENT)
        except ClusterddpError:  # no host has answered; whoever looks further says so
            told, silent = [], [""]
        nodes = [node for node in told if node["run"] == reference]
        if nodes:
            (view,) = run_views(nodes, silent, {})
            return cluster.attach(view)
        if not silent or not SILENT <= time.monotonic() - began < SOON:  # all have answered, or refused at once
            return None
        time.sleep(LOOK)


def wait_for(run: Viewed, notify: Callable[[str], None], timeout: float | None = None) -> Verdict:
    """Ask until the run has ended. A host out of reach may come back: it is waited for like the run itself.

    But where the hosts that answer have kept how the run ended, and it cannot go on elsewhere, nobody else is waited
    for.

    Args:
        run: Which.
        notify: Takes a line when hosts have not answered for a while.
        timeout: Seconds; None: as long as it takes.

    Raises:
        RunError: it has not ended in that time, or no host that answers knows it.
    """
    until = None if timeout is None else time.monotonic() + timeout
    silence = _Silence(run.id, notify)
    lost_since: float | None = None  # since when all but silent hosts have ended
    while True:
        view = _view(run)
        silence.note(view)
        verdict = view.verdict() if view else None
        if view and verdict:
            lost_since = lost_since or time.monotonic()
            if not view.silent or view.settled or time.monotonic() - lost_since > LOST_AFTER:
                return run.watched(view) or verdict
        if view and not view.silent:
            lost_since = None
        if until is not None and time.monotonic() >= until:
            raise RunError(f"run {run.id} has not ended in {timeout:g} s")
        time.sleep(LOOK)


def _view(run: Viewed) -> RunView | None:
    """The run as its hosts tell it; None while none of them answers."""
    try:
        view = run.view(brief=True, quiet=True, patience=SILENT)
        return view if view.live else run.view(quiet=True, patience=SILENT)
    except ClusterddpError as error:
        errors = error.errors if isinstance(error, HostsError) else [error]
        if isinstance(error, RunError) or not any(isinstance(one, UnreachableError) for one in errors):
            raise
        return None


class _Silence:
    """Says, once each time, which hosts have not answered for a while."""

    def __init__(self, run: str, notify: Callable[[str], None]) -> None:
        self._run, self._notify = run, notify
        self._since: dict[str, float] = {}  # host, or nobody's name for all of them → since when (epoch)
        self._said: set[str] = set()

    def note(self, view: RunView | None) -> None:
        """What was seen of the run now; None: no host answered."""
        silent = [""] if view is None else list(view.silent)
        for name in self._since.keys() - set(silent):
            del self._since[name]
            self._said.discard(name)
        now = time.time()
        for name in silent:
            self._since.setdefault(name, now)
        due = [name for name in silent if now - self._since[name] > SAY and name not in self._said]
        if due:
            self._said.update(due)
            names = folded_names(due) if view else f"no host of run {self._run}"
            verb = "do" if due[1:] else "does"
            words = f"{names} {verb} not answer" if view else f"{names} answers"
            self._notify(f"{words} since {clock_time(min(self._since[name] for name in due))}; asking on")
