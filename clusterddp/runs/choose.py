"""Which run a command means: by id, prefix, name, or none; and whose runs it may end. Pure.

Not here: what hosts tell of runs (runs/view.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.remote.shared.run_record import RunRecord
    from clusterddp.runs.view import RunView


@dataclass(frozen=True, kw_only=True, slots=True)
class Requester:
    """Who gives a command: ``user@machine``, and the id of the project it is given in.

    They own a run that they started or that is the project's: the same person at another machine, or a colleague who
    shares the project's id, may end it by its name. Any other's run on the same account takes its full id.
    """

    operator: str
    project: str | None

    def owns(self, view: RunView) -> bool:
        """Whether they own the run."""
        return view.record.operator == self.operator or self.shares_project(view)

    def shares_project(self, view: RunView) -> bool:
        """Whether the run is of their project."""
        return self.project is not None and view.record.project == self.project


def choose_run(found: Sequence[RunView], reference: str | None, *, to_end_by: Requester | None = None) -> RunView:
    """The run that ``reference`` means: an id, a unique prefix of one, or a name (its newest).

    Without a reference: the only live run, to be ended only if it is the project's; else, for reading, the last one.

    Args:
        found: All runs, oldest first.
        reference: What the user wrote.
        to_end_by: Who wants to end it: their own runs are meant then, unless the full id names another. None: reading.

    Raises:
        RunError: none is meant, or several.
    """
    exact = [view for view in found if view.run == reference]
    if exact:
        return exact[-1]
    if to_end_by is None:
        return _last(found) if reference is None else _named(found, reference)
    if reference is None:
        listed = [view for view in found if to_end_by.shares_project(view)]
        return _only_live(listed, [view for view in found if view not in listed])
    mine = [view for view in found if to_end_by.owns(view)]
    theirs = [view for view in found if view not in mine]
    if not any(_matches(view, reference) for view in mine):
        for view in reversed(theirs):  # a name means its newest
            if _matches(view, reference):
                message = f"{view.run} is a run of {view.record.operator}"
                raise RunError(message, remedy="its full id stops it all the same")
    return _named(mine, reference)


def array_names(record: RunRecord) -> tuple[str, ...]:
    """What its array is called: the name of its runs without their indices, and an id; nothing outside an array."""
    return ((record.name or "").rpartition(".")[0], record.array) if record.array else ()


def array_runs(found: Sequence[RunView], reference: str) -> list[RunView]:
    """The runs of the newest array of a name, or of an id, by index; none where that is no array."""
    named = [view for view in found if reference in array_names(view.record)]
    newest = [view for view in named if view.record.array == named[-1].record.array]
    return sorted(newest, key=lambda view: (len(view.name), view.name))


def meant_run(
    found: Sequence[RunView],
    reference: str | None,
    requester: Requester,
    *,
    reading: bool,
    notify: Callable[[str], None],
) -> RunView:
    """``choose_run`` for a command given in a project.

    Args:
        found: All runs, oldest first.
        reference: What the user wrote. Without it the project's own are meant; those of others where it has none, and
            only for reading.
        requester: The user.
        reading: Else it is to be ended.
        notify: Is told which of several live runs was taken.

    Raises:
        RunError: none is meant, or several.
    """
    if not reading:
        return choose_run(found, reference, to_end_by=requester)
    own = [view for view in found if requester.shares_project(view)] if reference is None else []
    chosen = choose_run(own or found, reference)
    others = [view for view in own or found if view.live and view.run != chosen.run]
    if reference is None and chosen.live and others:
        newest = f"run {_listed([chosen])}, the newest of {len(others) + 1} that are live"
        notify(f"{newest}; name another: {_listed(others)}")
    return chosen


def _matches(view: RunView, reference: str) -> bool:
    return reference in (view.record.name, _job(view)) or view.run.startswith(reference)


def _job(view: RunView) -> str | None:
    return view.job.number if view.job else None


def _last(found: Sequence[RunView]) -> RunView:
    live = [view for view in found if view.live]
    if not found:
        raise RunError("no run on these hosts")
    return (live or found)[-1]


def _only_live(mine: Sequence[RunView], theirs: Sequence[RunView]) -> RunView:
    live = [view for view in mine if view.live]
    if len(live) == 1:
        return live[0]
    if live:
        raise RunError(f"several runs are live: {_listed(live)}", remedy="name one, or `stop --all` ends all")
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
        raise RunError(f"{reference} is an array of {len(array)} runs", remedy=f"name one of them: {array[0].name}")
    raise RunError(f"no run {reference!r} on these hosts", remedy="`clusterddp runs --all` lists them")


def _listed(found: Sequence[RunView]) -> str:
    return ", ".join(f"{view.run} ({view.record.name})" if view.record.name else view.run for view in found)
