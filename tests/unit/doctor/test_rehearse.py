"""What the rehearsal runs with, and which checks the nodes of a workload manager are spared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from clusterddp.checks.engine import select
from clusterddp.doctor.diagnose import _select
from clusterddp.doctor.rehearsal import RehearsalPart, _backend, parts, rehearse
from clusterddp.facts.host import TorchFacts
from clusterddp.hosts.fanout import Outcome
from tests.unit.evidence_made import address, black_holes, cluster, seen
from tests.unit.facts_made import interface

if TYPE_CHECKING:
    from clusterddp.checks.evidence import HostEvidence

TORCH = TorchFacts(version="2.7.0", cuda="12.8", gloo=True, nccl_available=True)


def part(report: HostEvidence) -> RehearsalPart:
    host: Any = SimpleNamespace(name=report.name, entry=report.entry)
    assert report.facts
    return RehearsalPart(host=host, facts=report.facts, interface=interface(address(report.name)))


def test_a_named_gpu_that_is_not_there_fails_the_rehearsal_alone() -> None:
    site: Any = None
    found = rehearse(site, [part(seen("gpu01", devices=2, entry={"gpus": ("0", "9")}))])
    assert found.failure == "gpu01: clusterddp_gpus names GPU 9, but the host has: 0, 1"
    assert found.remedy == "correct clusterddp_gpus"


def test_a_host_behind_a_black_hole_does_not_take_part() -> None:
    names = ("gpu01", "gpu02", "gpu03")
    made: Any = SimpleNamespace()
    outcomes = [Outcome(name=name, value=made) for name in names]
    taking = parts(cluster(failures=black_holes("gpu02", names)), outcomes, select())
    assert [address(name) for name in ("gpu01", "gpu03")] == [one.interface.address for one in taking]


def test_a_host_without_gpus_is_not_called_busy() -> None:
    both = [part(seen("gpu01", devices=2)), part(seen("gpu02", torch=TORCH, entry={"nproc": 1}))]
    assert _backend(both) == ("gloo", "gpu02 has no GPU", {"gpu01": (), "gpu02": ()})


def test_the_nodes_of_a_workload_manager_may_share_their_state_and_need_no_linger() -> None:
    def names(*, managed: bool) -> set[str]:
        return {check.name for check in _select("slurm", (), (), bench=False, managed=managed)}

    assert names(managed=False) - names(managed=True) == {"local-state", "shared", "lingering"}
