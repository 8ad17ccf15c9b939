"""What is told of GPUs, environments, folders and playbooks is typed as it was printed; the hosts are this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import User, local_processes, used_before
from tests.integration.doctor_cli import named
from tests.integration.gpus_made import DATA, KIND
from tests.lab.system import ProcessId, kill_and_wait
from tests.lean import lean_python
from tests.remedies import remedy, type_line
from tests.unit.torch_made import TORCH
from tests.wheels_made import make_wheel, need_uv, project_with_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.cli import Done

DRY = "clusterddp run --dry-run -i i.yaml"
SMI = """#!/bin/sh
case "$*" in --query-gpu=*) cat '{0}/gpus.csv' ;; --query-compute-apps=*) cat '{0}/apps.csv' ;; *) exit 2 ;; esac
"""


@pytest.fixture
def user(tmp_path: Path) -> User:
    """Somebody whose hosts are this machine."""
    made = used_before(User(tmp_path))
    made.write("train.py", "print('trained', flush=True)\n")
    return made


def inventory(user: User, of_all: dict[str, Any], /, **hosts: dict[str, Any]) -> None:
    """Write i.yaml: these hosts, all this machine."""
    every = {"ansible_connection": "local", **of_all}
    user.write("i.yaml", json.dumps({"all": {"vars": every, "hosts": hosts}}))


@contextlib.contextmanager
def disk(user: User, place: str, options: str) -> Iterator[str]:
    """A disk of its own in memory, there for commands that begin with this text alone."""
    script = f"mount -t tmpfs -o {options} tmpfs {shlex.quote(place)} && echo mounted && exec sleep 600"
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout
            assert holder.stdout.readline() == "mounted\n"
            yield f"nsenter --target {holder.pid} --mount --wd={shlex.quote(str(user.folder))} "
        finally:
            holder.kill()


class Gpus:
    """Two GPUs that this machine seems to have, as far as nvidia-smi and torch tell."""

    def __init__(self, user: User) -> None:
        self.folder = user.home / "gpus"
        self.folder.mkdir()
        self.rows = (DATA / f"{KIND}.csv").read_text()
        self.uuids = [row.split(", ")[1] for row in self.rows.splitlines()]
        for name, text in {"gpus.csv": self.rows, "torch.py": TORCH, "told.json": "{}"}.items():
            (self.folder / name).write_text(text)
        (self.folder / "nvidia-smi").write_text(SMI.format(self.folder))
        (self.folder / "nvidia-smi").chmod(0o755)
        (user.home / "none").mkdir()
        (user.home / "none" / "torch.py").write_text(TORCH)
        (user.home / "none" / "told.json").write_text('{"count": 0}')
        self.used()
        user.env["PATH"] = f"{self.folder}:{user.env['PATH']}"
        self.of_all = {"clusterddp_python": lean_python(), "clusterddp_env": {"PYTHONPATH": str(self.folder)}}
        without = {"PYTHONPATH": str(user.home / "none")}
        self.without = {"clusterddp_setup": "export CUDA_VISIBLE_DEVICES=", "clusterddp_env": without}

    def used(self, *pids: int) -> None:
        """A process computes on each of them from the first on."""
        rows = [f"{uuid}, {pid}, 40000\n" for uuid, pid in zip(self.uuids, pids, strict=False)]
        (self.folder / "apps.csv").write_text("".join(rows))


def devices(done: Done) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each node that would be started; ``all`` where it is left alone."""
    assert done.code == 0, done.err
    nodes = done.out.split("# node ")[1:]
    found = [re.search(r"^export CUDA_VISIBLE_DEVICES=(.*)$", node, re.MULTILINE) for node in nodes]
    return [one[1] if one else "all" for one in found]


UNCLEAR = remedy(
    "facts/gpu_assignment.py", "for the index write --gpus {}, with its comma; for a number --gpus {} or free:{}"
)


def test_a_number_that_is_an_index_or_a_count_is_written_as_either(user: User) -> None:
    made = Gpus(user)
    inventory(user, made.of_all, a={})
    said = type_line(user, f"{DRY} --gpus 1 train.py").err
    index, number, count = UNCLEAR.printed(said)
    for words, gpu in ((f"{index},", 1), (number, 0), (f"free:{count}", 0)):
        assert devices(type_line(user, f"{DRY} --gpus {words} train.py")) == [made.uuids[gpu]]


