"""What messages tell a user to type about playbooks, `down` and runs that go on is typed as it was printed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.names import interfaces
from tests.integration.cli import User, local_processes, used_before
from tests.integration.launch.test_remedies_runs import WAITS, refused, typed, write_inventory
from tests.lab.system import ProcessId, kill_and_wait, wait_until
from tests.lean import lean_python
from tests.remedies import remedy, type_line
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRAIN = "print('trained', flush=True)\n"
INVENTORY = "hosts.yaml"
GIVEN = f"-i {INVENTORY}"


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """Somebody with two hosts that are this machine, who names the inventory in each command."""
    made = used_before(User(tmp_path))
    made.write("train.py", TRAIN)
    made.write("waits.py", WAITS)
    write_inventory(made, "here", "there", name=INVENTORY, ansible_python_interpreter=sys.executable)
    yield made
    made.run("stop", "-i", INVENTORY, "--all")


PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.stat: {path: "%s"}
      register: found
      failed_when: not found.stat.exists
"""
AGAIN = remedy(
    "cli/actions/up_action.py", "what it says stands above; once that is mended, the same command runs it again"
)


def test_a_playbook_that_failed_runs_by_the_same_command_once_its_cause_is_mended(user: User) -> None:
    pytest.importorskip("ansible", reason="Ansible runs playbooks")
    wanted = user.home / "wanted"
    user.write("needs.yml", PLAYBOOK % wanted)
    command = f"clusterddp up --skip torch {INVENTORY} --playbook ./needs.yml"
    refused(user, command, AGAIN, code=1)
    wanted.touch()
    typed(user, command)


GOES_ON = remedy("cli/attach.py", "run {} goes on; `clusterddp logs --follow {}` shows it")
BUG = """
import sys
if any(word.endswith("/clusterddp") for word in sys.orig_argv):
    from clusterddp.runs.follow import Follower
    def follow(self):
        raise ZeroDivisionError("a bug of ours")
    Follower.follow = follow
"""


def test_a_run_goes_on_after_a_bug_of_ours_and_is_followed_by_the_told_command(user: User) -> None:
    """The interpreter of the command that starts the run has the bug; the next command does not."""
    (user.home / "bug").mkdir()
    (user.home / "bug/sitecustomize.py").write_text(BUG)
    go = user.home / "go on"
    failed = type_line(user, f"clusterddp run {GIVEN} --limit here waits.py '{go}'", PYTHONPATH=str(user.home / "bug"))
    assert failed.code, failed.out
    (command,) = GOES_ON.commands(failed.err)
    go.touch()
    assert "waits" in typed(user, command)


def own_address() -> str:
    """An address of this machine that others could reach."""
    found = [one.address for one in interfaces.addresses() if one.up and one.interface != "lo"]
    outside = [address for address in found if ":" not in address]
    if not outside:
        pytest.skip("this machine is in no network")
    return outside[0]


OUTSIDE = remedy("launch/ssh/join.py", "start the run with hosts of two machines, or with clusterddp_address")


def test_a_host_elsewhere_joins_a_run_that_was_started_with_an_address(user: User) -> None:
    need_torch()
    address = own_address()
    inside = f"{{ansible_connection: local, clusterddp_python: {lean_python()}}}"
    outside = inside.replace("{", f"{{clusterddp_address: {address}, ")
    go = user.home / "go on"
    begin = ("run", "-i", INVENTORY, "--limit", "a,b", "--nnodes", "2:3", "--max-restarts", "2", "waits.py", str(go))
    user.write(INVENTORY, f"all: {{hosts: {{a: {inside}, b: {inside}, c: {outside}}}}}\n")
    with user.start(*begin) as live:
        live.wait_for("waits", times=2)
        refused(user, f"clusterddp run {GIVEN} --join {live.run}", OUTSIDE)
        typed(user, f"clusterddp stop {GIVEN} {live.run}")
        live.end()
    user.write(INVENTORY, f"all: {{hosts: {{a: {outside}, b: {outside}, c: {outside}}}}}\n")
    with user.start(*begin) as live:
        live.wait_for("waits", times=2)
        assert "c joins" in typed(user, f"clusterddp run {GIVEN} --join {live.run}")
        go.touch()
        done = live.end()
    assert done.code == 0, done.err
    # Where it came too late to take part, it does not wait for the others.
    wait_until("nothing of the run is left", lambda: not local_processes(live.run), 60)
    assert "succeeded" in typed(user, f"clusterddp status {GIVEN} {live.run}")


LATE = """
import os, sys, time
while "torch.distributed.run" in sys.orig_argv and not os.path.exists({gate!r}):
    time.sleep(0.05)
"""


def test_a_host_whose_agent_starts_when_the_others_have_succeeded_ends_too(user: User) -> None:
    need_torch()
    gate, go = user.home / "gate", user.home / "go on"
    (user.home / "late").mkdir()
    (user.home / "late/sitecustomize.py").write_text(LATE.format(gate=str(gate)))
    late = f"clusterddp_env: {{PYTHONPATH: {user.home}/late}}"
    own = f"ansible_connection: local, clusterddp_address: {own_address()}, clusterddp_python: {lean_python()}"
    user.write(INVENTORY, f"all: {{hosts: {{a: {{{own}}}, b: {{{own}}}, c: {{{own}, {late}}}}}}}\n")
    # A fork server would have imported torch before, and so be there in time.
    begin = ("run", "-i", INVENTORY, "--limit", "a,b", "--nnodes", "2:3", "--no-fork-server", "waits.py", str(go))
    others_ended = ["succeeded", "succeeded", "starting"]
    with user.start(*begin) as live:
        live.wait_for("waits", times=2)
        typed(user, f"clusterddp run {GIVEN} --join {live.run}")
        go.touch()
        wait_until("the others have succeeded", lambda: states(user, live.run) == others_ended, 60)
        gate.touch()
        done = live.end()
    assert done.code == 0, done.err
    assert states(user, live.run) == ["succeeded"] * 3
    assert "the job has ended before this host took part in it" in typed(user, f"clusterddp logs {GIVEN} {live.run}")


