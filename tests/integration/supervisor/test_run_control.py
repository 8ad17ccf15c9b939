"""The supervisors of one run among themselves: orders, leases, lost nodes, further attempts. No operator, no torchrun.

The nodes are this machine's; a node is lost when its supervisor is killed or stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.hosts.client import Host
from clusterddp.hosts.fanout import each, values
from clusterddp.hosts.ssh import Connector
from clusterddp.launch.prepare import new_run_id
from clusterddp.launch.ssh.over_ssh import launch
from clusterddp.remote.shared.verdict.failures import LEASE
from clusterddp.remote.shared.verdict.judge import VerdictRecord, best_verdict
from clusterddp.remote.spool.layout import Spool, all_spools
from clusterddp.runs.node_answers import query_nodes
from clusterddp.runs.view.run_view import RunView, run_views
from tests.integration.cli import WAIT
from tests.integration.real_helper import alive, entry, wait_for
from tests.integration.runs_started import Started, node, plan_of, with_constants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")

NAMES = ("one", "two", "three")
IMPATIENT = (
    ("supervisor/stop_conditions", "LIMITS = Limits(lost=60.0, fence=120.0", "LIMITS = Limits(lost=6.0, fence=12.0"),
    (
        "supervisor/stop_conditions",
        "LIMITS_RELAUNCH = Limits(lost=7.25, fence=5.0",
        "LIMITS_RELAUNCH = Limits(lost=4.0, fence=2.0",
    ),
    ("control/leader", "SILENCE_TIMEOUT = 2.5", "SILENCE_TIMEOUT = 1.5"),
    ("control/leader", "SILENCE_TIMEOUT_TCP = 5.0", "SILENCE_TIMEOUT_TCP = 1.5"),
    ("control/heartbeats", "HEARTBEAT_INTERVAL = 0.5", "HEARTBEAT_INTERVAL = 0.2"),
    ("control/leader", "CONNECT_TIMEOUT = 2.0", "CONNECT_TIMEOUT = 0.5"),
    ("control/membership", "REPEAT_INTERVAL = 5.0", "REPEAT_INTERVAL = 0.5"),
    ("supervisor/conclusion", "OUT_OF_REACH_TIMEOUT = 15.0", "OUT_OF_REACH_TIMEOUT = 3.0"),
    ("supervisor/conclusion", "RECONNECT_TIMEOUT = 3.0", "RECONNECT_TIMEOUT = 2.0"),
)
# The agent of a first attempt waits; that of a later one ends well.
AGAIN = f"""{WAIT}
print("umask", oct(os.umask(0)), flush=True)
print("agent", os.getpid(), flush=True)
os.makedirs(os.environ["CLUSTERDDP_RUN_DIR"], exist_ok=True)
mark = os.path.join(os.environ["CLUSTERDDP_RUN_DIR"], "mark")
if "later" in sys.argv or os.path.exists(mark):
    print("attempt", os.environ["PET_LOG_DIR"].split("/")[-3], flush=True)
    sys.exit(0)
open(mark, "x").close()
wait_for("go on")
sys.exit(int(open("go on").read() or 0))
"""


class Job:
    """A run of plain programs on three nodes of this machine."""

    def __init__(self, hosts: list[Host], folder: Path, spares: int = 0, **options: Any) -> None:
        self.hosts, self.folder, self.run = hosts, folder, new_run_id()
        work = folder / "work"
        work.mkdir(exist_ok=True)
        (work / f"{self.run}.py").write_text(AGAIN)
        nodes = [node(host, folder, self.run) for host in hosts]
        count = len(nodes) - spares
        plan = plan_of(nodes[:count], self.run, **options)
        spread = [one._replace(address=f"127.0.1.{100 + member}") for member, one in enumerate(nodes)]
        argv = ("-u", f"{self.run}.py", "--nnodes", "x", "--rdzv-id", "x", "--rdzv-endpoint", "x:{port}")
        shared = plan.shared._replace(argv=argv)
        self.plan = replace(plan, shared=shared, nodes=tuple(spread[:count]), spares=tuple(spread[count:]))
        spools = launch(hosts, self.plan, {}).spools
        self.nodes = [Started(host=host, run=self.run, spool=Spool(spools[host.name])) for host in hosts]

    def spools(self, attempt: int) -> dict[str, Spool]:
        """Each host's spool of an attempt."""
        found = all_spools(str(self.folder / "state"), self.run)
        return {spool.host: spool for spool in found if spool.attempt == attempt}

    def started(self, attempt: int, name: str) -> Started:
        spool = wait_for(lambda: self.spools(attempt).get(name), f"attempt {attempt} on {name}")
        return Started(host=self.hosts[NAMES.index(name)], run=self.run, spool=spool)

    def at_work(self) -> None:
        for one in self.nodes[: len(self.plan.nodes)]:
            one.word("agent")
        lead = self.nodes[0].spool
        everyone = set(NAMES)
        wait_for(lambda: everyone <= set((peers(lead) or {}).get("nodes", ())), "the lead to know all")

    def view(self) -> RunView:
        (view,) = run_views([one for host in self.hosts for one in query_nodes(host, self.run, print)])
        return view

    def end(self) -> None:
        values(each(self.hosts, lambda host: self.nodes[self.hosts.index(host)].stop()))


