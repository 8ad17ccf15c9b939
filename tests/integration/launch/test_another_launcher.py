"""One more launcher is its own code and its entry in the registry: runs, lines, files and the doctor go by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp import Cluster
from clusterddp.inventory.launchers import LAUNCHERS
from clusterddp.project.project import find
from tests.integration.another_launcher import NAME, REGISTERED, over_dummy
from tests.integration.cli import WAIT, User, nothing_left
from tests.unit.sync_help import content
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

TRAIN = f"""{WAIT}
open("made.txt", "w").write("of rank " + os.environ["RANK"])
print("rank", os.environ["RANK"], flush=True)
wait_for(sys.argv[1])
"""
HERE, NEVER = "/etc/hostname", "/no/such/file"


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setitem(LAUNCHERS, NAME, REGISTERED)
    monkeypatch.setattr(over_dummy, "CALLS", [])
    user = User(tmp_path)
    monkeypatch.setenv("HOME", str(user.home))
    monkeypatch.chdir(user.folder)
    user.write("train.py", TRAIN)
    more = {name: {"clusterddp_launcher": NAME} for name in ("gpu00", "gpu01")}
    inventory = lab.write_inventory(user.folder / "inventory.yaml", more=more)
    with (
        nothing_left(lab),
        Cluster.from_inventory(inventory, limit="gpu00,gpu01", project=find(user.folder)) as cluster,
    ):
        yield cluster


def asked() -> set[str]:
    """What the launcher was asked for since the last look."""
    found = {*over_dummy.CALLS}
    over_dummy.CALLS.clear()
    return found


def test_a_registered_launcher_runs_shows_and_brings(cluster: Cluster, tmp_path: Path) -> None:
    run = cluster.run("train.py", [HERE])
    assert run.record.launcher == NAME
    assert {line.text for line in run.logs(follow=True)} >= {"rank 0", "rank 1"}
    assert run.wait().state == "succeeded"
    assert asked() == {"submit", "describe", "reader"}

    assert cluster.find_view(run.id).record.launcher == NAME
    cluster.pull(run.id, str(tmp_path / "here"))
    assert content(tmp_path / "here") == {"gpu00/made.txt": "of rank 0", "gpu01/made.txt": "of rank 1"}
    assert asked() == {"describe", "files"}

    found = cluster.doctor(only=["cores"])
    assert {host for one in found.results if one.name == "cores" for host in one.hosts} == {"gpu00", "gpu01"}
    assert "borrow_hosts" in asked()


def test_a_registered_launcher_stops_what_it_has_started(cluster: Cluster) -> None:
    run = cluster.run("train.py", [NEVER])
    assert {stack.host for stack in run.stacks()} <= {"gpu00", "gpu01"}
    assert all(proof.proved_empty for proof in run.stop(grace=5))
    assert run.wait().state == "stopped"
    assert {"submit", "host", "cancel"} <= asked()
    proofs, cleaned = cluster.down([])
    assert (proofs, [one.host for one in cleaned if not one.error]) == ({}, ["gpu00", "gpu01"])
