"""The options of ``clusterddp skill``; cli/actions/skill_action.py holds what it does."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("skill")
@click.option(
    "--install",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write DIR/clusterddp/SKILL.md instead; .claude/skills, say.",
)
def command() -> None:
    """Print what a coding agent has to know to drive clusterddp, in the form of a skill."""
