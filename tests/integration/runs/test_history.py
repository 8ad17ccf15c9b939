"""What was said of a run's end stands: a host that is off later, or has another key, changes nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import WAIT, User, user_of, wait_until_nothing_is_left
from tests.lab import texts
from tests.own_lab import own_lab
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

SCRIPT = f"""{WAIT}
print("started", flush=True)
if sys.argv[1] == "raises" and os.environ["RANK"] == "2":
    raise ValueError("loss is NaN")
if sys.argv[1] == "waits":
    wait_for("never")
"""
SAME = ("run", "state", "exit_code", "verdict", "remedy", "ended", "started", "attempt", "failures")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Three hosts for all tests of this file; `user` repairs them after each test."""
    with own_lab(3, connect_timeout=2) as made:
        yield made


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[User]:
    """A user with a new project; after the test all hosts are on, reachable and in known_hosts again."""
    yield user_of(lab, tmp_path, {"job.py": SCRIPT})
    mend(lab)


def mend(lab: Lab) -> None:
    for host in lab.hosts:
        if not host.running:
            host.boot()
        host.heal()
    (lab.folder / "known_hosts").write_text(texts.known_hosts(lab.machines))


def stranger_to(lab: Lab, user: User, name: str) -> User:
    """The same person at another machine: nothing is kept there."""
    base = user.folder.parent / name
    base.mkdir()
    other = user_of(lab, base, {})
    other.env["HOME"] = user.env["HOME"]
    return other


@pytest.fixture
def stranger(lab: Lab, user: User) -> User:
    return stranger_to(lab, user, "elsewhere")


LISTED = tuple(name for name in SAME if name != "failures")


def listed(user: User, runs: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of `runs --all --json` for these runs."""
    told = user.run("runs", "--all", "--json").json
    return [{name: one[name] for name in LISTED} for one in told if one["run"] in runs]


def told(user: User, run: str) -> dict[str, Any]:
    value = user.status(run)
    return {name: value[name] for name in SAME}


def test_one_host_is_enough_to_tell_how_runs_ended_and_without_a_copy_nobody_knows(
    lab: Lab, user: User, stranger: User
) -> None:
    good = user.run("run", "job.py", "ends")
    assert good.code == 0, good.err
    bad = user.run("run", "job.py", "raises")
    assert (bad.code, bad.notes[-1][:50]) == (1, "rank 2 (gpu02:0) failed first: ValueError: loss is"), bad.err
    alone = user.run("run", "--detach", "job.py", "ends").out.strip()
    assert user.run("wait", alone).code == 0
    wait_until_nothing_is_left(lab.hosts, alone)
    runs = (good.run, bad.run, alone)
    before = [told(stranger, run) for run in runs]
    assert [(value["state"], value["exit_code"]) for value in before] == [
        ("succeeded", 0),
        ("failed", 1),
        ("succeeded", 0),
    ]

    for name in ("gpu01", "gpu02"):
        lab.host(name).new_host_key()
    assert [told(user, run) for run in runs] == [told(stranger, run) for run in runs] == before
    assert [stranger.run("wait", run).code for run in (good.run, bad.run)] == [0, 1]
    hosts = {one["name"]: one for one in stranger.status(bad.run)["hosts"]}
    assert (hosts["gpu02"]["state"], hosts["gpu02"]["end"]["exits"]) == ("unreachable", {"1": "2"})

    lab.host("gpu02").power_off()
    assert listed(stranger, runs) == [{name: one[name] for name in LISTED} for one in before]

    lab.host("gpu00").new_host_key()
    assert listed(user, runs) == [{name: one[name] for name in LISTED} for one in before]  # kept by the project
    assert user.run("wait", bad.run).code == 1

    mend(lab)
    other = stranger_to(lab, user, "with nothing kept")
    for host in lab.hosts:
        host.run(["sh", "-c", f"rm ~/.clusterddp/runs/{good.run}/1/*/verdict.json"])
    assert told(other, good.run)["state"] == "succeeded", "all hosts together judge it again"
    lab.host("gpu01").power_off()
    value = told(other, good.run)
    unknown = ("unknown", 125, "unknown: gpu01 does not answer now")
    assert (value["state"], value["exit_code"], value["verdict"]) == unknown, "without a copy nobody knows"
    assert told(user, good.run)["state"] == "succeeded", "who followed it keeps it"


def test_a_node_that_was_cut_off_speaks_for_itself_and_the_others_verdict_counts(
    lab: Lab, user: User, stranger: User
) -> None:
    with user.start("run", "--relaunch", "1", "--nnodes", "3", "job.py", "waits") as live:
        for rank in range(3):
            live.wait_for(f"[{rank} gpu0{rank}:0] started")
        run = live.run
        live.process.kill()  # nobody watches
        cut = lab.host("gpu02")
        for other in lab.hosts[:2]:
            cut.drop(proto="all", direction="both", peer=other.address)
        wait_until_nothing_is_left(lab.hosts, run, timeout=60.0)  # who is alone gives up after a while
    found = user.status(run)
    assert (found["state"], found["exit_code"]) == ("failed", 125)
    assert found["verdict"].startswith("gpu02 was lost: no answer")
    lab.host("gpu00").power_off()
    lab.host("gpu01").power_off()
    assert user.status(run)["verdict"] == found["verdict"]  # who has seen it once keeps it
    alone = stranger.status(run)
    assert (alone["state"], alone["exit_code"]) == ("failed", 125)
    assert any(line.startswith("this verdict is gpu02's") for line in alone["notices"])


def test_a_run_that_nobody_watched_is_told_though_no_host_answers(lab: Lab, user: User) -> None:
    runs = [user.run("run", "--detach", "job.py", "waits").out.strip() for _ in range(2)]
    assert user.run("stop", runs[0], "--grace", "0").code == 0
    for host in lab.hosts:
        host.power_off()
    told = [(one["run"], one["state"], one["verdict"]) for one in user.run("runs", "--json").json]
    unknown = "unknown: gpu[00:02] do not answer now"
    assert told == [(runs[0], "stopped", "stopped: by another command"), (runs[1], "unknown", unknown)]
