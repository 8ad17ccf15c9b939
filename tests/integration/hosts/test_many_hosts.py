"""Commands on sixty-four simulated hosts: right answers, faults of single hosts, the limit of open files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.lean import lean_python
from tests.simulated.faults import Fault
from tests.simulated.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNT = 64
DYING, SLOW = "sim0011", "sim0013"
FAULTS = {DYING: Fault("exec", dies=True), SLOW: Fault("exec", delay=0.5)}


@pytest.fixture(scope="module")
def hosts() -> Iterator[Simulation]:
    with Simulation(COUNT, variables={"clusterddp_python": lean_python(), "clusterddp_nproc": 8}, lines=3) as made:
        yield made


@pytest.fixture(scope="module")
def faulty() -> Iterator[Simulation]:
    with Simulation(COUNT, faults=FAULTS) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    return tmp_path


def test_a_run_is_begun_shown_and_stopped_with_a_proof_of_every_host(hosts: Simulation, project: Path) -> None:
    inventory = str(hosts.inventory)
    up = hosts.clusterddp("up", inventory, cwd=project)
    assert up.code == 0, up.err
    assert up.counts["listen"] == up.counts["dial"] == COUNT
    assert f"ready: {COUNT} nodes, {8 * COUNT} ranks" in up.err
    run = hosts.clusterddp("run", "--detach", "train.py", cwd=project)
    assert run.code == 0, run.err
    assert run.counts["start"] == run.counts["commit"] == COUNT
    status = hosts.clusterddp("status", cwd=project)
    assert status.code == 0, status.err
    shown = re.findall(r"^(sim\d+) +running +([0-9,]+) ", status.out, re.MULTILINE)
    ranks = [",".join(map(str, range(8 * number, 8 * number + 8))) for number in range(COUNT)]
    assert shown == [*zip(hosts.names, ranks, strict=True)]
    assert f"{8 * COUNT} ranks" in status.out
    logs = hosts.clusterddp("logs", "--fold", cwd=project)
    assert logs.code == 0, logs.err
    assert logs.out.count("step 2\n") >= 1
    stop = hosts.clusterddp("stop", cwd=project)
    assert stop.code == 0, stop.err
    assert re.search(r"sim\[0000:0063\]: \d+ processes ended, proved empty$", stop.err, re.MULTILINE)
    assert stop.counts["stop"] == COUNT


def test_one_host_that_dies_is_named_and_a_slow_one_is_waited_for(faulty: Simulation, project: Path) -> None:
    done = faulty.clusterddp("exec", "-i", str(faulty.inventory), "--bare", "hostname", cwd=project)
    assert done.code == 125
    assert {line.split("] ")[1] for line in done.out.splitlines()} == {*faulty.names} - {DYING}
    assert re.search(rf"{DYING}: the connection was lost", done.err)


def test_a_limit_of_open_files_that_is_too_low_is_said_before_anything_is_opened(
    hosts: Simulation, project: Path
) -> None:
    words = ("exec", "-i", str(hosts.inventory), "hostname")
    refused = hosts.clusterddp(*words, cwd=project, limits="ulimit -n 100")
    assert refused.code == 2
    assert "64 hosts need 192 open files, and only 100 are allowed" in refused.err
    assert not refused.counts
    raised = hosts.clusterddp(*words, cwd=project, limits="ulimit -S -n 100")
    assert raised.code == 0, raised.err
