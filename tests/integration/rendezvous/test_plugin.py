"""The ways agents meet, under real torchrun: the plugin, and static; on this machine, started as a launch does it."""

from __future__ import annotations

import contextlib
import os
import signal
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.hosts.client import Host
from clusterddp.hosts.fanout import each, values
from clusterddp.hosts.ssh import Connector
from clusterddp.launch.prepare import new_run_id
from clusterddp.launch.ssh.over_ssh import launch
from clusterddp.remote.spool.layout import Spool
from clusterddp.runs.view.run_view import run_views
from tests.integration.cli import WAIT
from tests.integration.real_helper import entry, wait_for
from tests.integration.runs_started import Started, node, plan_of
from tests.lab.system import LabError
from tests.lean import lean_python, training_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterddp.launch.make_plan import LaunchPlan

need_torch()
pytestmark = pytest.mark.torch

PORTS = (28100, 28299)  # of these tests alone: a run takes some ports, and TCP keeps each for a minute after it
DIES_ONCE = f"""{WAIT}
import signal
names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH")
print(*[os.environ.get(name) for name in names], flush=True)
ours = [name for name in os.environ if name.startswith("CLUSTERDDP_")]
assert sorted(ours) == ["CLUSTERDDP_HOST", "CLUSTERDDP_RUN_DIR", "CLUSTERDDP_RUN_ID"], ours
assert not [entry for entry in sys.path if "remote.pyz" in entry], sys.path
mark = "was here " + os.environ["RANK"]
if not os.path.exists(mark):
    open(mark, "w").close()
    if os.environ["RANK"] == "1":
        for rank in range(3):
            wait_for("was here %d" % rank)
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait(600)  # as in a collective with the dead one
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    connector = Connector()
    with contextlib.ExitStack() as stack:
        stack.callback(connector.close)
        entries = [entry(tmp_path / "state", name) for name in ("one", "two", "three")]
        opened = values(each(entries, lambda wanted: Host.open(wanted, connector)))
        yield [stack.enter_context(host) for host in opened]


@contextlib.contextmanager
def launched(hosts: list[Host], plan: LaunchPlan) -> Iterator[list[Started]]:
    """The plan under way on both hosts; stopped when the test leaves it."""
    spools = launch(hosts, plan, {}).spools
    started = [Started(host=host, run=plan.run, spool=Spool(spools[host.name])) for host in hosts]
    try:
        yield started
    finally:
        values(each(hosts, lambda host: started[hosts.index(host)].stop()))


def plan_for(
    hosts: list[Host],
    folder: Path,
    script: str,
    counts: tuple[int, ...],
    env: dict[str, str],
    backend: str = "clusterddp",
    python: str = "",
    **options: Any,
) -> LaunchPlan:
    """A plan whose workers have stores but no tensors, unless ``python`` is another interpreter."""
    run = new_run_id()
    nodes = [
        node(
            host,
            folder,
            run,
            nproc=count,
            ports=PORTS,
            python=python or lean_python(),
            env={"OMP_NUM_THREADS": "1", **env},
        )
        for host, count in zip(hosts, counts, strict=True)
    ]
    (folder / "work" / "train.py").write_text(textwrap.dedent(script))
    plan = plan_of(nodes, run, rdzv_backend=backend, **options)
    addresses = ("127.0.1.99", "127.0.1.100", "127.0.1.10")[: len(nodes)]  # as text the first node's comes last
    spread = tuple(one._replace(address=at) for one, at in zip(plan.nodes, addresses, strict=True))
    store, shared = f"{plan.nodes[0].address}:", plan.shared
    argv = tuple(word.replace(store, f"{addresses[0]}:") for word in shared.argv)
    return replace(plan, nodes=spread, shared=shared._replace(argv=argv))


THE_OTHER_FIRST = f"""{WAIT}
from torch.distributed import TCPStore
rank = int(os.environ["RANK"])
if rank == 0:
    wait_for("met")
assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"  # what torch's env:// asks
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, is_master=False)
store.add("came", 1)
open("met", "w").close()
store.wait(["last"]) if rank else store.set("last", "")
"""


def test_a_worker_that_comes_before_rank_0_finds_the_store(hosts: list[Host], tmp_path: Path) -> None:
    plan = plan_for(hosts[:2], tmp_path, THE_OTHER_FIRST, (1, 1), {})
    with launched(hosts[:2], plan) as (one, two):
        assert [started.ended()["state"] for started in (one, two)] == ["succeeded", "succeeded"], one.said()
        events = [event for started in (one, two) for event in started.events("worker_started")]
    assert {PORTS[0] <= event["master_port"] <= PORTS[1] for event in events} == {True}


@pytest.mark.parametrize("path", [None, "/of/the/user"])
def test_ranks_follow_the_inventory_and_all_workers_start_again(
    hosts: list[Host], tmp_path: Path, path: str | None
) -> None:
    env = {"PYTHONPATH": path} if path else {}
    plan = plan_for(hosts[:2], tmp_path, DIES_ONCE, (1, 2), env, max_restarts=1)
    with launched(hosts[:2], plan) as (one, two):
        assert [started.ended()["state"] for started in (one, two)] == ["succeeded", "succeeded"]
        starts = [started.events("worker_started") for started in (one, two)]
        said = [started.said(f"{number}.0.out").split() for number in (0, 1) for started in (one, two)]
    for events, ranks in zip(starts, ([0], [1, 2]), strict=True):
        rounds = [(event["round"], event["rank"]) for event in sorted(events, key=lambda e: (e["start"], e["rank"]))]
        assert rounds == [(number, rank) for number in (0, 1) for rank in ranks]
    assert {words[2] for words in said} == {"127.0.1.99"}
    assert all(PORTS[0] <= int(words[3]) <= PORTS[1] for words in said)
    assert {(words[1], words[4]) for words in said} == {("3", str(path))}


HANGS_WITH_ALL = """
    import os, threading
    from torch.distributed import TCPStore
    world = int(os.environ["WORLD_SIZE"])
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=False)
    assert store.add("workers of this round", 1) <= world
    print(os.environ["WORLD_SIZE"], flush=True)
    if os.environ["WORLD_SIZE"] == "7":  # as in a collective whose peer is gone, and nobody says so
        threading.Event().wait()
