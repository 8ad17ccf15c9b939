"""`clusterddp stop` where it is not simple: hosts out of reach, other users' rights, other operators."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, assert_nothing_left, user_of, wait_until_nothing_is_left
from tests.lab.system import ProcessId, kill_and_wait, wait_until
from tests.remedies import remedy, type_line
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.lab import Lab
    from tests.lab.host import LabHost

need_torch()
pytestmark = pytest.mark.torch

NEVER = """
import threading
print("started", flush=True)
threading.Event().wait(600)
"""
# A program of root's with the set-user-id bit, as sudo is one.
BECOMES_ROOT = "/tmp/rootpython"
ROOTS = f"""
import subprocess, threading
root = "import os, threading; os.setresuid(0, 0, 0); os.setsid(); threading.Event().wait(600)"
print("root", subprocess.Popen([{BECOMES_ROOT!r}, "-c", root]).pid, flush=True)
threading.Event().wait(600)
"""


def operator(lab: Lab, folder: Path) -> User:
    folder.mkdir(exist_ok=True)
    return user_of(lab, folder, {"never.py": NEVER, "roots.py": ROOTS})


def begun(user: User, *words: str, said: str = "started") -> str:
    """A detached run whose workers have all spoken; its id."""
    (run,) = user.run("run", "--detach", *words).lines
    ranks = user.status(run)["world_size"]
    user.hear(run, said, times=ranks)
    return run


def kill_supervisors(lab: Lab, run: str) -> None:
    seen = [seen for host in lab.machines for seen in host.leftovers(run) if "supervisor" in seen.cmdline]
    assert seen
    kill_and_wait([process for process in (ProcessId.of(one.pid) for one in seen) if process])


def setuid_program(host: LabHost) -> None:
    copy = f"cp $(readlink -f /usr/bin/python3) {BECOMES_ROOT}; chmod 4755 {BECOMES_ROOT}"
    host.run(["sh", "-c", copy], user="root")


def hide_others(host: LabHost) -> None:
    """As many shared machines have it."""
    host.run(["mount", "-o", "remount,hidepid=2", "/proc"], user="root")


def test_a_host_out_of_reach_is_named_and_stop_again_finishes(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2)
    user = operator(lab, tmp_path)
    run = begun(user, "never.py")
    lab.host("gpu01").cut()
    done = user.run("stop", "--grace", "0")
    assert done.code == 1
    proofs = [note for note in done.notes if note.startswith(f"{run}: ")]
    assert len(proofs) == 2
    assert proofs[0].startswith(f"{run}: gpu00: ")
    assert proofs[0].endswith("proved empty")
    assert proofs[1].startswith(f"{run}: gpu01: ")
    (command,) = remedy("cli/output.py", "{}: {}; `clusterddp stop {}` again finishes the work").commands(proofs[1])
    assert_nothing_left([lab.host("gpu00")], run)
    limited = user.run("stop", "--limit", "gpu00", run)
    assert limited.notes[-1] == "gpu01: not asked (--limit gpu00), so nothing is proved there"
    lab.host("gpu01").heal()
    again = type_line(user, f"{command} --grace 0")
    assert again.code == 0, again.err
    assert [note.split(": ")[1] for note in again.notes[-2:]] == ["gpu00", "gpu01"]
    assert all(note.endswith("proved empty") for note in again.notes[-2:])
    assert_nothing_left(lab.hosts, run)
    assert user.status(run)["state"] == "stopped"


@pytest.mark.parametrize("killed", [False, True], ids=["supervised", "lost"])
def test_a_process_that_has_become_another_users_is_a_survivor(
    make_lab: MakeLab,
    tmp_path: Path,
    killed: bool,  # noqa: FBT001
) -> None:
    lab = make_lab(1)
    (host,) = lab.hosts
    setuid_program(host)
    user = operator(lab, tmp_path)
    run = begun(user, "roots.py", said="root ")
    pid = re.findall(r"root (\d+)", user.run("logs", run).out)[0]
    if killed:
        on_the_roll(host, run, int(pid))
        kill_supervisors(lab, run)
    done = user.run("stop", run, "--grace", "0")
    assert done.code == 1
    assert re.search(rf"still there: {pid} \({BECOMES_ROOT} -c .*; of user root\)$", done.notes[-1])
    host.run(["kill", "-9", pid], user="root")
    again = user.run("stop", run)
    assert (again.code, again.notes[-1].endswith("proved empty")) == (0, True)
    assert user.status(run)["exit_code"] == (125 if killed else 143)  # what was lost before is not ended by us


def on_the_roll(host: LabHost, run: str, pid: int) -> None:
    def listed() -> bool:
        found = host.run(["sh", "-c", f"cat ~/.clusterddp/runs/{run}/*/*/roll.json"], check=False).stdout
        return bool(found) and pid in [member[0] for member in json.loads(found)["members"]]

    wait_until(f"{pid} is on the roster", listed)


def test_where_other_users_are_hidden_only_a_supervisor_can_prove(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(1)
    (host,) = lab.hosts
    setuid_program(host)
    hide_others(host)
    user = operator(lab, tmp_path)
    run = begun(user, "roots.py", said="root ")
    pid = re.findall(r"root (\d+)", user.run("logs", run).out)[0]
    done = user.run("stop", "--grace", "0")
    assert done.code == 1
    hidden = f"not proved: process {pid} is another user's now, and hidden from this one"
    assert done.notes[-1].endswith(hidden), done.err
    host.run(["kill", "-9", pid], user="root")
    done = user.run("stop", run)
    assert (done.code, done.notes[-1].endswith("proved empty")) == (0, True), done.err
    run = begun(user, "never.py")
    kill_supervisors(lab, run)
    done = user.run("stop", run, "--grace", "0")
    assert done.code == 1
    assert "not proved: other users' processes are hidden here (hidepid)" in done.notes[-1]
    wait_until_nothing_is_left(lab.hosts, run)


def test_another_operators_run_takes_its_full_id(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(1)
    alice, bob = operator(lab, tmp_path / "alice"), operator(lab, tmp_path / "bob")
    bob.env["LOGNAME"] = "bob"
    run = begun(alice, "--name", "night", "never.py")
    for words in ((), ("night",), (run[:6],), ("--all",)):
        done = bob.run("stop", *words)
        assert done.code == 1
        assert "proved" not in done.err
        assert ("--all" in words) or run in done.notes[-1], done.err
    assert alice.status(run)["state"] == "running"
    there = bob.run("status", "night", "--json").json
    assert (there["run"], there["operator"].startswith("bob@")) == (run, False)
    # The same person at another machine, in the same project.
    away = {"LOGNAME": "alice-at-home", "CLUSTERDDP_PROJECT": project_of(alice)}
    done = bob.run("stop", "night", "--grace", "0", env=away)
    assert (done.code, done.notes[-1].endswith("proved empty")) == (0, True), done.err
    run = begun(alice, "never.py")
    done = bob.run("stop", run, "--grace", "0")
    assert (done.code, done.notes[-1].endswith("proved empty")) == (0, True), done.err


def project_of(user: User) -> str:
    return str(json.loads((user.folder / ".clusterddp" / "project.json").read_text())["id"])


def test_a_host_on_which_the_runs_folder_was_removed_is_named_and_proves_nothing(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    lab = make_lab(2)
    user = operator(lab, tmp_path / "me")
    run = begun(user, "never.py")
    gone = lab.host("gpu01")
    # A supervisor that writes meanwhile leaves rm a folder that is not empty.
    wait_until(
        "it is gone",
        lambda: not gone.run(["rm", "-rf", f"/home/trainer/.clusterddp/runs/{run}"], check=False).returncode,
        20,
    )
    stop = user.run("stop", run)
    assert stop.code == 1
    assert any(note.startswith(f"{run}: gpu01: ") and "its folder was removed" in note for note in stop.notes), stop.err
