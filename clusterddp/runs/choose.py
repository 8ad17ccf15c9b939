"""Choose the run that a command refers to (by id, prefix, name or none), and decide who may end it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import RunError, UsageError
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.runs.view.run_view import RunView


_MAX_LISTED = 5  # how many runs an error message lists


class UnknownRunError(RunError):
    """The hosts know no run of this id or name."""


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
    runs: Sequence[RunView],
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

    ``runs`` are all runs, oldest first. ``ending``: the command ends or changes the run, rather than only reading it.
    ``notify`` receives a line that names the run chosen among several live ones. Raises ``RunError`` if no run matches,
    or several do (``UnknownRunError``: none has this id or name); ``UsageError`` if the reference is empty, which every
    id begins with.
    """
    if reference == "":
        raise UsageError("the name of a run is empty", remedy="name one, or leave it out for this project's run")
    exact = [view for view in runs if view.run == reference]
    if exact:
        return exact[-1]
    if reference is None:
        project_runs, other_runs = _split(runs, requester.shares_project)
        if ending:
            return _choose_only_live(project_runs, other_runs)
        return _choose_latest(project_runs, other_runs, notify)
    own_runs, other_runs = _split(runs, requester.owns)
    if not any(_matches(view, reference) for view in own_runs):
        if not ending:
            matching = any(_matches(view, reference) for view in other_runs)
            return _find_referenced(other_runs if matching else runs, reference)
        for view in reversed(other_runs):  # a name means its newest
            if _matches(view, reference):
                message = f"{view.run} is a run of {view.record.operator}"
                raise RunError(message, remedy="its full id stops it all the same")
    return _find_referenced(own_runs, reference)


def _split(runs: Iterable[RunView], condition: Callable[[RunView], bool]) -> tuple[list[RunView], list[RunView]]:
    """Return the runs that meet a condition, and the others."""
    meeting: list[RunView] = []
    others: list[RunView] = []
    for view in runs:
        (meeting if condition(view) else others).append(view)
    return meeting, others


def array_names(record: RunRecord) -> tuple[str, ...]:
    """Return the names of the run's array: its runs' name without the index, and its id; empty outside an array."""
    return (record.array_and_index[0], record.array) if record.array else ()


def array_runs(runs: Sequence[RunView], reference: str) -> list[RunView]:
    """Return the runs of the newest array with this name or id, ordered by index; empty if there is no such array."""
    named = [view for view in runs if reference in array_names(view.record)]
    newest = [view for view in named if view.record.array == named[-1].record.array]
    return sorted(newest, key=lambda view: (len(view.name), view.name))


def is_called(record: RunRecord, reference: str) -> bool:
    """Whether the reference is the run's name, its array's, or the beginning of its id."""
    return reference in (record.name, *array_names(record)) or record.run.startswith(reference)


def _matches(view: RunView, reference: str) -> bool:
    """Whether the reference is the run's name, its array's, its job's number, or the beginning of its id."""
    return reference == _job_number(view) or is_called(view.record, reference) or view.run.startswith(reference)


def _job_number(view: RunView) -> str | None:
    return view.job.number if view.job else None


def _choose_latest(
    project_runs: Sequence[RunView], other_runs: Sequence[RunView], notify: Callable[[str], None]
) -> RunView:
    """Return the newest live run of a project, or else its last run."""
    live = [view for view in project_runs if view.live]
    if len(live) > 1:
        newest = f"run {_list_runs(live[-1:])}, the newest of {len(live)} that are live"
        notify(f"{newest}; name another: {_list_runs(live[:-1])}")
    if project_runs:
        return (live or project_runs)[-1]
    if not other_runs:
        raise RunError("no run on these hosts")
    shown = few([f"{view.run} of {_owner(view)}" for view in reversed(other_runs)], _MAX_LISTED)
    raise RunError(f"no run of this project; others on these hosts: {shown}", remedy="name the one that is meant")


def _choose_only_live(project_runs: Sequence[RunView], other_runs: Sequence[RunView]) -> RunView:
    """Return the project's only live run, which a command without a reference ends; raise RunError otherwise.

    Where none is live, a run that is over but goes on at a host that was cut off counts as one.
    """
    live = [view for view in project_runs if view.live] or [view for view in project_runs if view.unended]
    if len(live) == 1:
        return live[0]
    if live:
        raise RunError(
            f"several runs are live: {_list_runs(live)}", remedy="name one, or `clusterddp stop --all` ends all"
        )
    live_others = [view for view in other_runs if view.live]
    if live_others:
        listed = ", ".join(f"{view.run} of {_owner(view)}" for view in live_others)
        raise RunError(f"no run of this project is live here, but {listed}", remedy="a full id stops it all the same")
    raise RunError("no run is live on these hosts")


def _owner(view: RunView) -> str:
    """Return who started the run and, if it is known, in which project."""
    label = view.record.label
    return f"{view.record.operator} in {label}" if label else str(view.record.operator)


def _find_referenced(runs: Sequence[RunView], reference: str) -> RunView:
    """Return the newest run of this name or job number, or else the only one whose id begins with the reference.

    Raises RunError if it is the name of an array, which is several runs, even if an id begins with that name.
    """
    named = [view for view in runs if view.record.name == reference]
    prefixed = [view for view in runs if view.run.startswith(reference)]
    jobs = [view for view in runs if _job_number(view) == reference]
    array = array_runs(runs, reference)
    single = (named or jobs)[-1:]
    if single and not (array and runs.index(array[0]) > runs.index(single[0])):
        return single[0]
    if array:
        raise RunError(
            f"{reference} is an array of {counted(len(array), 'run')}", remedy=f"name one of them: {array[0].name}"
        )
    if len(prefixed) == 1:
        return prefixed[0]
    if prefixed:
        raise RunError(
            f"{reference!r} is the beginning of several runs: {_list_runs(prefixed)}", remedy="write more of it"
        )
    raise UnknownRunError(f"no run {reference!r} on these hosts", remedy="`clusterddp runs --all` lists them")


def _list_runs(runs: Sequence[RunView]) -> str:
    return ", ".join(f"{view.run} ({view.record.name})" if view.record.name else view.run for view in runs)
