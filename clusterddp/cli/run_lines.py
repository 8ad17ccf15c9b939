"""Choose what `run` and `logs` show of a run: which lines, and whether equal ones are shown as one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.logs.fold import Fold
from clusterddp.logs.selection import Selection

if TYPE_CHECKING:
    from clusterddp.logs.render import Renderer
    from clusterddp.runs.run import Run

MAX_UNFOLDED_RANKS = 8  # ranks that a terminal shows one by one, if nothing else is said


@dataclass(frozen=True, kw_only=True, slots=True)
class Display:
    """Which lines of a followed run are shown, and how."""

    ranks: tuple[int, ...] | None  # only these; None: all
    agents: bool  # all of the agents' lines too, also those after the workers' end
    whole: bool  # on a terminal, whole tracebacks also of ranks that lost a peer
    fold: bool | None  # equal lines of several ranks as one; None: on a terminal with many ranks
    silence: float  # seconds without output of any rank after which that is reported; 0: never


def selection_for(renderer: Renderer, display: Display) -> Selection:
    """Return the lines that an attached ``run`` selects: from the start of the run, as they come."""
    return Selection(
        follow=True,
        ranks=display.ranks,
        agent=display.agents or None,
        teardown=display.agents,
        partials=renderer.partials,
        timed=renderer.timed,
    )


def fold_if_many_ranks(renderer: Renderer, run: Run, shown: tuple[int, ...] | None, wanted: bool | None) -> None:  # noqa: FBT001
    """Show equal lines of several ranks as one if ``wanted``; None: on a terminal with many ranks.

    ``shown``: the ranks whose lines are shown; None: all.
    """
    world = run.record.world_size or 0
    ranks = world if shown is None else len({rank for rank in shown if rank < world})
    if wanted or (wanted is None and ranks > MAX_UNFOLDED_RANKS and sys.stdout.isatty()):
        renderer.fold(Fold())
