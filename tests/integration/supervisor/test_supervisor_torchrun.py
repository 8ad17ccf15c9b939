"""Two nodes under torchrun on this machine, started as a launch starts them; their scripts import no torch."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.hosts.client import Host
from clusterddp.hosts.fanout import each, values
from clusterddp.hosts.ssh import Connector
from clusterddp.launch.prepare import new_run_id
from clusterddp.launch.ssh.over_ssh import launch
from clusterddp.remote.shared.run.spool_records import Ready
from clusterddp.remote.spool.layout import Spool
from clusterddp.runs.view.run_view import RunView, run_views
from tests.integration.cli import WAIT
from tests.integration.real_helper import alive, entry, wait_for
from tests.integration.runs_started import Started, agent_plan, gone, modes, node, plan_of, start, with_constant
from tests.lean import lean_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.launch.make_plan import LaunchPlan

need_torch()
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux"),
]

PORTS = (29310, 29330)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torchrun")


@pytest.fixture(scope="module")
def hosts(folder: Path) -> Iterator[list[Host]]:
    connector = Connector()
    try:
        entries = [entry(folder / "state", name) for name in ("one", "two")]
        with contextlib.ExitStack() as stack:
            opened = values(each(entries, lambda wanted: Host.open(wanted, connector)))
            yield [stack.enter_context(host) for host in opened]
    finally:
        connector.close()


@contextlib.contextmanager
def launched(hosts: list[Host], folder: Path, script: str) -> Iterator[tuple[LaunchPlan, list[Started]]]:
    """The script on both hosts, one worker on the first, two on the second; stopped when the test leaves it."""
    run = new_run_id()
    shared = {"ports": PORTS, "python": lean_python()}
    nodes = [node(host, folder, run, nproc=count, **shared) for host, count in zip(hosts, (1, 2), strict=True)]
    (folder / "work" / f"{run}.py").write_text(textwrap.dedent(script))
    plan = plan_of(nodes, run, script=f"{run}.py", args=("a b", "$(x)\n'"), secrets=("TOKEN",))
    spools = launch(hosts, plan, {"TOKEN": "hush"}).spools
    started = [Started(host=host, run=run, spool=Spool(spools[host.name])) for host in hosts]
    try:
        yield plan, started
    finally:
        values(each(hosts, lambda host: started[hosts.index(host)].stop()))


def told(started: list[Started]) -> RunView:
    (view,) = run_views([one.status() for one in started])
    return view


def listening(port: int) -> bool:
    """Whether the first node's store does, on its address alone."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.1.100", port)) == 0


def test_two_nodes_meet_work_and_end(hosts: list[Host], folder: Path) -> None:
    script = f"""{WAIT}
if os.environ["RANK"] != "0":
    wait_for("first is done")
print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["TOKEN"], sys.argv[1:], flush=True)
"""
    with contextlib.ExitStack() as taken:
        for port in (PORTS[0], PORTS[0] + 2):
            other = taken.enter_context(socket.create_server(("127.0.0.1", port)))
            other.listen()
        with launched(hosts, folder, script) as (plan, (one, two)):
            endpoint = plan.shared.argv[plan.shared.argv.index("--rdzv-endpoint") + 1]
            assert endpoint == "127.0.1.100:{port}"
            ready = two.spool.committed() or Ready()
            ports = [ready.store, *(port for _, port in ready.peers)]
            assert not {PORTS[0], PORTS[0] + 2} & set(ports)
            assert all(PORTS[0] < port <= PORTS[1] for port in ports)
            wait_for(lambda: one.events("worker_exited"), "the first node's worker")
            for name in ("secrets.json", "control.key"):
                assert Path(one.spool.path(name)).stat().st_mode & 0o777 == 0o600
            assert listening(ready.store)  # the second node still needs the store
            assert told([one, two]).live
            (folder / "work" / "first is done").touch()
            records = [one.ended(), two.ended()]
            assert not listening(ready.store)
            view = told([one, two])
    assert [record["state"] for record in records] == ["succeeded", "succeeded"]
    assert [record["survivors"] for record in records] == [[], []]
    assert (view.state(), [host["ranks"] for host in view.to_json()["hosts"]]) == ("succeeded", [[0], [1, 2]])
    arguments = ["a b", "$(x)\n'"]
    assert one.said("0.0.out") == f"0 3 hush {arguments}\n"
    assert sorted(two.said(f"0.{local}.out") for local in (0, 1)) == [f"{rank} 3 hush {arguments}\n" for rank in (1, 2)]
    wrong = {path: oct(mode) for path, mode in modes(folder / "state" / "runs" / one.run).items() if mode & 0o077}
    assert not wrong
    for started in (one, two):
        assert not Path(started.spool.path("secrets.json")).exists()
        assert b"hush" not in b"".join(
            path.read_bytes()
            for path in Path(started.spool.folder).rglob("*")
            if path.is_file() and not path.name.endswith(".out")
        )


