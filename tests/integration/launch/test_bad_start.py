"""Disconnects while a run starts: one line, the contract's code, and in the end nothing left on any host.

The start is held by a setup line of the second host, once the first host's supervisor stands and waits to hear that
all have started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import clusterddp
from tests.integration.cli import Live, User, nothing_left
from tests.integration.complaint import one_line
from tests.lab.faults import connections
from tests.lab.system import wait_until
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import MakeLab
    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

# The workdir holds the script only once it was synced: facts, asked before, pass this line at once.
HELD = "test ! -e ~/w/train.py || { touch /tmp/held; while test ! -e /tmp/go; do sleep 0.05; done; }"
# The command line as it is, but quicker to give up: a silent host, and an operator who never says that all started.
IMPATIENT = """
import sys
from pathlib import Path
from clusterddp.hosts import client, zipapp
from clusterddp.cli.main import main
client.PING_AFTER, client.SILENCE_TIMEOUT = 1.0, 4.0
zipapp.REMOTE = Path(sys.argv.pop(1))
main()
"""
COMMIT_LIMIT, SHORT_LIMIT = "COMMIT_TIMEOUT = START_TIMEOUT + 30.0", "COMMIT_TIMEOUT = 8.0"


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The remote code with a short limit for the commit."""
    copy = tmp_path_factory.mktemp("code") / "remote"
    shutil.copytree(Path(clusterddp.__file__).parent / "remote", copy, ignore=shutil.ignore_patterns("__pycache__"))
    orders = copy / "shared" / "supervisor" / "start_records.py"
    text = orders.read_text()
    assert COMMIT_LIMIT in text
    orders.write_text(text.replace(COMMIT_LIMIT, SHORT_LIMIT))
    return copy


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.fixture
def held(make_lab: MakeLab, user: User, remote: Path) -> Iterator[tuple[Lab, Live]]:
    """Two hosts, and a run whose start is held on the second while the first has started."""
    lab = make_lab(2)
    user.write("train.py", "print('never')\n")
    more = {"all": {"clusterddp_workdir": "~/w"}, "gpu01": {"clusterddp_setup": HELD}}
    lab.write_inventory(user.folder / "i.yaml", more=more)
    argv = [sys.executable, "-c", IMPATIENT, str(remote), "run", "-i", "i.yaml", "train.py"]
    with contextlib.closing(Live(argv, user.folder, user.env)) as live:
        second = lab.host("gpu01")
        wait_until("the start is held", lambda: not second.run(["ls", "/tmp/held"], check=False).returncode, 60)
        wait_until("the first host has started", lambda: bool(lab.host("gpu00").leftovers("remote.pyz")), 60)
        yield lab, live


def test_ctrl_c_in_the_middle_of_a_start_leaves_nothing(held: tuple[Lab, Live]) -> None:
    lab, live = held
    with nothing_left(lab):
        live.interrupt()
        done = live.end()
    assert done.code == 130
    assert done.notes[-3].endswith("proved empty")


def test_a_run_that_another_command_stops_in_the_middle_of_its_start_was_stopped(
    held: tuple[Lab, Live], user: User
) -> None:
    lab, live = held
    with nothing_left(lab):
        stop = user.run("stop", "-i", "i.yaml")
        assert stop.code == 0, stop.err
        lab.host("gpu01").write("/tmp/go", "")
        done = live.end()
    assert (done.code, done.notes[-1]) == (143, "stopped: by another command")


def _drop_connection(lab: Lab) -> None:
    for pid in connections(lab.host("gpu01").init):
        os.kill(pid, 9)


@pytest.mark.parametrize(
    ("disconnect", "said"),
    [
        (_drop_connection, "the connection was lost"),
        (lambda lab: lab.host("gpu01").power_off(), "no answer for"),
    ],
    ids=["its sshd dies", "its power is cut"],
)
def test_a_host_lost_in_the_middle_of_a_start_leaves_nothing(
    held: tuple[Lab, Live], disconnect: Callable[[Lab], None], said: str
) -> None:
    lab, live = held
    with nothing_left(lab):
        disconnect(lab)
        one_line(live.end(), 125, "gpu01: ", said)


def test_an_operator_killed_in_the_middle_of_a_start_leaves_nothing(held: tuple[Lab, Live]) -> None:
    lab, live = held
    with nothing_left(lab):
        live.process.kill()
        assert live.end().code == -9