def peers(spool: Spool) -> Any:
    """What a node's host knows of the others."""
    from clusterddp.remote.shared.schema.json_text import read_json  # noqa: PLC0415

    return read_json(spool.path("peers.json"))


def verdict_of(spool: Spool) -> VerdictRecord:
    found = spool.verdict()
    assert found
    return found


def knows_all(one: Started) -> None:
    wait_for(lambda: len((peers(one.spool) or {}).get("nodes", ())) == len(NAMES), "the lead's table")


def next_table(one: Started) -> None:
    before = (peers(one.spool) or {}).get("time")
    wait_for(lambda: (peers(one.spool) or {}).get("time") != before, "the next table")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Host]]]:
    folder = tmp_path_factory.mktemp("control")
    connector = Connector()
    quick = with_constants(*IMPATIENT)
    try:
        with contextlib.ExitStack() as stack:
            entries = [entry(folder / "state", name) for name in NAMES]
            opened = values(each(entries, lambda wanted: Host.open(wanted, connector, quick)))
            yield folder, [stack.enter_context(host) for host in opened]
    finally:
        connector.close()


@pytest.fixture
def begin(hosts: tuple[Path, list[Host]]) -> Iterator[Callable[..., Job]]:
    """Starts a job whose nodes know each other; it is stopped when the test leaves it."""
    folder, opened = hosts
    (folder / "work" / "go on").unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> Job:
            job = Job(opened, folder, **options)
            stack.callback(job.end)
            job.at_work()
            return job

        yield start


def go_on(job: Job, code: int = 0) -> None:
    (job.folder / "work" / "go on.new").write_text(str(code))
    (job.folder / "work" / "go on.new").rename(job.folder / "work" / "go on")


class TestOrders:
    def test_a_stop_told_to_one_host_reaches_all(self, begin: Callable[..., Job]) -> None:
        job = begin()
        assert job.nodes[2].stop()["proved_empty"]
        assert [one.ended()["reason"] for one in job.nodes] == ["by a test"] * 3

    def test_a_stop_reaches_the_others_when_the_first_host_is_lost(self, begin: Callable[..., Job]) -> None:
        job = begin()
        os.kill(job.nodes[0].supervisor, signal.SIGSTOP)
        try:
            follower = job.nodes[2].spool
            wait_for(lambda: (peers(follower) or {}).get("leader") == "two", "a new lead's table")
            job.nodes[2].stop()
            assert [one.ended()["reason"] for one in job.nodes[1:]] == ["by a test"] * 2
        finally:
            os.kill(job.nodes[0].supervisor, signal.SIGKILL)

    def test_one_host_tells_of_all(self, begin: Callable[..., Job]) -> None:
        job = begin()
        for one in job.nodes:
            knows_all(one)
        (view,) = run_views(query_nodes(job.hosts[1], job.run, print))
        hosts = {host["name"]: host for host in view.to_json()["hosts"]}
        assert (hosts["two"]["state"], hosts["one"]["told"]["state"]) == ("starting", "running")
        assert hosts["three"]["told"]["by"] == "two"


