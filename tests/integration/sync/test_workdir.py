"""A worker's cwd is what a user expects of their project folder: code, data and results, over many runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from tests.lab import Lab

need_torch()
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("lab_left_clean")]

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
RESUMES = """
from pathlib import Path

saved = Path("ckpt/last.pt")
step = int(saved.read_text())
print("resume from", step, flush=True)
saved.write_text(str(step + 1))
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


def test_a_checkpoint_of_the_project_is_the_hosts_once_a_run_has_rewritten_it(user: User, lab: Lab) -> None:
    host = lab.host("gpu01")
    user.write("resume.py", RESUMES)
    user.write("ckpt/last.pt", "2")
    assert texts(user, "resume.py") == ["resume from 2"]
    again = user.run("run", "resume.py")
    assert [said.text for said in again.workers] == ["resume from 3"]
    assert [note for note in again.notes if "ckpt/last.pt" in note] == [
        "gpu01: ckpt/last.pt was changed on the host since the last sync: the host's stays"
    ]
    assert user.status(again.run)["own_data"] == {"gpu01": ["ckpt/last.pt"]}
    user.write("resume.py", RESUMES + "# edited\n")
    third = user.run("run", "resume.py")
    assert [said.text for said in third.workers] == ["resume from 4"]
    assert not [note for note in third.notes if "ckpt/last.pt" in note]
    user.write("ckpt/last.pt", "100")
    refused = user.run("run", "resume.py")
    assert refused.code == 125
    assert "ckpt/last.pt: changed in the project and on gpu01 since the last sync" in refused.notes[-1]
    pulled = user.run("pull", "--overwrite", "ckpt/last.pt", "ckpt/last.pt")
    assert pulled.code == 0, pulled.err
    assert any(note.endswith("add to its .gitignore: /ckpt/last.pt") for note in pulled.notes)
    assert texts(user, "resume.py") == ["resume from 5"]
    user.write("ckpt/last.pt", "200")
    pushed = user.run("push", "--overwrite", "ckpt/last.pt")
    assert pushed.code == 0, pushed.err
    assert texts(user, "resume.py") == ["resume from 200"]
    user.write("ckpt/last.pt", "300")
    assert texts(user, "--take", "host", "resume.py") == ["resume from 201"]
    user.write(".gitignore", "ckpt/\n")
    assert texts(user, "resume.py") == ["resume from 202"]
    workdir = user.status(third.run)["workdirs"]["gpu01"]
    assert host.read(f"{workdir}/ckpt/last.pt") == "203"
    user.write(".gitignore", "")
    (user.folder / "ckpt/last.pt").unlink()


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


def test_other_code_is_refused_beside_a_live_run_but_for_a_folder_of_its_own(user: User, lab: Lab) -> None:
    host = lab.host("gpu01")
    user.write("long.py", LONG)
    user.write("late.py", "VERSION = 'old'\n")
    user.write("start.py", "import os; open('state.txt', 'w').write('first'); print(os.getcwd(), flush=True)\n")
    (workdir,) = texts(user, "start.py")
    go = "/tmp/the old one goes on"
    with user.start("run", "long.py", go) as first:
        first.wait_for("started")
        user.write("late.py", "VERSION = 'new'\n")
        refused = user.run("run", "start.py")
        synced = user.run("sync")
        own = user.run("run", "--workdir", "exp2", "start.py")
        host.write(go, "")
        done = first.end()
    assert (refused.code, synced.code) == (125, 1)
    for said in (refused, synced):
        line = said.notes[-1]
        assert f"gpu01: run {done.run} is live in {workdir} with other code" in line
        assert "--workdir NAME" in line
        assert f"clusterddp stop {done.run}" in line
    assert own.code == 0, own.err
    assert own.workers[0].text == f"{workdir}@exp2"
    assert done.code == 0, done.out + done.err
    assert [said.text for said in done.workers][1:] == ["late code is old state is first"]
    assert host.read(f"{workdir}/state.txt") == "by old"
    assert f"folder: {workdir}@exp2" in user.run("status", own.run).lines
    assert user.status(own.run)["workdirs"] == {"gpu01": f"{workdir}@exp2"}
    header, *rows = user.run("runs").lines
    column = header.split().index("folder")
    (row,) = [row for row in rows if row.startswith(own.run)]
    assert row.split()[column] == "@exp2"
    assert user.run("down", "--workdirs", "--yes").code == 0


def test_a_second_live_run_with_the_same_code_is_told_and_can_have_a_folder_of_its_own(user: User, lab: Lab) -> None:
    user.write("long.py", LONG)
    user.write("late.py", "VERSION = 'same'\n")
    user.write("where.py", "import os; print(sorted(os.listdir('.')), os.getcwd(), flush=True); open('mine', 'w')\n")
    host, go = lab.host("gpu01"), "/tmp/the sharing one goes on"
    with user.start("run", "long.py", go) as first:
        first.wait_for("started")
        shared = user.run("run", "where.py")
        workdir = shared.workers[0].text.partition("] ")[2]
        said = f"gpu01: run {first.run} is live in {workdir} too: both write there; --workdir fresh gives"
        assert f"{said} a run a folder of its own" in shared.notes
        own = user.run("run", "--workdir", "exp1", "where.py")
        assert own.code == 0, own.err
        assert not any("is live" in note for note in own.notes)
        assert own.workers[0].text.partition("] ")[2] == f"{workdir}@exp1"
        assert "'mine'" not in own.workers[0].text
        fresh = user.run("run", "--workdir", "fresh", "where.py")
        assert fresh.workers[0].text.endswith(f"{workdir}@{fresh.run}")
        host.write(f"{workdir}/state.txt", "x")
        host.write(go, "")
        assert first.end().code == 0
    again = user.run("run", "--workdir", "exp1", "where.py")
    assert "'mine'" in again.workers[0].text  # it is kept
    down = user.run("down", "--workdirs", "--yes")
    assert down.code == 0, down.err
    going = [note for note in down.notes if note.startswith("will be removed with all that is in it: gpu01: ")]
    assert [note.partition("gpu01: ")[2].partition(" (")[0] for note in going] == sorted(
        [f"{workdir}@exp1", f"{workdir}@{fresh.run}"]
    )
    left = host.run(["sh", "-c", f"ls -d {workdir}*"]).stdout.split()
    assert left == [workdir]
    assert "no folder beside the project's on these hosts" in user.run("down", "--workdirs", "--yes").notes


@pytest.mark.parametrize("name", ["a/b", "..", "-x", "", "a b", "x" * 65])
def test_a_name_that_no_folder_can_have_is_one_clear_line(user: User, name: str) -> None:
    user.write("where.py", "")
    done = user.run("run", f"--workdir={name}", "where.py")
    assert done.code == 125
    (line,) = done.notes
    assert repr(name)[:40] in line
    assert "cannot be a folder's name; use at most 64 letters" in line
