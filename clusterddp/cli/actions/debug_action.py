"""``clusterddp debug``: attach this terminal to pdb of a rank, at a breakpoint or where Python lets us stop it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from clusterddp.cli.output import put, say
from clusterddp.cli.pdb_terminal import converse
from clusterddp.cli.session import open_cluster
from clusterddp.errors import RunError, UsageError
from clusterddp.remote.shared.processes.debug_records import REQUESTED

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.runs.run import Run
    from clusterddp.runs.stopped_ranks import StoppedRank

_MAX_DIGITS = 9  # of a rank


def act(inventory: Path | None, limit: str | None, run: str | None, rank: str | None) -> int:
    """Attach to the rank, or list those that wait; return the exit code."""
    reference, wanted = _read_words(run, rank)
    with open_cluster(inventory, limit) as cluster:
        found = cluster.find(reference)
        if not found.live:
            raise RunError(f"run {found.id} has ended", remedy="`clusterddp why` says how")
        stops = found.breakpoints()
        chosen = _choose(stops, wanted)
        if chosen:
            return _attach(found, chosen)
        if wanted is None:
            return _list(found, stops)
        return _break_in(found, wanted, stops)


def _read_words(run: str | None, rank: str | None) -> tuple[str | None, int | None]:
    """Tell RUN and RANK apart: one number alone is a rank."""
    if rank is None and run is not None and _is_rank(run):
        run, rank = None, run
    if rank is None:
        return run, None
    if not _is_rank(rank):
        raise UsageError(f"{rank!r} is no rank", remedy="write `clusterddp debug 3`, or `clusterddp debug RUN 3`")
    return run, int(rank)


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


def _choose(stops: list[StoppedRank], rank: int | None) -> StoppedRank | None:
    """Return the stop that is meant: of the rank, the worker's before its children's; without a rank the only one."""
    matching = [stop for stop in stops if rank is None or stop.rank == rank]
    if rank is None:
        return matching[0] if len(matching) == 1 and not matching[0].attached else None
    return next((stop for stop in matching if not stop.attached), None)


def _list(run: Run, stops: list[StoppedRank]) -> int:
    for stop in stops:
        put(str(stop))
    if stops:
        say(f"`clusterddp debug {run.id} {stops[0].rank}` attaches to rank {stops[0].rank}")
    else:
        say(f"no rank of run {run.id} waits at a breakpoint()")
    return 0


def _break_in(run: Run, rank: int, stops: list[StoppedRank]) -> int:
    """Stop the rank where it is and attach; where that cannot be, say why, and where it is."""
    for stop in stops:
        put(str(stop))
    if any(stop.rank == rank for stop in stops):
        raise RunError(f"somebody else is attached to rank {rank}")
    try:
        stopped = run.stop_rank(rank)
    except RunError as error:
        return _show_where(run, rank, error.message)
    if stopped is None:
        raise RunError(f"run {run.id} has no live rank {rank}")
    return _attach(run, stopped)


def _show_where(run: Run, rank: int, why: str) -> int:
    stacks = run.stacks([rank])
    if not stacks:
        raise RunError(f"rank {rank} of run {run.id} was not found: {why}")
    from clusterddp.cli.run_tables import print_stacks  # noqa: PLC0415 - an attached terminal needs no rich

    say(f"rank {rank} is not at a breakpoint(), and pdb cannot be attached: {why}; it is here:")
    print_stacks(stacks)
    return 1


def _attach(run: Run, stop: StoppedRank) -> int:
    with contextlib.closing(run.debug(stop)) as session:
        where = stop.place if stop.cause == REQUESTED else f"{stop.cause}, {stop.place}"
        say(f"attached to rank {stop.rank} ({stop.host}:{stop.local_rank}), {where}")
        say("Ctrl-D detaches: the rank goes on; Ctrl-C stops it where it is")
        detached = converse(session)
    went = "goes on" if stop.goes_on else "ends now"
    say(f"detached: rank {stop.rank} {went}" if detached else f"the connection to rank {stop.rank} has ended")
    return 0
