"""The main job through the real command line: four hosts, the first with two workers."""

from __future__ import annotations

import json
import re
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import EXAMPLES, Done, User
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from tests.lab import Lab

need_torch()
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("lab_left_clean")]

TWO_WORKERS: dict[str, dict[str, object]] = {"gpu00": {"clusterddp_nproc": 2}}
PLACES = {0: ("gpu00", 0), 1: ("gpu00", 1), 2: ("gpu01", 0), 3: ("gpu02", 0), 4: ("gpu03", 0)}
ARGUMENTS = (
    *("it's", '"quoted"', "$(id)", "`id`", "$HOME", "two  spaces", "new\nline", "*", "", "back\\slash", "-x"),
    *("ünï", "--name", "--lr=3e-4", "a;b", "{port}", "#", "~"),
)
TELLS = """
import json, os, socket, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CLUSTERDDP_HOST")
print(json.dumps([socket.gethostname(), [os.environ[name] for name in names], sys.argv]), flush=True)
"""
DIES_ONCE = """
import os, pathlib, signal, socket, threading
there = (os.environ["MASTER_ADDR"], 45456)
mark = pathlib.Path(os.environ["CLUSTERDDP_RUN_DIR"], "was here")  # torchrun's own count differs between hosts
first = not mark.exists()
mark.touch()
print("first round" if first else "again", flush=True)
while first and os.environ["RANK"] == "1":
    try:
        socket.create_connection(there)  # the other has made its mark too
        os.kill(os.getpid(), signal.SIGKILL)
    except ConnectionRefusedError:
        pass
if first:
    listening = socket.create_server(there)
    threading.Event().wait(600)  # as in a collective with the dead one, until torchrun ends it
"""


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    """Somebody who has done `up` with four hosts, the first with two workers."""
    user = User(tmp_path_factory.mktemp("user"))
    lab.write_inventory(user.folder / "inventory.yaml", more=TWO_WORKERS)
    user.write("tells.py", TELLS)
    user.write("dies_once.py", DIES_ONCE)
    shutil.copy(EXAMPLES / "toy_ddp.py", user.folder)
    return user


@pytest.fixture(scope="module")
def up(user: User) -> Done:
    return user.run("up", "inventory.yaml")


@pytest.fixture(scope="module")
def told(user: User, up: Done) -> Done:
    """A run whose workers tell who they are and what they were given."""
    assert up.code == 0, up.err
    return user.run("run", "--name", "baseline", "tells.py", *ARGUMENTS)


def test_up_shows_every_host_with_the_ranks_it_will_hold(up: Done, lab: Lab) -> None:
    header, *rows = [line.split() for line in up.lines]
    assert header == ["host", "address", "nic", "gpus", "cores", "memory", "python", "torch", "ranks"]
    ends = [(row[0], row[1], row[2], row[-1]) for row in rows]
    ranks = ("0-1", "2", "3", "4")
    assert ends == [(host.name, host.address, "eth0", rank) for host, rank in zip(lab.hosts, ranks, strict=True)]
    assert up.notes == ["cluster: 4 hosts from inventory.yaml", "ready: 4 nodes, 5 ranks; remembered inventory.yaml"]


def test_every_rank_runs_on_its_host_and_its_lines_say_so(told: Done) -> None:
    assert told.code == 0, told.err
    assert {said.rank: (said.host, said.local_rank) for said in told.workers} == PLACES
    for said in told.workers:
        hostname, (rank, local_rank, world_size, local_world_size, name), _ = json.loads(said.text)
        assert (hostname, name) == (said.host, said.host)
        assert (int(rank), int(local_rank), world_size) == (said.rank, said.local_rank, "5")
        assert local_world_size == ("2" if said.host == "gpu00" else "1")


def test_arguments_arrive_untouched(told: Done) -> None:
    assert [json.loads(said.text)[2] for said in told.workers] == [["tells.py", *ARGUMENTS]] * 5


def test_a_run_says_what_it_uses_and_how_it_ended(told: Done) -> None:
    first, notice, code, started, ended = told.notes
    assert first == "cluster: 4 hosts from inventory.yaml"
    assert notice.startswith("--name stands after the script, so it goes to the script")
    assert re.fullmatch(r"code [0-9a-f]{6} \(4 files\)", code)
    assert started.startswith(f"run {told.run}: 5 ranks on 4 hosts; Ctrl-C stops it")
    assert ended.startswith((f"run {told.run} succeeded in ", f"run {told.run}: succeeded in "))