class TestLoss:
    @pytest.mark.parametrize("lost", ["one", "three"])
    def test_a_lost_node_ends_the_job_everywhere_and_is_named(self, begin: Callable[..., Job], lost: str) -> None:
        job = begin()
        gone = job.nodes[NAMES.index(lost)]
        os.kill(gone.supervisor, signal.SIGKILL)
        rest = [one for one in job.nodes if one is not gone]
        assert {one.ended()["reason"] for one in rest} == {f"{lost} was lost"}
        verdict = job.view().verdict()
        assert verdict
        assert (verdict.exit_code, verdict.line) == (125, f"{lost} was lost: its supervisor is gone")

    def test_a_node_that_reaches_nobody_says_whom_it_lost(self, begin: Callable[..., Job]) -> None:
        job = begin()
        for one in job.nodes[:2]:
            os.kill(one.supervisor, signal.SIGSTOP)
        try:
            assert job.nodes[2].ended()["reason"].startswith("three lost contact with one")
            own = verdict_of(job.nodes[2].spool)
            assert (own.writer, own.reported, own.missing) == ("three", ("three",), ("one", "two"))
        finally:
            for one in job.nodes[:2]:
                os.kill(one.supervisor, signal.SIGKILL)


class TestVerdict:
    def test_every_node_keeps_the_same_verdict(self, begin: Callable[..., Job]) -> None:
        job = begin()
        go_on(job)
        assert [one.ended()["state"] for one in job.nodes] == ["succeeded"] * 3
        first, *others = (verdict_of(one.spool) for one in job.nodes)
        assert others == [first, first]
        assert (first.state, first.exit_code, first.reported, first.missing) == ("succeeded", 0, NAMES, ())
        assert [(one.host, one.state, one.workdir) for one in first.hosts] == [
            (name, "succeeded", str(job.folder / "work")) for name in NAMES
        ]
        assert {oct(Path(one.spool.path("verdict.json")).stat().st_mode & 0o777) for one in job.nodes} == {"0o600"}

    def test_a_failed_run_is_told_alike_by_any_one_of_its_hosts(self, begin: Callable[..., Job]) -> None:
        job = begin()
        go_on(job, 3)
        for one in job.nodes:
            one.ended()
        views = [
            run_views(query_nodes(host, job.run, print), [n for n in NAMES if n != host.name])[0] for host in job.hosts
        ]
        told = [view.to_json(hosts=False) for view in views]
        assert told[1:] == told[:1] * 2
        assert (told[0]["state"], told[0]["exit_code"]) == ("failed", 125)  # of an agent, which is no worker

    def test_a_lead_that_is_killed_before_it_has_judged_is_followed_by_another(self, begin: Callable[..., Job]) -> None:
        job = begin()
        lead, two, three = job.nodes
        os.kill(three.supervisor, signal.SIGSTOP)
        try:
            go_on(job)
            told = [wait_for(one.spool.exit_record, "an exit record") for one in (lead, two)]
            assert [record.state for record in told] == ["succeeded"] * 2
            wait_for(lambda: peers(two.spool)["nodes"]["one"]["state"] == "ended", "the lead's last word")
            os.kill(lead.supervisor, signal.SIGKILL)
        finally:
            os.kill(three.supervisor, signal.SIGCONT)
        three.ended()
        two.ended()
        found = best_verdict([verdict_of(one.spool) for one in (two, three)])
        assert found
        assert (found.writer, found.state, found.reported) == ("two", "succeeded", NAMES)

    def test_a_later_attempts_verdict_counts(self, begin: Callable[..., Job]) -> None:
        job = begin(relaunch=1, spares=1)
        cut = job.nodes[1]
        os.kill(cut.supervisor, signal.SIGSTOP)
        try:
            again = [job.started(2, name) for name in ("one", "three")]
            go_on(job)
            assert [one.ended()["state"] for one in again] == ["succeeded"] * 2
        finally:
            os.kill(cut.supervisor, signal.SIGCONT)
        cut.ended()
        copies = {one.host.name: one.spool.verdict() for one in (*again, cut)}
        found = best_verdict([copy for copy in copies.values() if copy])
        assert found
        assert (found.attempt, found.state, found.reported) == (2, "succeeded", ("one", "three"))
        assert job.view().state() == "succeeded"

    def test_a_damaged_copy_is_none(self, begin: Callable[..., Job]) -> None:
        job = begin()
        go_on(job)
        for one in job.nodes:
            one.ended()
        Path(job.nodes[1].spool.path("verdict.json")).write_text('{"state": "succ')
        view = job.view()
        assert (view.state(), len(view.copies)) == ("succeeded", 2)


