"""torchrun's own lines: those of an end of the workers are hidden, live and again, and nothing of them is lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, Done, User, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from tests.lab import Lab

need_torch()
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("lab_left_clean")]

FAILS = f"""{WAIT}
print("restart", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
if os.environ["RANK"] == "1":
    raise ValueError("loss is NaN")
wait_for("/tmp/never")
"""
WAITS = f"""{WAIT}
print("begun", flush=True)
wait_for("/tmp/never")
"""
TORCHS_OWN = "ChildFailedError"  # how torchrun ends when a worker has failed
TORCHS_STOP = "Sending process"  # what it says when it is told to end


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    files = {"fails.py": FAILS, "waits.py": WAITS}
    return user_of(lab, tmp_path_factory.mktemp("user"), files, hosts=["gpu00", "gpu01"])


@pytest.fixture(scope="module")
def failed(user: User) -> Done:
    done = user.run("run", "--show-agents", "--max-restarts", "1", "fails.py")
    assert done.code == 1, done.err
    return done


@pytest.fixture(scope="module")
def stopped(user: User) -> Done:
    with user.start("run", "waits.py") as live:
        for label in ("[0 gpu00:0]", "[1 gpu01:0]"):
            live.wait_for(f"{label} begun")
        live.interrupt()
        return live.end()


def agents(done: Done, host: str = "") -> list[str]:
    return [line for line in done.lines if line.startswith(f"[agent {host}")]


def test_all_of_them_are_shown_live_where_they_are_wanted(failed: Done) -> None:
    assert any(TORCHS_OWN in line for line in agents(failed))


def test_a_stop_shows_none_of_them(stopped: Done) -> None:
    assert stopped.code == 130
    assert agents(stopped) == []


def test_a_replay_hides_them_until_they_are_wanted(user: User, failed: Done, stopped: Done) -> None:
    again = user.run("logs", failed.run)
    assert agents(again) == []
    assert sorted(again.lines) == sorted(line for line in failed.lines if not line.startswith("[agent "))
    shown = user.run("logs", "--show-agents", failed.run)
    for host in ("gpu00", "gpu01"):  # live, lines of several hosts stand as they came; later, in order of time
        assert agents(shown, host) == agents(failed, host) != []
    assert any(TORCHS_STOP in line for line in agents(user.run("logs", "--show-agents", stopped.run)))


def test_they_come_beside_the_ranks_that_are_chosen_where_they_are_wanted(user: User, failed: Done) -> None:
    chosen = user.run("logs", "--rank", "0", "--show-agents", failed.run)
    assert any(TORCHS_OWN in line for line in agents(chosen))
    assert {said.rank for said in chosen.workers} == {0}


def test_programs_and_saved_files_get_everything(user: User, failed: Done) -> None:
    lines = [json.loads(line) for line in user.run("logs", "--json", failed.run).lines]
    assert any(TORCHS_OWN in line["text"] for line in lines if line["rank"] is None)
    assert user.run("logs", "--save", "saved", failed.run).code == 0
    assert TORCHS_OWN in (user.folder / "saved" / "1" / "agent-gpu01.out").read_text()
