"""`clusterddp top` of live runs: over two nodes on this machine, and on the lab."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import User, local_processes, nothing_left, used_before, user_of
from tests.lab.system import wait_until
from tests.lean import training_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

# A loader whose batches take 50 ms, on one rank so many ms more.
STEPS = """
import os, threading
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
late = float(os.environ.get("LATE_MS", "0")) if dist.get_rank() == 1 else 0
step = 0
while True:
    threading.Event().wait((50 + late) / 1000)
    dist.all_reduce(torch.ones(4))
    if step == 3:
        print("together", flush=True)
    step += 1
"""
ONE = ("--limit", "local0", "--nproc-per-node", "2")  # both ranks on one of the nodes
FILES = {"steps.py": STEPS}
_ESCAPE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """Somebody without an inventory, who trains over two nodes on this machine."""
    user = used_before(User(tmp_path))
    user.env["CLUSTERDDP_PYTHON"] = training_python()
    user.write("steps.py", STEPS)
    yield user
    user.run("stop", "--all", "--grace", "0")
    wait_until("nothing is left", lambda: not local_processes(str(user.home)))


def named(user: User, *words: str) -> dict[str, Any]:
    """The first look that names a rank: on a busy machine noise may hide it in those before."""
    found: list[dict[str, Any]] = []

    def is_named() -> bool:
        found.append(user.run("top", "--json", *words).json)
        return bool(found[-1]["late"]["ranks"])

    wait_until("a rank is named", is_named, timeout=90)
    return found[-1]


@pytest.fixture(scope="module")
def on_lab(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    return user_of(lab, tmp_path_factory.mktemp("user"), FILES, more={"all": {"clusterddp_python": training_python()}})


def test_a_live_run_on_three_hosts_is_shown_in_each_form_and_its_late_rank_named(on_lab: User, lab: Lab) -> None:
    user = on_lab
    words = ("--limit", "gpu00,gpu01,gpu02", "--time-limit", "1h", "--env", "LATE_MS=100", "steps.py")
    with nothing_left(lab):
        run = user.run("run", "--detach", *words).out.strip()
        user.hear(run, "together", times=3)
        value = named(user, run, "--openmetrics", "seen.prom")
        table = user.run("top", run)
        with user.start("top", run, "--openmetrics", "seen.prom", terminal=True) as live:
            live.wait_for("gpu01:0", times=2)
            live.resize(40)
            wait_until("it is drawn anew", lambda: live.text().endswith("\x1b[J") and widest(live.text()) <= 40)
            live.interrupt()
            assert live.end().code == 0
        user.run("stop", run, "--grace", "0")
    assert (value["run"], value["state"], value["late"]["kind"], value["late"]["ranks"]) == (
        run, "running", "always", [1],
    )  # fmt: skip
    assert json.dumps(value["late"]["sentence"]).startswith('"rank 1 (gpu01:0) is late in each step: ')
    assert value["late"]["excess_ms"] > 80
    assert 0 < value["time_left"] < 3600
    ranks = value["ranks"]
    assert [(rank["rank"], rank["host"], rank["why"]) for rank in ranks] == [
        (number, f"gpu0{number}", None) for number in range(3)
    ]
    assert all(rank["collectives_per_s"] > 1 and rank["memory"] > 10**7 for rank in ranks)
    assert all(rank["output_age_s"] is not None for rank in ranks)
    shown = [(host["name"], host["error"]) for host in value["hosts"]]
    assert shown == [("gpu00", None), ("gpu01", None), ("gpu02", None)]
    assert all(0 <= host["cpu"] <= 1 and host["nics"] for host in value["hosts"])
    metrics = (user.folder / "seen.prom").read_text()
    assert f'clusterddp_rank_late{{run="{run}",rank="1",host="gpu01"}} 1\n' in metrics

    assert table.code == 0
    assert "rank 1 (gpu01:0) is late in each step" in table.out
    assert "\x1b" not in table.out

    over = user.run("top", run)
    assert over.code == 0
    assert f"run {run} is not live" in over.out


def widest(text: str) -> int:
    """The widest line of the last screen."""
    return max(len(_ESCAPE.sub("", line)) for line in text.rpartition("\x1b[H")[2].splitlines())


def test_without_a_run_hosts_are_shown_and_bad_words_are_one_line(user: User) -> None:
    done = user.run("top", "--json")
    value = done.json
    assert (done.code, value["run"], value["late"], value["ranks"]) == (0, None, None, [])
    assert [host["name"] for host in value["hosts"]] == ["local0", "local1"]
    assert "no run of this project is live" in user.run("top").out
    unknown = user.run("top", "nosuchrun")
    assert (unknown.code, unknown.out) == (1, "")
    folder = user.run("top", "--openmetrics", "missing/x.prom")
    assert (folder.code, folder.out) == (2, "")
    assert "there is no folder missing" in folder.err


def test_without_the_server_for_traces_it_stays_undecided(user: User) -> None:
    run = user.run("run", "--detach", "--no-comm-trace", *ONE, "steps.py").out.strip()
    user.hear(run, "together", times=2)
    value = user.run("top", "--json").json
    assert value["late"]["kind"] == "undecided"
    assert "do not say when they call operations" in value["late"]["sentence"]
    assert all(rank["why"] for rank in value["ranks"])