def states(user: User, run: str) -> list[str]:
    """The states of a run's hosts."""
    done = user.run("status", "-i", INVENTORY, run, "--json")
    return [host["state"] for host in json.loads(done.out)["hosts"]]


LIVE = remedy("remote/cleanup/everything.py", "`clusterddp stop %s` ends it")
GO_ON = remedy("cli/down_tables.py", "{}; `{}` again goes on")


def test_everything_goes_once_a_run_that_came_meanwhile_is_ended_by_the_told_command(user: User) -> None:
    typed(user, f"clusterddp run {GIVEN} train.py")
    with user.start("down", "-i", INVENTORY, "--everything", terminal=True) as asked:
        asked.wait_for("remove all of it?")
        run = user.run("run", "-i", INVENTORY, "--limit", "here", "--detach", "waits.py", "/never").out.strip()
        asked.key("y\n")
        done = asked.end()
    said = " ".join(done.out.replace("\r", "").replace("clusterddp: ", "").split())
    assert (done.code, f"run {run} is live here" in said) == (1, True), said
    (stop,) = LIVE.commands(said)
    (again,) = GO_ON.commands(said)[-1:]
    typed(user, stop)
    assert "nothing of clusterddp is left" in typed(user, f"{again} --yes")
    assert not (user.home / ".clusterddp").exists()


HAS_PROCESSES = remedy("cli/down_tables.py", "it has processes here; `clusterddp stop {}` ends them")


@contextlib.contextmanager
def process_of(run: str, host: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that a run's variables name, as a shell has that somebody opened for the run."""
    env = {**os.environ, "CLUSTERDDP_RUN_ID": run, "CLUSTERDDP_HOST": host}
    process = subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


def lost_run(user: User) -> str:
    """A run whose processes have all been killed, the supervisor first; its id."""
    run = user.run("run", "-i", INVENTORY, "--limit", "here", "--detach", "waits.py", "/never").out.strip()
    with user.start("logs", "-i", INVENTORY, "--follow", run) as live:
        live.wait_for("waits")
    left = local_processes(run)
    while left:
        for pid in left:  # else the fence, which sees the supervisor end, would go on ending what names the run
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        kill_and_wait([process for pid in left if (process := ProcessId.of(pid))])
        left = local_processes(run)
    return run


def test_what_still_runs_of_a_lost_run_is_ended_by_the_told_command_and_the_next_purge_removes_it(user: User) -> None:
    """It has come after `down` had looked whether anything has to be stopped."""
    run = lost_run(user)
    with user.start("down", "-i", INVENTORY, "--purge", terminal=True) as asked:
        asked.wait_for("go on?")
        with process_of(run, "here") as process:
            asked.key("y\n")
            said = " ".join(asked.end().out.replace("\r", "").replace("clusterddp: ", "").split())
            assert process.poll() is None, said
            (stop,) = HAS_PROCESSES.commands(said)
            typed(user, stop)
            wait_until("it has ended", lambda: process.poll() is not None)
    assert "1 spool, 1 run dir" in typed(user, f"clusterddp down {GIVEN} --purge --yes")


ENDS_THEM = remedy("cli/actions/up_action.py", "`clusterddp stop {}` ends them")


def test_what_up_finds_of_a_lost_run_is_ended_by_the_told_command(user: User) -> None:
    user.env["CLUSTERDDP_INVENTORY"] = INVENTORY  # `up` has no -i that its messages could repeat
    run = lost_run(user)
    with process_of(run, "here") as process:
        (stop,) = ENDS_THEM.commands(typed(user, f"clusterddp up {INVENTORY}"))
        typed(user, stop)
        wait_until("it has ended", lambda: process.poll() is not None)
    # Other tests' runs may have lost their supervisors on this machine.
    assert f"{run} without a supervisor" not in " ".join(typed(user, f"clusterddp up {INVENTORY}").split())


ELSEWHERE = remedy("api/find_runs.py", "it was started on the hosts of another inventory: -i {}")
NO_RUN = remedy("runs/choose.py", "`clusterddp runs --all` lists them")


def test_a_run_of_another_inventory_is_found_by_the_told_option(user: User) -> None:
    """What `up` has remembered since is not where it runs."""
    write_inventory(user, "far", name="other.yaml", clusterddp_state=str(user.home / "other"))
    typed(user, "clusterddp run -i other.yaml --name far train.py")
    typed(user, f"CLUSTERDDP_PYTHON={lean_python()} clusterddp run --name built-in train.py")
    typed(user, f"clusterddp up --skip torch {INVENTORY}")
    for command, name in (("why", "far"), ("logs", "built-in"), ("status", "far")):
        said = refused(user, f"clusterddp {command} {name}", ELSEWHERE, code=1)
        (inventory,) = ELSEWHERE.printed(said)
        assert (inventory == "other.yaml") == (name == "far")
        typed(user, f"clusterddp {command} -i {inventory} {name}")
    # A run of these hosts that is gone is not said to be elsewhere.
    typed(user, "clusterddp run --name gone train.py")
    typed(user, "clusterddp down --purge --yes")
    refused(user, "clusterddp logs gone", NO_RUN, code=1)