OWN = remedy("facts/gpu_assignment.py", "give each its own in clusterddp_gpus, or share them: `run --share-gpus`")


@pytest.mark.parametrize("second", [{"clusterddp_gpus": [0]}, {}], ids=["claimed", "none left"])
def test_nodes_of_one_machine_are_given_their_own_gpus_or_share_them(user: User, second: dict[str, Any]) -> None:
    made = Gpus(user)
    inventory(user, made.of_all, a={"clusterddp_gpus": [0] if second else [0, 1]}, b=second)
    (command,) = OWN.commands(type_line(user, f"{DRY} train.py").err)
    shared = type_line(user, f"clusterddp {command} --dry-run -i i.yaml train.py")
    assert devices(shared) == ([made.uuids[0]] * 2 if second else ["all", "all"])
    inventory(user, made.of_all, a={"clusterddp_gpus": [0]}, b={"clusterddp_gpus": [1]})
    assert devices(type_line(user, f"{DRY} train.py")) == made.uuids


WAIT = remedy(
    "facts/gpu_assignment.py", "wait, share them by `run --share-gpus` without --gpus, or leave the host out by --limit"
)


@pytest.mark.parametrize("words", ["--gpus free", "--gpus free:2"])
def test_gpus_that_are_in_use_are_waited_for_shared_or_left_out(user: User, words: str) -> None:
    made = Gpus(user)
    inventory(user, made.of_all, a={}, b={**made.without, "clusterddp_nproc": 1})
    nobody = None if os.geteuid() else 65534  # whose work would be refused, not only told
    with subprocess.Popen(["sleep", "600"], user=nobody) as other:
        try:
            made.used(other.pid, other.pid)
            (command,) = WAIT.commands(type_line(user, f"{DRY} {words} train.py").err)
            shared = type_line(user, f"clusterddp {command} --dry-run -i i.yaml --limit a train.py")
            assert devices(shared) == ["all"]
            left_out = type_line(user, f"{DRY} --gpus free --limit b train.py")
            assert devices(left_out) == [""]
        finally:
            other.kill()
    made.used()
    assert devices(type_line(user, f"{DRY} {words} --limit a train.py")) == ["all"]


STATED = remedy(
    "facts/gpu_assignment.py",
    "{}: torch sees no GPU here, but some on {}; set clusterddp_nproc here if that is meant",
)


def test_a_host_whose_torch_sees_no_gpu_passes_once_its_workers_are_stated(user: User) -> None:
    made = Gpus(user)
    inventory(user, made.of_all, a={}, b=made.without)
    said = type_line(user, f"{DRY} train.py").err
    assert STATED.printed(said)[1] == "a"
    inventory(user, made.of_all, a={}, b={**made.without, "clusterddp_nproc": 1})
    assert devices(type_line(user, f"{DRY} train.py")) == ["all", ""]


BUILDS = remedy("environments/install.py", "`clusterddp up` builds it")
NOT_BUILT = remedy("checks/catalog/software.py", "`clusterddp up` builds it")
ANEW = remedy("checks/catalog/software.py", "`rm -r {}` on the host, then `clusterddp up` builds it anew")
LAST = remedy("environments/removal.py", "this project used it last; --purge --environments removes it too")
AGAIN = remedy("cli/down_tables.py", "`{}` again finishes the work")
ROOM = remedy(
    "remote/environment/install_operations.py",
    "make room there (`clusterddp down --environments`), or set clusterddp_state",
)
LOCKED = "doctor --only locked-environment"


