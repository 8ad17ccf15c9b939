"""`clusterddp down` and what `up` finds left, on a host of their own."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, assert_nothing_left
from tests.lab.system import ProcessId, kill_and_wait, wait_until
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeLab

need_torch()
pytestmark = pytest.mark.torch

LEAVES = """
import os, subprocess, threading
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
open(os.path.join(os.environ["CLUSTERDDP_RUN_DIR"], "result"), "w").close()
print("left", child.pid, flush=True)
threading.Event().wait(600)
"""
SHORT = "print('done')"


def user_of(inventory: Path, folder: Path) -> User:
    folder.mkdir()
    user = User(folder)
    user.env["CLUSTERDDP_INVENTORY"] = str(inventory)
    user.write("leaves.py", LEAVES)
    user.write("short.py", SHORT)
    return user


def begun(user: User) -> str:
    """A detached run whose worker has left its child; its id."""
    (run,) = user.run("run", "--detach", "leaves.py").lines
    user.hear(run, "left")
    return run


def test_what_a_lost_run_has_left_is_named_by_up_and_ended_by_down(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(1)
    (host,) = lab.hosts
    inventory = lab.write_inventory(tmp_path / "inventory.yaml")
    alice = user_of(inventory, tmp_path / "alice")
    lost = begun(alice)
    others = [seen for seen in host.leftovers(lost) if seen.cmdline[0] != "sleep"]  # the fence would end the sleeper
    kill_and_wait([process for seen in others if (process := ProcessId.of(seen.pid))])
    wait_until("only the sleeper is left", lambda: [s.cmdline[0] for s in host.leftovers(lost)] == ["sleep"])
    live = begun(alice)
    notes = alice.up(inventory).notes
    assert (
        f"gpu00: 1 process of run {lost} without a supervisor; `clusterddp stop -i {inventory} {lost}` ends them"
        in notes
    )
    assert f"run {live} of this project is running; `clusterddp stop -i {inventory} {live}` ends it" in notes
    down = alice.run("down", "--yes")
    assert down.code == 0, down.err
    assert f"will be stopped: what is left of run {lost} on 1 host" in down.notes
    assert f"will be stopped: run {live} on 1 host" in down.notes
    assert [note.endswith("proved empty") for note in down.notes if note.startswith((live, lost))] == [True, True]
    assert "nothing to remove on 1 host" in down.notes
    assert_nothing_left(lab.hosts, live)
    assert_nothing_left(lab.hosts, lost)


def test_up_with_another_state_folder_calls_no_live_run_lost(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(1)
    (host,) = lab.hosts
    inventory = lab.write_inventory(tmp_path / "inventory.yaml")
    alice = user_of(inventory, tmp_path / "alice")
    live = begun(alice)
    elsewhere = {host.name: {"clusterddp_state": f"/home/{host.users[0].name}/elsewhere"}}
    up = alice.up(lab.write_inventory(tmp_path / "inventory.yaml", more=elsewhere))
    assert up.code == 0, up.err
    assert live not in up.err
    lab.write_inventory(tmp_path / "inventory.yaml")
    assert alice.run("stop", live).code == 0


def test_down_asks_first_and_off_a_terminal_it_refuses(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(1)
    alice = user_of(lab.write_inventory(tmp_path / "inventory.yaml"), tmp_path / "alice")
    for words in ((), ("--purge",)):
        refused = alice.run("down", *words)
        assert (refused.code, refused.notes[-1].endswith("nobody is here; give --yes")) == (2, True)
    run = begun(alice)
    with alice.start("down", terminal=True) as asked:
        asked.wait_for("go on?")
        asked.key("n\n")
        done = asked.end()
    assert done.code == 130
    assert f"will be stopped: run {run} on 1 host" in done.out
    assert alice.status(run)["state"] == "running"


def test_purge_removes_this_projects_ended_runs_and_with_the_last_of_all_the_helper(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    lab = make_lab(1)
    (host,) = lab.hosts
    inventory = lab.write_inventory(tmp_path / "inventory.yaml")
    alice, bob = user_of(inventory, tmp_path / "alice"), user_of(inventory, tmp_path / "bob")
    bob.env["LOGNAME"] = "bob"
    begun(alice)
    theirs = begun(bob)
    purged = alice.run("down", "--purge", "--yes")
    assert purged.code == 0, purged.err
    assert re.search(rf"goes on: {theirs}, a run of bob@\S+, in another project \(my-project\)", purged.err)
    workdir = f"/home/{host.users[0].name}/clusterddp/my-project-{project_of(alice)}"
    assert re.search(r"gpu00 +removed +\S+ +1 spool, 1 run dir\n", purged.err)
    stays = [note.split(None, 3)[3] for note in purged.notes if note.startswith("gpu00  stays")]
    assert f"{workdir}: this project's code and data; --everything removes it" in stays
    assert f"{workdir.rpartition('-')[0]}-{project_of(bob)}: run {theirs} is live in it" in stays
    assert "1 run on record: 30 days, or with --purge" in stays
    assert host.run(["test", "-f", f"{workdir}/leaves.py"]).returncode == 0
    assert alice.run("runs", "--json").json == []
    assert bob.status(theirs)["state"] == "running"
    last = bob.run("down", "--purge", "--yes")
    assert last.code == 0, last.err
    assert re.search(r"gpu00 +removed +\S+ +1 spool, 1 run dir, 1 helper", last.err)
    state = f"/home/{host.users[0].name}/.clusterddp"
    assert host.run(["sh", "-c", f"find {state} -type f -not -path '*/workdirs/*'"]).stdout == ""
    assert not host.leftovers("/.clusterddp/")
    assert bob.run("run", "short.py").code == 0  # nothing has to be set up again


def project_of(user: User) -> str:
    return str(json.loads((user.folder / ".clusterddp" / "project.json").read_text())["id"])