def test_a_failure_on_one_node_ends_the_other_with_nobody_attached(hosts: list[Host], folder: Path) -> None:
    script = f"""{WAIT}
if os.environ["RANK"] == "2":
    wait_for("all are there")
    raise ValueError("loss is NaN")
threading.Event().wait(600)
"""
    line = 1 + script.splitlines().index('    raise ValueError("loss is NaN")')
    with launched(hosts, folder, script) as (_, (one, two)):
        wait_for(lambda: len(one.events("worker_started") + two.events("worker_started")) == 3, "all workers")
        (folder / "work" / "all are there").touch()
        two.ended()
        one.ended()
        verdict = told([one, two]).verdict()
    assert verdict
    assert (verdict.state, verdict.exit_code) == ("failed", 1)
    local = next(event["local_rank"] for event in two.events("worker_started") if event["rank"] == 2)
    assert verdict.line.startswith(f"rank 2 (two:{local}) failed first: ValueError: loss is NaN ({two.run}.py:{line})")


def test_a_stop_ends_deaf_workers_and_proves_it(hosts: list[Host], folder: Path) -> None:
    script = """
        import signal, threading
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf", flush=True)
        threading.Event().wait(600)
    """
    with launched(hosts, folder, script) as (_, (one, two)):
        outs = [(one, "0.0.out"), (two, "0.0.out"), (two, "0.1.out")]
        wait_for(lambda: all(at.said(name) == "deaf\n" for at, name in outs), "all workers")
        workers = [event["pid"] for at in (one, two) for event in at.events("worker_started")]
        agents = [event["pid"] for at in (one, two) for event in at.events("agent_started")]
        assert all(alive(pid) for pid in workers + agents)
        proofs = values(each(hosts, lambda host: (one, two)[hosts.index(host)].stop(grace=0.5)))
        assert gone(*workers, *agents, one.supervisor, two.supervisor)
        verdict = told([one, two]).verdict()
    assert all(proof["proved_empty"] for proof in proofs)
    assert verdict
    assert (verdict.state, verdict.exit_code, verdict.line) == ("stopped", 143, "stopped: by a test")


def test_a_killed_supervisor_is_lost_and_its_workers_are_gone(hosts: list[Host], folder: Path) -> None:
    with launched(hosts, folder, "import threading; threading.Event().wait(600)") as (_, (one, two)):
        wait_for(lambda: len(two.events("worker_started")) == 2, "the workers")
        workers = [event["pid"] for event in two.events("worker_started")]
        os.kill(two.supervisor, 9)
        wait_for(lambda: gone(two.event("agent_started")["pid"], *workers), "the end of all")
        assert two.status().state == "lost"
        assert one.status().state == "running"


def test_a_torch_that_cannot_be_taken_apart_gets_its_store_the_plain_way(folder: Path) -> None:
    broken = with_constant(
        "rendezvous/store", 'importlib.import_module("torch._C")._c10d_init()', "signal.raise_signal(signal.SIGABRT)"
    )
    connector = Connector()
    with contextlib.closing(connector), Host.open(entry(folder / "state", "three"), connector, broken) as host:
        plan = agent_plan(host, folder, "import threading\nthreading.Event().wait(600)")
        plan["argv"] += ["--rdzv-endpoint", "127.0.0.1:{port}"]
        plan["store"] = {"address": "127.0.0.1", "ports": list(PORTS)}
        started = start(host, plan)
        try:
            started.commit()
            wait_for(lambda: "serving on port" in started.said("../store.log"), "the second store")
            assert started.event("store_exited")["exit_code"] == 128 + signal.SIGABRT
            assert started.spool.alive()
        finally:
            assert started.stop()["proved_empty"]