class TestLease:
    def test_it_lapses_when_no_host_hears_the_operator(self, begin: Callable[..., Job]) -> None:
        job = begin(lease=2.0)
        assert {one.ended()["reason"] for one in job.nodes} == {LEASE}
        verdict = job.view().verdict()
        assert verdict
        assert (verdict.state, verdict.exit_code) == ("stopped", 143)
        assert verdict.line.startswith("lease lapsed")

    def test_one_host_that_hears_him_is_enough(self, begin: Callable[..., Job]) -> None:
        job = begin(lease=3.0)
        one, two, three = job.nodes
        for _ in range(10):
            job.hosts[2].call("renew", {"run": job.run, "host": "three"})
            next_table(one)
        assert not any(each.spool.exit_record() for each in (one, two, three))


class TestRelaunch:
    def test_a_killed_agent_is_followed_by_another_attempt(self, begin: Callable[..., Job]) -> None:
        job = begin(relaunch=1)
        (agent,) = job.nodes[1].pids("agent")
        os.kill(agent, signal.SIGKILL)
        again = [job.started(2, name) for name in NAMES]
        assert [one.ended()["state"] for one in again] == ["succeeded"] * 3
        assert [one.word("attempt") for one in again] == ["2"] * 3
        assert {one.word("umask") for one in again} == {one.word("umask") for one in job.nodes} != {"0o77"}
        first = job.nodes[1].ended()
        assert (first["state"], first["final"], first["pending"]) == ("failed", "attempt 2", False)
        view = job.view()
        assert (view.attempt, view.state(), sorted(view.spools)) == (2, "succeeded", [1, 2])
        wait_for(lambda: not any(alive(one.supervisor) for one in again), "the supervisors' ends")

    def test_what_would_fail_again_is_not_tried_again(self, begin: Callable[..., Job]) -> None:
        job = begin(relaunch=3)
        go_on(job, 3)
        records = [one.ended() for one in job.nodes]
        assert not job.spools(2)
        assert any("would fail again" in record["final"] for record in records if record["state"] == "failed")

    def test_success_everywhere_needs_no_other_attempt(self, begin: Callable[..., Job]) -> None:
        job = begin(relaunch=3)
        go_on(job)
        assert [one.ended()["state"] for one in job.nodes] == ["succeeded"] * 3
        assert not job.spools(2)
        assert job.view().state() == "succeeded"

    def test_a_spare_takes_the_place_of_a_lost_leader(self, begin: Callable[..., Job]) -> None:
        job = begin(relaunch=1, spares=1)
        assert job.view().to_json()["spares"][0]["state"] == "queued"
        os.kill(job.nodes[0].supervisor, signal.SIGKILL)
        again = [job.started(2, name) for name in ("two", "three")]
        (agent,) = again[1].pids("agent")
        assert agent
        go_on(job)
        assert [one.ended()["state"] for one in again] == ["succeeded"] * 2
        view = job.view()
        assert (view.attempt, view.state(), view.silent) == (2, "succeeded", ())
        assert view.record.hosts == ("two", "three")

    def test_a_spare_that_is_not_needed_ends_with_the_run(self, begin: Callable[..., Job]) -> None:
        job = begin(relaunch=1, spares=1)
        go_on(job)
        assert job.nodes[2].ended()["reason"] == "it was not needed"
        assert job.view().state() == "succeeded"

    def test_too_few_hosts_are_said(self, begin: Callable[..., Job]) -> None:
        job = begin(relaunch=1)
        os.kill(job.nodes[2].supervisor, signal.SIGKILL)
        records = [one.ended() for one in job.nodes[:2]]
        assert {record["final"] for record in records} == {"2 of 3 hosts are left"}
        verdict = job.view().verdict()
        assert verdict
        assert (verdict.exit_code, verdict.line.split(":")[0]) == (125, "three was lost")

    def test_a_stop_between_two_attempts_ends_the_run(self, begin: Callable[..., Job]) -> None:
        job = begin(relaunch=3)
        os.kill(job.nodes[2].supervisor, signal.SIGSTOP)
        try:
            os.kill(job.nodes[1].pids("agent")[0], signal.SIGKILL)
            wait_for(lambda: (record := job.nodes[1].spool.exit_record()) and record.pending, "the end of an attempt")
            assert job.nodes[0].stop()["proved_empty"]
            assert job.nodes[1].ended()["final"] == "by a test"
        finally:
            os.kill(job.nodes[2].supervisor, signal.SIGKILL)
        assert not job.spools(2)