@pytest.fixture
def locked(user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    """The user, whose project has a lock of one small package."""
    user.env["XDG_CACHE_HOME"] = str(need_uv(monkeypatch))
    make_wheel(tmp_path / "wheels", "tiny", "1.0", {"tiny.py": "X = 1\n"})
    project_with_lock(user.folder, tmp_path / "wheels", "tiny")
    inventory(user, {"clusterddp_environment": "uv.lock", "clusterddp_python": sys.executable}, a={})
    return user


def built(user: User) -> list[Path]:
    return sorted((user.home / ".clusterddp/environments").glob("*/ready"))


@pytest.mark.parametrize("how", ["dry run", "doctor"])
def test_an_environment_that_is_not_there_is_built_by_the_told_command(locked: User, how: str) -> None:
    """It has the inventory, which `up` must be given."""
    dry = type_line(locked, f"{DRY} --skip torch train.py")
    checked = locked.run(*LOCKED.split(), "-i", "i.yaml")
    (command,) = BUILDS.commands(dry.err) if how == "dry run" else NOT_BUILT.commands(checked.out)
    assert command == "clusterddp up i.yaml"
    assert (dry.code, checked.code, built(locked)) == (125, 1, [])
    done = type_line(locked, f"{command} --skip torch")  # which is not in this lock
    assert done.code == 0, done.err
    assert len(built(locked)) == 1
    assert named(locked, "--only", "locked-environment") == (0, [])


def test_an_environment_that_was_changed_is_removed_and_built_anew(locked: User) -> None:
    assert locked.run("up", "i.yaml", "--skip", "torch").code == 0
    record = next(built(locked)[0].parent.glob("lib/*/site-packages/tiny*/RECORD"))
    record.write_text(f"{record.read_text()}more.py,sha256=x,1\n")
    remove, build = ANEW.commands(locked.run(*LOCKED.split()).out)
    assert type_line(locked, remove).code == 0
    assert built(locked) == []
    done = type_line(locked, f"{build} --skip torch")
    assert done.code == 0, done.err
    assert named(locked, "--only", "locked-environment") == (0, [])


def test_the_environment_used_last_is_removed_by_the_options_that_are_told(locked: User) -> None:
    assert locked.run("up", "i.yaml", "--skip", "torch").code == 0
    said = type_line(locked, "clusterddp down --environments --yes").err
    assert LAST.found(said)
    assert len(built(locked)) == 1
    (options,) = re.findall(r"last; (--purge --environments) removes", said.splitlines()[-1])
    done = type_line(locked, f"clusterddp down {options} --yes")
    assert (done.code, built(locked)) == (0, []), done.err


def test_a_disk_that_is_too_small_for_an_environment_is_cleared_or_left(locked: User, tmp_path: Path) -> None:
    """The wheel of uv alone takes 19 MB, and five times the wheels' size must be free."""
    if os.geteuid():
        pytest.skip("root alone mounts a disk")
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "tiny", "2.0", {"tiny.py": "X = 2\n"})
    make_wheel(wheels, "large", "1.0", {"large.txt": "x" * 12_000_000})
    state = locked.home / ".clusterddp"
    state.mkdir(mode=0o700, exist_ok=True)
    with disk(locked, str(state), "size=200m,mode=700") as there:

        def build(*needs: str) -> Done:
            project_with_lock(locked.folder, wheels, *needs)
            return type_line(locked, f"{there}clusterddp up i.yaml --skip torch")

        assert build("tiny==1.0", "large").code == 0
        assert build("tiny==1.0").code == 0
        free = int(type_line(locked, f"{there}df --block-size=1 --output=avail {state} | tail -n 1").out)
        fill = f"{there}head -c {free - 92_000_000} /dev/zero >{state}/filled"
        assert type_line(locked, f"{there}sh -c {shlex.quote(fill)}").code == 0
        refused = build("tiny==2.0")
        (command,) = ROOM.commands(refused.err)
        cleared = type_line(locked, f"{there}{command} --yes")
        assert "1 environment" in cleared.err
        assert build("tiny==2.0").code == 0
        type_line(locked, f"{there}{command} --purge --yes")
        assert ROOM.found(build("tiny==2.0", "large").err)
        own = {"clusterddp_environment": "uv.lock", "clusterddp_python": sys.executable}
        inventory(locked, {**own, "clusterddp_state": str(locked.home / "other")}, a={})
        done = type_line(locked, f"{there}clusterddp up i.yaml --skip torch")
        assert done.code == 0, done.err


