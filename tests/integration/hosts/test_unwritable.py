"""Hosts where nothing can be written any more: every command says so, does what it can, and a run can be stopped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, Done, User, nothing_left, user_of
from tests.remedies import remedy
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.lab import Lab
    from tests.lab.host import LabHost

need_torch()
pytestmark = pytest.mark.torch

HOME, STATE = "/home/trainer", "/home/trainer/.clusterddp"
READ_ONLY = f"gpu01: cannot write {STATE}: Read-only file system; have it mounted for writing, or set clusterddp_state"
LOOKS = (  # commands that need to write nothing there, each with its code where there is no run
    (1, "status"), (0, "runs"), (1, "stop"), (1, "wait"), (1, "logs"), (1, "signal none USR1"), (0, "exec -- true"),
    (0, "shell gpu01"), (0, "pull /etc/hostname names/ --host gpu01"), (0, "down --yes"),
)  # fmt: skip
MOST = 5.0  # seconds until a command has said it
NO_HOME = remedy("remote/system/bootstrap.py", "have it made, or set clusterddp_state")
GO = "/tmp/go on"
STAYS = f"""{WAIT}
print("started", flush=True)
wait_for({GO!r})
print("the end", flush=True)
"""


@pytest.fixture
def lab(make_lab: MakeLab) -> Iterator[Lab]:
    made = make_lab(2)
    with nothing_left(made):
        yield made


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> User:
    user = user_of(lab, tmp_path, {"stays.py": STAYS})
    user.up(user.folder / "inventory.yaml")
    return user


def said(user: User, *words: str) -> Done:
    """A command to its end, which comes soon."""
    began = time.monotonic()
    done = user.run(*words)
    assert time.monotonic() - began < MOST, words
    return done


def test_each_command_says_that_a_home_is_read_only_and_does_what_needs_no_writing(user: User, lab: Lab) -> None:
    lab.host("gpu01").read_only(HOME)
    user.write("data", "x")
    for code, line in ((1, "up inventory.yaml"), (125, "run stays.py"), (1, "sync"), (1, "push data there/")):
        done = said(user, *line.split())
        assert done.code == code, done.err
        assert done.notes[-1] == f"{READ_ONLY} to a folder that can be written; or go on without: --limit 'all:!gpu01'"
    for code, line in LOOKS:
        done = said(user, *line.split())
        assert [note for note in done.notes if READ_ONLY in note], done.err
        assert done.code == code, done.err
    assert said(user, "hosts").code == 0
    assert f"cannot write: state {STATE} (Read-only file system)" in user.run("doctor", "--skip", "rehearsal").out


@pytest.mark.parametrize("names", [["gpu01"], ["gpu00", "gpu01"]], ids=["one host", "all hosts"])
def test_a_live_run_goes_on_and_is_stopped_where_its_home_has_become_read_only(
    user: User, lab: Lab, names: list[str]
) -> None:
    run = said(user, "run", "--detach", "stays.py").out.strip()
    user.hear(run, "started", times=2)
    for name in names:
        lab.host(name).read_only(HOME)
    status = said(user, "status", run, "--json").json
    assert (status["state"], [host["state"] for host in status["hosts"]]) == ("running", ["running", "running"])
    assert said(user, "logs", run).out.count("started") == 2
    done = said(user, "stop", run)
    assert done.code == 0, done.err
    assert [note.endswith("proved empty") for note in done.notes[-2:]] == [True, True], done.err
    if len(names) == 1:
        assert user.run("wait", run).notes[-1] == f"run {run}: stopped: by another command"


def test_a_run_that_ends_on_a_read_only_home_is_told_by_the_others(user: User, lab: Lab) -> None:
    with user.start("run", "stays.py") as live:
        live.wait_for("started", times=2)
        lab.host("gpu01").read_only(HOME)
        for host in lab.hosts:
            host.write(GO, "")
        done = live.end()
    assert done.code == 0, done.err
    assert [one.text for one in done.workers].count("the end") == 2


def full(host: LabHost) -> None:
    host.small_disk("/small", "1m")
    host.fill_disk("/small")


def no_inodes(host: LabHost) -> None:
    host.small_disk("/small", "1m", inodes=1)


def a_file(host: LabHost) -> None:
    host.run(["sh", "-c", "mkdir -m 1777 /small && touch /small/state"], user="root")


def another_owner(host: LabHost) -> None:
    host.run(["mkdir", "-m", "755", "/small"], user="root")


UNWRITABLE: dict[Callable[[LabHost], None], str] = {
    full: ": No space left on device; make room there, or set clusterddp_state",
    no_inodes: ": No space left on device (no inode is free); make room there, or set clusterddp_state",
    a_file: ": it is a file; set clusterddp_state",
    another_owner: ": Permission denied; mend owner and mode there, or set clusterddp_state",
}


@pytest.mark.parametrize("happens", UNWRITABLE, ids=lambda one: one.__name__)
def test_a_state_folder_that_cannot_be_made_is_named_with_the_reason(
    make_lab: MakeLab, tmp_path: Path, happens: Callable[[LabHost], None]
) -> None:
    lab = make_lab(1)
    happens(lab.host("gpu00"))
    user = user_of(lab, tmp_path, {"stays.py": STAYS}, more={"all": {"clusterddp_state": "/small/state"}})
    for words, code in ((("up", "inventory.yaml"), 1), (("run", "stays.py"), 125), (("status",), 1), (("stop",), 1)):
        done = said(user, *words)
        assert done.code == code, done.err
        assert "gpu00: cannot write /small/state" in done.notes[-1], done.err
        assert UNWRITABLE[happens] in done.notes[-1], done.err


def test_a_home_that_is_missing_is_said_to_be(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(1)
    host = lab.host("gpu00")
    user = user_of(lab, tmp_path, {}, more={"all": {"ansible_python_interpreter": "/small/python"}})
    script = '#!/bin/sh\nHOME=/home/bob exec python3 "$@"\n'
    host.write("/small/python", script, user="root", mode=0o755)
    done = said(user, "status")
    assert done.notes[-1] == f"gpu00: the home folder /home/bob is missing; {NO_HOME.text}"
    of_all = {"ansible_python_interpreter": "/small/python", "clusterddp_state": "/small/state"}
    host.run(["install", "-d", "-o", "trainer", "/small/state"], user="root")
    lab.write_inventory(user.folder / "elsewhere.yaml", more={"all": of_all})
    assert said(user, "runs", "-i", "elsewhere.yaml").code == 0
    host.run(["install", "-d", "-o", "trainer", "/home/bob"], user="root")
    assert said(user, "runs").code == 0
