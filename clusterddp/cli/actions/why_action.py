"""``clusterddp why``: why a run does not go on, or failed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from clusterddp.cli.output import say
from clusterddp.cli.session import open_cluster

if TYPE_CHECKING:
    from pathlib import Path


def act(inventory: Path | None, limit: str | None, run: str | None, *, as_json: bool) -> int:
    """Explain the run; return 0 wherever there is an answer."""
    with open_cluster(inventory, limit) as cluster:
        view = cluster.find_view(run)
        why = cluster.attach(view).why(view)
    if as_json:
        click.echo(json.dumps(why.to_json(), indent=1))
        return 0
    say(why.sentence)
    for line in why.evidence:
        say(f"  {line}")
    if why.remedy:
        say(f"remedy: {why.remedy}")
    return 0
