"""`from clusterddp import Cluster`: everything the command line does, as plain calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest

from clusterddp import Cluster, probe
from clusterddp.checks import engine
from clusterddp.checks.catalog import TABLE
from clusterddp.doctor import bench_pairs, rehearsal
from clusterddp.errors import RunError, UsageError
from clusterddp.facts.host import Facts
from clusterddp.launch import make_plan
from clusterddp.launch.options import RunOptions
from clusterddp.logs.selection import Selection
from clusterddp.project.project import find
from clusterddp.remote.spool.layout import LEASE
from clusterddp.runs import background
from tests.integration.cli import WAIT, User, assert_nothing_left, nothing_left, wait_until_nothing_is_left
from tests.lab.system import wait_until
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from clusterddp.checks.evidence import Evidence
    from clusterddp.checks.model import Finding
    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

TELLS = f"""{WAIT}
print("rank", os.environ["RANK"], os.environ.get("MODE"), *sys.argv[2:], flush=True)
print("an error", file=sys.stderr, flush=True)
wait_for(sys.argv[1])
"""
HERE = "/etc/hostname"  # an event that has happened


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    user = User(tmp_path)
    monkeypatch.setenv("HOME", str(user.home))
    user.write("tells.py", TELLS)
    inventory = lab.write_inventory(user.folder / "inventory.yaml", more={"gpu00": {"clusterddp_nproc": 2}})
    with (
        nothing_left(lab),
        Cluster.from_inventory(inventory, limit="gpu00,gpu02", project=find(user.folder)) as cluster,
    ):
        yield cluster


def test_a_check_that_raises_is_unknown_and_leaves_a_crash_file(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Evidence) -> Iterable[Finding]:
        raise ZeroDivisionError("a bug in the check")

    said: list[str] = []
    cluster.notify = said.append
    table = tuple(replace(check, judge=broken) if check.name == "shm" else check for check in TABLE)
    monkeypatch.setattr(engine, "TABLE", table)
    found = cluster.doctor(only=["shm", "cores"])
    assert found.verdict == "unknown"
    assert [(one.name, one.hosts, one.message) for one in found.results if one.verdict == "unknown"] == [
        ("shm", ("gpu00", "gpu02"), "internal error in shm")
    ]
    (path,) = cluster.project.folder.glob("crashes/*.txt")
    assert "ZeroDivisionError: a bug in the check" in path.read_text()
    assert said == [f"internal error in the check shm; please report it with {path}"]


def test_a_run_is_planned_without_a_sync_or_a_start(cluster: Cluster) -> None:
    before = {view.run for view in cluster.list_runs()}
    plan, hosts = cluster.plan(RunOptions(script=str(cluster.project.root / "tells.py"), args=("a",)), dry=True)
    assert [host.name for host in hosts] == [node.host for node in plan.nodes] == ["gpu00", "gpu02"]
    assert (plan.record.script, plan.record.world_size, plan.shared.argv[-2:]) == ("tells.py", 3, ("tells.py", "a"))
    assert {view.run for view in cluster.list_runs()} == before


def test_a_bug_while_an_answer_is_read_is_unknown_there_and_leaves_one_crash_file(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError("a bug in the reading")

    said: list[str] = []
    cluster.notify = said.append
    monkeypatch.setattr(probe.gather, "QueryContext", broken)  # of what each host is asked
    found = cluster.doctor(only=["mounts", "setup"])
    told = {one.name: (one.verdict, one.hosts, one.message) for one in found.results}
    assert told["mounts"] == ("unknown", ("gpu00", "gpu02"), "could not look: internal error in health")
    assert told["setup"][0] == "pass"
    (path,) = cluster.project.folder.glob("crashes/*.txt")
    assert "ZeroDivisionError: a bug in the reading" in path.read_text()
    assert said == [f"internal error in what hosts tell of health; please report it with {path}"]

    monkeypatch.undo()
    monkeypatch.setattr(Facts, "from_json", broken)
    found = cluster.doctor(only=["cores"])
    assert found.verdict == "unknown"
    assert "could not look: internal error in facts" in {one.message for one in found.results}
    assert len(list(cluster.project.folder.glob("crashes/*.txt"))) == 2


def test_a_bug_in_what_hosts_do_together_is_unknown_in_its_checks_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError("a bug between hosts")

    said: list[str] = []
    cluster.notify = said.append
    monkeypatch.setattr(probe.gather, "try_connections", broken)
    monkeypatch.setattr(probe.gather, "find_shared_folders", broken)
    monkeypatch.setattr(probe.gather, "run_evidence", broken)
    found = cluster.doctor(only=["network", "shared", "leftovers", "mounts"])
    told = {one.name: (one.verdict, one.hosts, one.message) for one in found.results}
    both = ("gpu00", "gpu02")
    for check, need in (("network", "network"), ("shared", "shared"), ("leftovers", "runs")):
        assert told[check] == ("unknown", both, f"could not look: internal error in {need}")
    assert (told["mounts"][0], told["setup"][0]) == ("pass", "pass")
    crashes = [path.read_text() for path in cluster.project.folder.glob("crashes/*.txt")]
    assert len(crashes) == len(said) == 3
    assert all("ZeroDivisionError: a bug between hosts" in text for text in crashes)


def test_a_bug_in_the_rehearsal_or_the_bench_is_unknown_in_its_checks_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError("a bug in the rehearsal")

    monkeypatch.setattr(rehearsal, "rehearse", broken)
    monkeypatch.setattr(bench_pairs, "measure", broken)
    found = cluster.doctor(only=["rehearsal", "bandwidth", "gemm", "idle"], bench=True)
    told = {one.name: (one.verdict, one.message) for one in found.results}
    for check, need in (("rehearsal", "rehearsal"), ("bandwidth", "pairs"), ("gemm", "workers")):
        assert told[check] == ("unknown", f"could not look: internal error in {need}")
    assert told["idle"][0] == "pass"


def test_up_run_logs_and_status(cluster: Cluster, lab: Lab) -> None:
    reports = cluster.up()
    assert [(report.host, report.nproc, report.ranks) for report in reports] == [
        ("gpu00", 2, (0, 1)),
        ("gpu02", 1, (2, 2)),
    ]
    assert [report.address for report in reports] == [lab.hosts[0].address, lab.hosts[2].address]
    run = cluster.run("tells.py", [HERE, "a b"], name="by hand", env={"MODE": "fast"}, time_limit="1h", grace="5s")
    lines = [line for line in run.logs(follow=True) if line.rank is not None]
    assert sorted((line.rank, line.host, line.local_rank, line.text) for line in lines if line.stream == "out") == [
        (0, "gpu00", 0, "rank 0 fast a b"),
        (1, "gpu00", 1, "rank 1 fast a b"),
        (2, "gpu02", 0, "rank 2 fast a b"),
    ]
    errors = list(run.logs(Selection(stream="err", ranks=(2,))))
    assert [(line.rank, line.text, line.run) for line in errors] == [(2, "an error", run.id)]
    verdict = run.wait("1m")
    assert (verdict.state, verdict.exit_code) == ("succeeded", 0)
    assert (run.view().id, run.verdict()) == (run.id, verdict)
    wait_until_nothing_is_left(lab.hosts, run.id)
    assert cluster.find("by hand").status() == run.status()
    assert run.status()["state"] == "succeeded"


def test_a_stopped_run_is_proved_empty_on_every_host(cluster: Cluster, lab: Lab) -> None:
    run = cluster.run("tells.py", ["/tmp/never"])
    for line in run.logs(follow=True):
        if line.text.startswith("rank 2"):
            break
    status = run.status()
    assert (status["state"], run.verdict()) == ("running", None)
    with pytest.raises(RunError, match=f"run {run.id} has not ended in 0 s"):
        run.wait(0)
    with pytest.raises(UsageError, match="grace: 'soon' is no duration"):
        run.stop(grace="soon")
    assert all(host["pids"] for host in status["hosts"])
    proofs = run.stop(grace=5)
    assert_nothing_left(lab.hosts, run.id)
    assert [(proof.host, proof.proved_empty, proof.survivors) for proof in proofs] == [
        ("gpu00", True, ()),
        ("gpu02", True, ()),
    ]
    assert all(proof.found for proof in proofs)
    assert (run.status()["state"], run.status()["exit_code"]) == ("stopped", 143)


def test_a_run_whose_cluster_was_closed_is_not_waited_for(cluster: Cluster) -> None:
    with Cluster(cluster.inventory, project=cluster.project) as closed:
        run = closed.run("tells.py", ["/tmp/never"])
        next(iter(run.logs(follow=True)))
    for ask in (run.wait, lambda: list(run.logs(follow=True)), lambda: list(run.logs()), run.status):
        with pytest.raises(UsageError, match="this Cluster is closed"):
            ask()
    assert cluster.find(run.id).stop(grace=1)


def test_a_run_that_is_to_end_with_its_operator_goes_on_until_the_cluster_is_closed(
    cluster: Cluster, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_plan, "LEASE_TIME", 3.0)
    monkeypatch.setattr(background, "RENEWAL_INTERVAL", 0.5)
    operator = Cluster(cluster.inventory, project=cluster.project)
    run = operator.run("tells.py", ["/tmp/never"], on_disconnect="stop", grace="1s")
    tokens: set[str] = set()

    def renewals() -> int:
        tokens.add(lab.hosts[0].run(["cat", f"{run.spools['gpu00']}/{LEASE}"], check=False).stdout)
        return len(tokens)

    wait_until("it has outlived two leases", lambda: renewals() > 12)
    assert run.status()["state"] == "running"
    operator.close()
    assert cluster.find(run.id).wait("2m").line.startswith("lease lapsed")
    wait_until_nothing_is_left(lab.hosts, run.id)


def test_a_wrong_script_is_an_error_before_anything_starts(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.py"):
        cluster.run("nowhere.py")
    assert [view.run for view in cluster.list_runs() if view.record.project == cluster.project.id] == []
