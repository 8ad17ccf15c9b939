"""torchrun of other torch versions: the plugin where they have it, c10d where not (sources: torch_sources.py)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.run.unplaced_plan import choose_backend
from tests.integration.rendezvous.test_plugin import DIES_ONCE, hosts, launched, plan_for
from tests.integration.torch_sources import overlay
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from clusterddp.hosts.client import Host

__all__ = ["hosts"]  # fixture
need_torch()
pytestmark = pytest.mark.torch

SOURCES = Path(os.environ.get("CLUSTERDDP_TORCH_SOURCES", "nowhere"))
VERSIONS = sorted(path.name for path in SOURCES.glob("2.*")) or ["none"]


@pytest.mark.skipif(VERSIONS == ["none"], reason="CLUSTERDDP_TORCH_SOURCES names no folder of torch sources")
@pytest.mark.parametrize("version", VERSIONS)
def test_workers_of_two_hosts_start_again_under(hosts: list[Host], tmp_path: Path, version: str) -> None:
    if version.startswith("2.3."):
        pytest.skip("torch 2.3's agents close c10d when they end their workers; such a run is refused")
    overlay(SOURCES / version, tmp_path / "torch")
    backend = choose_backend("auto", [version], ["/state"])
    assert (backend == "clusterddp") == (tuple(map(int, version.split(".")[:2])) >= (2, 6))
    env = {"PYTHONPATH": str(tmp_path / "torch")}
    plan = plan_for(hosts[:2], tmp_path, DIES_ONCE, (1, 2), env, backend, max_restarts=1)
    with launched(hosts[:2], plan) as (one, two):
        assert [started.ended()["state"] for started in (one, two)] == ["succeeded", "succeeded"], (
            one.said() + two.said()
        )
        starts = [event for started in (one, two) for event in started.events("worker_started")]
    assert len(starts) == 6
    if backend == "clusterddp":
        assert {event["round"] for event in starts} == {0, 1}
        ranks = [[event["rank"] for event in started.events("worker_started")] for started in (one, two)]
        assert [sorted(set(found)) for found in ranks] == [[0], [1, 2]]