"""


def all_started(nodes: Sequence[Started]) -> None:
    """Wait for all seven workers."""
    try:
        wait_for(lambda: sum(len(at.events("worker_started")) for at in nodes) == 7, "all workers")
    except LabError as error:
        raise AssertionError(f"{error}: {[at.account() for at in nodes]}") from None


def test_an_elastic_run_goes_on_without_a_node_though_nothing_fails(hosts: list[Host], tmp_path: Path) -> None:
    plan = plan_for(hosts, tmp_path, HANGS_WITH_ALL, (2, 1, 4), {}, nnodes=(2, 3))
    with launched(hosts, plan) as (one, two, three):
        all_started((one, two, three))
        os.kill(two.event("agent_started")["pid"], signal.SIGKILL)
        records = [started.ended() for started in (one, two, three)]
        (view,) = run_views([started.status() for started in (one, two, three)])
        second = [[e["rank"] for e in at.events("worker_started") if e["round"] == 1] for at in (one, two, three)]
    assert [record["state"] for record in records] == ["succeeded", "failed", "succeeded"]
    assert [sorted(ranks) for ranks in second] == [[0, 1], [], [2, 3, 4, 5]]
    verdict = view.verdict()
    assert verdict
    assert (verdict.state, verdict.exit_code, verdict.notices) == ("succeeded", 0, ("the run ended without two",))
    assert "two: gone, by run control; the workers start again without it" in one.said() + three.said()


def test_an_elastic_run_ends_when_too_few_nodes_are_left(hosts: list[Host], tmp_path: Path) -> None:
    plan = plan_for(hosts, tmp_path, HANGS_WITH_ALL, (2, 1, 4), {}, nnodes=(2, 3))
    with launched(hosts, plan) as nodes:
        all_started(nodes)
        for gone in nodes[1:]:
            os.kill(gone.event("agent_started")["pid"], signal.SIGKILL)
        records = [started.ended() for started in nodes]
        assert nodes[0].stop()["proved_empty"]
    assert [record["state"] for record in records] == ["stopped", "failed", "failed"]
    assert records[0]["reason"] == "another host failed"


SAVES = """
    import signal, sys, threading
    def save(*_):
        print("saved", flush=True)
        sys.exit()
    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    threading.Event().wait()
"""


def store_of(started: Started) -> int:
    """The pid of a node's rendezvous store."""
    pids = Path(f"/proc/{started.supervisor}/task/{started.supervisor}/children").read_text().split()
    (found,) = [pid for pid in pids if b"\0store\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(found)


def unread_requests(port: int) -> int:
    """How many connections to a listener of this machine hold bytes that it has not read."""
    tables = (Path("/proc/net", table) for table in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    return sum(int(row[1].split(":")[1], 16) == port and int(row[4].split(":")[1], 16) > 0 for row in rows)


def test_workers_may_save_though_the_host_of_the_store_is_silent(hosts: list[Host], tmp_path: Path) -> None:
    plan = plan_for(hosts[:2], tmp_path, SAVES, (1, 1), {})
    with launched(hosts[:2], plan) as nodes:
        for started in nodes:
            wait_for(lambda started=started: "ready" in started.said("0.0.out"), "a worker")  # type: ignore[misc]
        os.kill(store_of(nodes[0]), signal.SIGSTOP)
        wait_for(lambda: unread_requests(nodes[0].spool.store_port()) == len(nodes), "both agents ask the store")
        proofs = [started.stop(grace=20) for started in nodes]
    assert [proof["proved_empty"] for proof in proofs] == [True, True]
    assert ["saved" in started.said("0.0.out") for started in nodes] == [True, True]


ENV_STYLE = """
    import argparse, os
    import torch
    import torch.distributed as dist
    parser = argparse.ArgumentParser()
    parser.add_argument("--local-rank", "--local_rank", type=int)
    parser.add_argument("rest", nargs="*")
    args = parser.parse_args()
    assert os.environ["MASTER_ADDR"] and os.environ["MASTER_PORT"]
    dist.init_process_group("gloo", init_method="env://")
    total = torch.ones(1)
    dist.all_reduce(total)
    print(dist.get_rank(), args.local_rank, int(total), args.rest)
    dist.destroy_process_group()
"""


def test_a_static_run_of_a_script_that_wants_its_local_rank(hosts: list[Host], tmp_path: Path) -> None:
    given = ("$local_rank", "${local_rank}", "$$", "$(x)")
    static: dict[str, Any] = {"backend": "static", "python": training_python()}
    plan = plan_for(hosts[:2], tmp_path, ENV_STYLE, (1, 2), {}, **static, pass_local_rank=True, args=given)
    with launched(hosts[:2], plan) as (one, two):
        assert [started.ended()["state"] for started in (one, two)] == ["succeeded", "succeeded"]
        said = [one.said("0.0.out"), two.said("0.0.out"), two.said("0.1.out")]
        events = [event for started in (one, two) for event in started.events("worker_started")]
    assert said == [f"{rank} {local} 3 {list(given)}\n" for rank, local in enumerate((0, 0, 1))]
    assert {event["master_addr"] for event in events} == {"127.0.1.99"}  # as in the endpoint
    assert {PORTS[0] <= event["master_port"] <= PORTS[1] for event in events} == {True}
