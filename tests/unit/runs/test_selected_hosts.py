"""Which hosts' lines a selection needs, in each attempt of a run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from clusterddp.inventory import Inventory
from clusterddp.logs.selection import Selection
from clusterddp.runs.run import Run
from tests.unit.plan_made import PLAN


def test_a_pattern_matches_the_hosts_of_each_attempt() -> None:
    site: Any = SimpleNamespace(inventory=Inventory(hosts=(), groups={}, path=None))
    run = Run(site, "abcdefghij", 1, {"gpu07": "/s"}, PLAN.record._replace(hosts=("gpu07",), launcher="slurm"))
    requeued = replace(run, attempt=2, spools={"gpu03": "/s", "cpu01": "/s"}, attempts={1: run.spools})
    assert requeued.selected(Selection(pattern="gpu*")) == ["gpu03"]
    assert requeued.selected(Selection()) == ["gpu03", "cpu01"]


def test_an_attempt_without_a_named_host_has_nothing_of_it() -> None:
    site: Any = SimpleNamespace(inventory=Inventory(hosts=(), groups={}, path=None))
    run = Run(site, "abcdefghij", 2, {"gpu03": "/s"}, PLAN.record._replace(hosts=("gpu03",), launcher="slurm"))
    assert run.selected(Selection(pattern="gpu07")) == []
