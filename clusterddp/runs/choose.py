"""Choose the run that a command refers to (by id, prefix, name or none), and decide who may end it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import RunError
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import few

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.runs.run_view import RunView


_NAMED = 5  # runs in a message


@dataclass(frozen=True, kw_only=True, slots=True)
class Requester:
    """The user who gives a command (``user@machine``), and the id of the project it is given in.

    They own the runs that they started and the runs of their project, and may end those by name: so may the same person
    at another machine, or a colleague who shares the project's id. To end any other run on the same account, the full
    id is needed.
    """

    operator: str
    project: str | None

    def owns(self, view: RunView) -> bool:
        """Whether the requester owns the run."""
        return view.record.operator == self.operator or self.shares_project(view)

    def shares_project(self, view: RunView) -> bool:
        """Whether the run belongs to the requester's project."""
        return self.project is not None and view.record.project == self.project


def choose_run(
    found: Sequence[RunView],
    reference: str | None,
    requester: Requester,
    *,
    ending: bool = False,
    notify: Callable[[str], None] = lambda _: None,
) -> RunView:
    """Return the run that a command refers to. All commands choose runs with this function.

    A full id selects its run, whoever started it. A prefix of an id, or a name (the newest run of that name), selects a
    run of the requester; only if none matches, and only for reading, any other run. Without a reference, only runs of
    this project count: the only live one; for reading, the newest of several live ones, or else the last one.

    ``found`` are all runs, oldest first. ``ending``: the command ends or changes the run, rather than only reading it.
    ``notify`` receives a line that names the run chosen among several live ones. Raises ``RunError`` if no run matches,
    or several do.
    """
    exact = [view for view in found if view.run == reference]
    if exact:
        return exact[-1]
    if reference is None:
        own = [view for view in found if requester.shares_project(view)]
        others = [view for view in found if view not in own]
        return _only_live(own, others) if ending else _latest(own, others, notify)
    mine = [view for view in found if requester.owns(view)]
    theirs = [view for view in found if view not in mine]
    if not any(_matches(view, reference) for view in mine):
        if not ending:
            return _named(theirs if any(_matches(view, reference) for view in theirs) else found, reference)
        for view in reversed(theirs):  # a name means its newest
            if _matches(view, reference):
                message = f"{view.run} is a run of {view.record.operator}"
                raise RunError(message, remedy="its full id stops it all the same")
    return _named(mine, reference)


def array_names(record: RunRecord) -> tuple[str, ...]:
    """Return the names of the run's array: its runs' name without the index, and its id; empty outside an array."""
    return ((record.name or "").rpartition(".")[0], record.array) if record.array else ()


def array_runs(found: Sequence[RunView], reference: str) -> list[RunView]:
    """Return the runs of the newest array with this name or id, ordered by index; empty if there is no such array."""
    named = [view for view in found if reference in array_names(view.record)]
    newest = [view for view in named if view.record.array == named[-1].record.array]
    return sorted(newest, key=lambda view: (len(view.name), view.name))


def _matches(view: RunView, reference: str) -> bool:
    return reference in (view.record.name, _job(view)) or view.run.startswith(reference)


def _job(view: RunView) -> str | None:
    return view.job.number if view.job else None


def _latest(own: Sequence[RunView], others: Sequence[RunView], notify: Callable[[str], None]) -> RunView:
    """Return the newest live run of a project, or else its last run."""
    live = [view for view in own if view.live]
    if len(live) > 1:
        newest = f"run {_listed(live[-1:])}, the newest of {len(live)} that are live"
        notify(f"{newest}; name another: {_listed(live[:-1])}")
    if own:
        return (live or own)[-1]
    if not others:
        raise RunError("no run on these hosts")
    shown = few([f"{view.run} of {_whose(view)}" for view in reversed(others)], _NAMED)
    raise RunError(f"no run of this project; others on these hosts: {shown}", remedy="name the one that is meant")


def _only_live(mine: Sequence[RunView], theirs: Sequence[RunView]) -> RunView:
    live = [view for view in mine if view.live]
    if len(live) == 1:
        return live[0]
    if live:
        raise RunError(
            f"several runs are live: {_listed(live)}", remedy="name one, or `clusterddp stop --all` ends all"
        )
    others = [view for view in theirs if view.live]
    if others:
        listed = ", ".join(f"{view.run} of {_whose(view)}" for view in others)
        raise RunError(f"no run of this project is live here, but {listed}", remedy="a full id stops it all the same")
    raise RunError("no run is live on these hosts")


def _whose(view: RunView) -> str:
    label = view.record.label
    return f"{view.record.operator} in {label}" if label else str(view.record.operator)


def _named(found: Sequence[RunView], reference: str) -> RunView:
    named = [view for view in found if view.record.name == reference]
    prefixed = [view for view in found if view.run.startswith(reference)]
    jobs = [view for view in found if _job(view) == reference]
    if named or jobs:
        return (named or jobs)[-1]
    if len(prefixed) == 1:
        return prefixed[0]
    if prefixed:
        raise RunError(
            f"{reference!r} is the beginning of several runs: {_listed(prefixed)}", remedy="write more of it"
        )
    array = array_runs(found, reference)
    if array:
        raise RunError(
            f"{reference} is an array of {counted(len(array), 'run')}", remedy=f"name one of them: {array[0].name}"
        )
    raise RunError(f"no run {reference!r} on these hosts", remedy="`clusterddp runs --all` lists them")


def _listed(found: Sequence[RunView]) -> str:
    return ", ".join(f"{view.run} ({view.record.name})" if view.record.name else view.run for view in found)