def test_status_tells_the_run_by_the_contract(user: User, told: Done) -> None:
    status = user.status("baseline")
    assert status == user.status(told.run[:8])  # a name, or a prefix of the id
    hosts = status.pop("hosts")
    ranks = {"gpu00": [0, 1], "gpu01": [2], "gpu02": [3], "gpu03": [4]}
    assert {host["name"]: host["ranks"] for host in hosts} == ranks
    assert all(set(host) >= {"name", "state", "ranks", "pids", "gpus"} for host in hosts)
    assert {host["state"] for host in hosts} == {"succeeded"}
    assert [host["pids"] for host in hosts] == [[]] * 4
    assert status["started"] < status["ended"]
    expected = {
        "run": told.run,
        "name": "baseline",
        "state": "succeeded",
        "attempt": 1,
        "round": 0,
        "world_size": 5,
        "launcher": "ssh",
    }
    expected |= {"exit_code": 0, "script": "tells.py", "argv": list(ARGUMENTS), "git": None}
    expected["launcher"] = "ssh"
    assert expected.items() <= status.items()
    others = {"started", "ended", "verdict", "code", "operator", "versions"}
    assert set(status) >= set(expected) | others


def test_runs_lists_this_projects_runs_without_their_hosts(user: User, told: Done) -> None:
    status = user.status(told.run)
    for of_one_run in ("hosts", "spares", "failures", "last_output"):
        del status[of_one_run]
    assert status in user.run("runs", "--json").json
    assert any(line.split()[:3] == [told.run, "baseline", "succeeded"] for line in user.run("runs").lines)


def test_ddp_trains_over_gloo(user: User, lab: Lab) -> None:
    """Agents and workers with nothing but the installed torch."""
    whole: dict[str, dict[str, object]] = {"all": {"clusterddp_python": sys.executable}, **TWO_WORKERS}
    path = lab.write_inventory(user.folder / "whole.yaml", more=whole)
    done = user.run("run", "-i", str(path), "--limit", "gpu01,gpu02", "toy_ddp.py", "--steps", "2")
    assert done.code == 0, done.out + done.err
    places = {0: ("gpu01", 0), 1: ("gpu02", 0)}
    for rank, (host, local_rank) in places.items():
        mine = [said for said in done.workers if said.rank == rank]
        assert {(said.host, said.local_rank) for said in mine} == {(host, local_rank)}
        assert mine[0].text == f"rank {rank} of {len(places)} on {host} with cpu, arguments []"
        assert [said.text.split(" loss ")[0] for said in mine[1:]] == ["step 0", "step 1"]


def test_options_say_how_many_and_what_is_shown(user: User, up: Done) -> None:
    assert up.code == 0
    result, timeline = user.folder / "result.json", user.folder / "timeline.txt"
    words = ("--nnodes", "1", "--nproc_per_node", "3", "--show", "1-2", "--result", str(result))
    done = user.run("run", *words, "--timeline", str(timeline), "tells.py")
    assert done.code == 0, done.out + done.err
    assert "not used: gpu[01:03]" in done.notes
    assert {said.rank: (said.host, said.local_rank) for said in done.workers} == {1: ("gpu00", 1), 2: ("gpu00", 2)}
    assert json.loads(result.read_text()) == user.status(done.run)
    rows = [re.split(r"  +", line) for line in timeline.read_text().splitlines()]
    here = [row[1] for row in rows if row[0] == "this machine"]
    here.remove("scan of the project")  # beside the others
    assert here == ["start-up", "connecting", "checking", "syncing", "starting", "following"]
    there = {row[1] for row in rows if row[0] == "gpu00"}
    assert {"connection", "helper: start", "facts", "start", "agent: imports, rendezvous", "workers (3)"} <= there


def test_a_killed_worker_comes_back_when_restarts_are_allowed(user: User, up: Done) -> None:
    assert up.code == 0
    done = user.run("run", "--limit", "gpu01,gpu02", "--max-restarts", "1", "dies_once.py")
    assert done.code == 0, done.out + done.err
    assert [said.text for said in done.workers if said.rank == 1] == ["first round", "again"]
    assert [said.text for said in done.workers if said.rank == 0][-1] == "again"
    assert user.status(done.run)["round"] == 1


def test_a_dry_run_prints_commands_and_starts_nothing(user: User, up: Done, lab: Lab) -> None:
    assert up.code == 0
    before = user.run("runs", "--json").json
    done = user.run("run", "--dry-run", "--env", "MODE=a b", "tells.py", "it's", "$x")
    assert done.code == 0, done.err
    blocks = done.out.split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == [f"# node {n}: {h.name}" for n, h in enumerate(lab.hosts)]
    commands = {block.rstrip().splitlines()[-1] for block in blocks}
    assert len(commands) == 1  # identical on every host
    assert commands.pop().endswith("""tells.py 'it'"'"'s' '$x'""")
    assert all("export MODE='a b'" in block for block in blocks)
    assert user.run("runs", "--json").json == before