def test_a_removal_that_fails_is_finished_by_the_line_as_it_was_typed(locked: User) -> None:
    """Without its options it would leave what was to go."""
    if os.geteuid():
        pytest.skip("root alone mounts a file over another")
    assert locked.run("up", "i.yaml", "--skip", "torch").code == 0
    (ready,) = built(locked)
    line = "clusterddp down -i i.yaml --purge --environments --yes"
    held = f"mount --bind {ready} {ready} && exec {line}"
    failed = type_line(locked, f"unshare --mount sh -c {shlex.quote(held)}")
    assert failed.code == 1, failed.err
    assert AGAIN.commands(failed.err) == [line]
    done = type_line(locked, line)
    assert (done.code, built(locked)) == (0, []), done.err


MEANT = remedy(
    "checks/catalog/software.py",
    "set clusterddp_python to the one that is meant; profiles are not read for commands over SSH",
)


def test_the_python_that_a_login_finds_is_taken_once_it_is_named(user: User) -> None:
    python = lean_python()
    (user.home / ".bash_profile").write_text(f"export PATH='{Path(python).parent}':$PATH\n")
    inventory(user, {}, a={})
    said = user.run("doctor", "-i", "i.yaml", "--only", "login-python").out
    assert MEANT.found(said)
    (found,) = re.findall(r"! login-python: a: a login finds (\S+), a job /", said)
    inventory(user, {"clusterddp_python": found}, a={})
    assert named(user, "-i", "i.yaml", "--only", "login-python") == (0, [])


LEAVES = """
import subprocess, threading
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("started", flush=True)
threading.Event().wait(600)
"""


def test_what_a_run_has_left_is_ended_by_the_told_command(user: User) -> None:
    user.write("leaves.py", LEAVES)
    inventory(user, {"clusterddp_python": lean_python()}, a={})
    run = user.run("run", "-i", "i.yaml", "--detach", "leaves.py").out.strip()
    try:
        with user.start("logs", "-i", "i.yaml", "--follow", run) as live:
            live.wait_for("started")
        there = [(pid, Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in local_processes(run)]
        kill_and_wait([one for pid, words in there if b"supervisor" in words and (one := ProcessId.of(pid))])
        first = user.run("doctor", "-i", "i.yaml", "--only", "leftovers")
        assert f"! leftovers: a: run {run} has left " in first.out
        told = remedy("checks/catalog/machine.py", "`clusterddp stop {}`").commands(first.out)
        (command,) = [line for line in told if run in line]  # other tests have lost runs too
        type_line(user, command)
        assert run not in user.run("doctor", "-i", "i.yaml", "--only", "leftovers").out
    finally:
        user.run("stop", "-i", "i.yaml", run)


NEEDS_FILE = remedy("provision/ansible.py", "`clusterddp up INVENTORY` remembers one")
PLAINLY = remedy("provision/ansible.py", "name the host plainly and put its address into ansible_host")
SHOWN = "hosts.yml on a, for shm; it would change:"


@pytest.fixture
def fix(user: User) -> Iterator[str]:
    """The line that shows what a playbook would change on this machine, whose /dev/shm is small for that line."""
    if os.geteuid():
        pytest.skip("root alone mounts a disk")
    with disk(user, "/dev/shm", "size=64m,mode=1777") as there:
        yield f"{there}clusterddp doctor --only shm --fix"


def test_a_playbook_is_run_with_the_inventory_that_up_has_remembered(user: User, fix: str) -> None:
    (command,) = NEEDS_FILE.commands(type_line(user, fix).err)
    inventory(user, {"clusterddp_python": lean_python()}, a={})
    done = type_line(user, f"{command.replace('INVENTORY', 'i.yaml')} --skip shm")
    assert done.code == 0, done.err
    assert SHOWN in type_line(user, fix).err


def test_a_playbook_is_run_on_a_host_that_is_named_plainly(user: User, fix: str) -> None:
    inventory(user, {}, **{"::1": {}})
    assert PLAINLY.found(type_line(user, f"{fix} -i i.yaml").err)
    inventory(user, {}, a={"ansible_host": "::1"})
    assert SHOWN in type_line(user, f"{fix} -i i.yaml").err
