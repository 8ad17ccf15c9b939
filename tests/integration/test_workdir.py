"""A worker's cwd is what a user expects of their project folder: code, data and results, over many runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User, nothing_left

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab import Lab

pytest.importorskip("torch", reason="torchrun is part of torch")
pytestmark = pytest.mark.torch

TRAINS = """
import os
from pathlib import Path
import model

print("config", open("cfg.yaml").read().strip(), flush=True)
out = Path(__file__).parent / "out" / os.environ["RANK"]
out.mkdir(parents=True, exist_ok=True)
(out / "log.txt").open("a").write(model.VERSION + "\\n")
snapshot = Path("snapshot.pt")
print("snapshot", snapshot.read_text() if snapshot.exists() else "none", flush=True)
snapshot.write_text("by " + model.VERSION)
print("cwd", os.getcwd(), flush=True)
"""
MODULE = """
import os, sys
from pkg.part import NAME
print(__name__, NAME, open("only here.txt").read(), sys.argv[1:], os.getcwd(), flush=True)
"""
LONG = f"""{WAIT}
print("started", flush=True)
wait_for(sys.argv[1])
from late import VERSION
print("late code is", VERSION, "state is", open("state.txt").read(), flush=True)
open("state.txt", "w").write("by " + VERSION)
"""


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    user = User(tmp_path_factory.mktemp("user"))
    lab.write_inventory(user.folder / "inventory.yaml", hosts=["gpu01"])
    user.up(user.folder / "inventory.yaml")
    return user


@pytest.fixture(autouse=True)
def _nothing_left(lab: Lab) -> Iterator[None]:
    with nothing_left(lab):
        yield


def texts(user: User, *words: str, cwd: str = ".") -> list[str]:
    """What the one worker of a run said."""
    done = user.run("run", *words, cwd=cwd)
    assert done.code == 0, done.out + done.err
    return [said.text for said in done.workers]


def test_data_results_and_checkpoints_are_found_again_after_an_edit(user: User, lab: Lab) -> None:
    host = lab.host("gpu01")
    user.write("train.py", TRAINS)
    user.write("model.py", "VERSION = 'one'\n")
    user.write("cfg.yaml", "lr: 1\n")
    *said, cwd = texts(user, "train.py")
    workdir = cwd.removeprefix("cwd ")
    assert said == ["config lr: 1", "snapshot none"]
    user.write("model.py", "VERSION = 'two'\n")
    user.write("cfg.yaml", "lr: 2\n")
    assert texts(user, "train.py") == ["config lr: 2", "snapshot by one", cwd]
    assert host.read(f"{workdir}/out/0/log.txt") == "one\ntwo\n"
    assert host.read(f"{workdir}/snapshot.pt") == "by two"
    assert not (user.folder / "snapshot.pt").exists()


def test_a_module_runs_in_the_subfolder_the_command_was_given_in(user: User) -> None:
    user.write("exp/pkg/__init__.py", "")
    user.write("exp/pkg/train.py", MODULE)
    user.write("exp/pkg/part.py", "NAME = 'a sibling module'\n")
    user.write("exp/only here.txt", "data")
    (said,) = texts(user, "-m", "pkg.train", "--lr", "1", cwd="exp")
    beginning, _, cwd = said.rpartition(" ")
    assert beginning == "__main__ a sibling module data ['--lr', '1']"
    assert cwd.endswith("/exp")


def test_a_script_elsewhere_in_the_project_is_named_from_the_subfolder(user: User) -> None:
    user.write("tools/where.py", "import os; print(__file__, os.getcwd(), flush=True)\n")
    user.write("exp/only here.txt", "data")
    (said,) = texts(user, "../tools/where.py", cwd="exp")
    file, cwd = said.split(" ")
    assert cwd.endswith("/exp")
    assert file in {"../tools/where.py", f"{cwd}/../tools/where.py"}


def test_a_live_run_keeps_its_code_while_another_starts_with_other_code(user: User, lab: Lab) -> None:
    host = lab.host("gpu01")
    user.write("long.py", LONG)
    user.write("late.py", "VERSION = 'old'\n")
    user.write("start.py", "import os; open('state.txt', 'w').write('first'); print(os.getcwd(), flush=True)\n")
    (workdir,) = texts(user, "start.py")
    old, new = "/tmp/the old one goes on", "/tmp/the new one goes on"
    host.write(new, "")
    with user.start("run", "long.py", old) as first:
        first.wait_for("started")
        user.write("late.py", "VERSION = 'new'\n")
        second = user.run("run", "long.py", new)
        host.write(old, "")
        done = first.end()
    assert second.code == 0, second.out + second.err
    assert [said.text for said in second.workers][1:] == ["late code is new state is first"]
    (notice,) = [note for note in second.notes if "is live in" in note]
    assert done.run in notice
    assert workdir in notice
    assert done.code == 0, done.out + done.err
    assert [said.text for said in done.workers][1:] == ["late code is old state is by new"]
    assert host.read(f"{workdir}/state.txt") == "by old"
