"""What `run` and `logs` show of a run: which lines, equal ones as one, and what explains the verdict."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from clusterddp.cli.output import say
from clusterddp.logs import Fold, Selection
from clusterddp.runs.failure_lines import last_words

if TYPE_CHECKING:
    from clusterddp.logs import Renderer
    from clusterddp.runs.run import Run
    from clusterddp.runs.verdict_lines import Verdict

MOST_UNFOLDED = 8  # ranks that a terminal shows one by one, if nothing else is said


def selection_for(renderer: Renderer, shown: tuple[int, ...] | None, *, agents: bool = False) -> Selection:
    """What an attached ``run`` shows: everything from the start, as it comes.

    Args:
        renderer: What draws it.
        shown: Only these ranks; None for all.
        agents: All of the agents' lines too, also those that follow an end of the workers.
    """
    return Selection(
        follow=True,
        ranks=shown,
        agent=agents or None,
        teardown=agents,
        partials=renderer.partials,
        timed=renderer.timed,
    )


def fold_if_wanted(renderer: Renderer, run: Run, shown: tuple[int, ...] | None, wanted: bool | None) -> None:  # noqa: FBT001
    """Let a renderer show equal lines of several ranks as one: as the user said, else on a terminal with many ranks.

    Args:
        renderer: What draws the run's lines.
        run: The run.
        shown: Only these ranks; None for all.
        wanted: ``--fold`` or ``--no-fold``; None: neither was given.
    """
    world = run.record.world_size or 0
    ranks = world if shown is None else len({rank for rank in shown if rank < world})
    if wanted or (wanted is None and ranks > MOST_UNFOLDED and sys.stdout.isatty()):
        renderer.fold(Fold())


def say_reasons(run: Run, verdict: Verdict) -> None:
    """What stands before a verdict: notices, the first failure's own last lines, what helps."""
    for line in verdict.notices:
        say(line)
    for failure in verdict.failures[:1]:
        for line in last_words(run, failure):
            say(line)
    if verdict.remedy:
        say(f"remedy: {verdict.remedy}")
