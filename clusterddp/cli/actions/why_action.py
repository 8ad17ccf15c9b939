"""``clusterddp why``: why a run does not go on, or failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterddp.cli.output import say
from clusterddp.cli.session import open_cluster
from clusterddp.doctor.bundle.read_bundle import names_file, read_bundle

if TYPE_CHECKING:
    from clusterddp.runs.why import Why

CONNECT_TIMEOUT = 3.0  # seconds: a host that is off must not keep what the others know from the user


def act(inventory: Path | None, limit: str | None, run: str | None, *, as_json: bool) -> int:
    """Explain the run, or what a bundle says of one; return 0 wherever there is an answer."""
    if run and names_file(run):
        return _print(read_bundle(Path(run)).why(), as_json=as_json)
    with open_cluster(inventory, limit, connect_timeout=CONNECT_TIMEOUT) as cluster:
        view = cluster.find_view(run)
        why = cluster.attach(view).why(view)
    return _print(why, as_json=as_json)


def _print(why: Why, *, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(why.to_json(), indent=1))
        return 0
    say(why.sentence)
    for line in why.evidence:
        say(f"  {line}")
    if why.remedy:
        say(f"remedy: {why.remedy}")
    return 0
