"""The doctor's sight of a host's limits, login, packages, folders and SSH: faults on real hosts, in and out again.

Other faults and the pattern: test_doctor.py. Judgements over made facts: tests/unit/checks/test_checks_host.py.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import User, helpers, nothing_left
from tests.integration.doctor.test_doctor import SICK, WORKDIRS, Fault, assert_said
from tests.integration.doctor_cli import named
from tests.integration.throwaway_sshd import make_key
from tests.lab import Lab
from tests.lab.disorders import HUNG
from tests.lab.options import HostOptions
from tests.lab.system import ProcessId, kill_and_wait, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lab.host import LabHost

pytestmark = pytest.mark.lab
CROWDED = "gpu02"  # lets one at a time log in
HOME = "/home/trainer"
LEAVES = """
import subprocess, threading
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("started", flush=True)
threading.Event().wait(600)
"""
CPU = Path("/sys/fs/cgroup/cpu")


@pytest.fixture(scope="module")
def lab_variants() -> dict[str, Any]:
    return {"host": {CROWDED: HostOptions(max_startups="1")}}


@contextlib.contextmanager
def little_cpu(host: LabHost) -> Iterator[None]:
    """Half a CPU for all that is started there from now on."""
    if not os.access(CPU / "cgroup.procs", os.W_OK):
        pytest.skip("no CPU cgroup (version 1) that we may write to")
    group = CPU / f"clusterddp-lab-{host.namespace}"
    group.mkdir(exist_ok=True)
    (group / "cpu.cfs_quota_us").write_text("50000")
    (group / "cgroup.procs").write_text(str(host.init.pid))
    try:
        yield
    finally:  # the group is this machine's, not the host's
        (CPU / "cgroup.procs").write_text(str(host.init.pid))
        wait_until("the group is empty", lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@contextlib.contextmanager
def few_files(host: LabHost) -> Iterator[None]:
    def limit(soft: str) -> None:
        subprocess.run(["prlimit", f"--pid={host.init.pid}", f"--nofile={soft}:"], check=True)

    limit("256")
    yield
    limit("1024")


@contextlib.contextmanager
def read_only(host: LabHost) -> Iterator[None]:
    host.run(["mkdir", "-p", WORKDIRS])
    host.small_disk(WORKDIRS, size="2g")
    host.run(["mount", "-o", "remount,ro", WORKDIRS], user="root")
    yield
    host.run(["umount", WORKDIRS], user="root")


@contextlib.contextmanager
def slow_disk(host: LabHost) -> Iterator[None]:
    host.slow_disk()
    yield
    host.mend_disk()


@contextlib.contextmanager
def hung_mount(host: LabHost) -> Iterator[None]:
    """What looks at it is in state D: no signal ends it."""
    if not Path("/dev/fuse").exists():
        pytest.skip("a mount that hangs needs /dev/fuse")
    host.run(["mkdir", "-p", WORKDIRS])
    argv = host.argv([sys.executable, "-c", HUNG.read_text(), WORKDIRS], user="root")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stdout.readline() == "mounted\n"
        yield
        server.kill()
    host.run(["umount", "-l", WORKDIRS], user="root")  # who was held lets go in its own time


@contextlib.contextmanager
def own_nccl_file(host: LabHost) -> Iterator[None]:
    host.write(".nccl.conf", "NCCL_ALGO=Ring\n")
    yield
    host.run(["rm", ".nccl.conf"])


@contextlib.contextmanager
def own_proxy(host: LabHost) -> Iterator[None]:
    kept = host.read(f"{HOME}/.bashrc")
    host.write(".bashrc", "export https_proxy=http://alice:s3cret@proxy:3128\n")
    yield
    host.write(".bashrc", kept)


@contextlib.contextmanager
def stale_lock(host: LabHost) -> Iterator[None]:
    host.write(".cache/torch_extensions/py311_cpu/fused/lock", "")
    host.run(["touch", "-d", "2 hours ago", ".cache/torch_extensions/py311_cpu/fused/lock"])
    yield
    host.run(["rm", "-r", ".cache/torch_extensions"])


@contextlib.contextmanager
def unreadable_runs(host: LabHost) -> Iterator[None]:
    host.run(["mkdir", "-p", ".clusterddp/runs"])
    host.run(["chmod", "0", ".clusterddp/runs"])
    yield
    host.run(["chmod", "700", ".clusterddp/runs"])


@contextlib.contextmanager
def killed_at_logout(host: LabHost) -> Iterator[None]:
    host.run(["mkdir", "-p", "/run/systemd/system", "/etc/systemd/logind.conf.d"], user="root")
    host.write("/etc/systemd/logind.conf.d/kill.conf", "[Login]\nKillUserProcesses=yes\n", user="root")
    yield
    host.run(["rm", "-r", "/run/systemd", "/etc/systemd/logind.conf.d/kill.conf"], user="root")


@contextlib.contextmanager
def rc_file_exits(host: LabHost) -> Iterator[None]:
    kept = host.read(f"{HOME}/.bashrc")
    host.write(".bashrc", "exit 3\n")
    yield
    host.write(".bashrc", kept)


FAULTS = [
    Fault(inject=little_cpu, only="cgroup", said=(("cgroup", "warn", "allows 0.5 CPUs, for workers: 1"),)),
    Fault(inject=few_files, only="limits", said=(("limits", "warn", "low limits: nofile 256"),)),
    Fault(inject=read_only, only="Storage", said=(("writable", "fail", f"{WORKDIRS} (Read-only file system)"),)),
    Fault(inject=slow_disk, only="write-time", said=(("write-time", "warn", f"workdir {WORKDIRS}"),)),
    Fault(
        inject=hung_mount, only="Storage", said=(("mounts", "fail", f"workdir {WORKDIRS}: no answer within 4 s"),)
    ),
    Fault(inject=own_nccl_file, only="settings-equal", said=(("settings-equal", "warn", "NCCL_ALGO=Ring (unset on "),)),
    Fault(inject=own_proxy, only="settings-equal", said=(("settings-equal", "warn", "=http://***@proxy:3128 ("),)),
    Fault(
        inject=stale_lock,
        only="extension-locks",
        said=(("extension-locks", "warn", "torch_extensions/py311_cpu/fused/lock is 120 min old"),),
    ),
    Fault(
        inject=unreadable_runs,
        only="live-runs,leftovers",
        said=(("live-runs", "unknown", "could not look: "), ("leftovers", "unknown", "could not look: ")),
    ),
    Fault(inject=killed_at_logout, only="lingering", said=(("lingering", "fail", "(KillUserProcesses)"),)),
    Fault(inject=rc_file_exits, only="SSH", said=(("helper", "fail", ""),)),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.inject.__name__)
def test_a_fault_is_named_with_its_host(three: Lab, user: User, fault: Fault) -> None:
    with fault.inject(three.host(SICK)):
        code, found = named(user, "--only", fault.only)
    assert_said(found, fault.said)
    assert code == int(any(verdict == "fail" for _, verdict, _ in fault.said))


def test_once_the_faults_are_gone_nothing_is_named(three: Lab, user: User) -> None:
    assert three.hosts
    assert named(user, "--only", ",".join({fault.only for fault in FAULTS})) == (0, [])


def test_what_is_held_by_a_dead_file_server_holds_no_helper(three: Lab, user: User) -> None:
    host = three.host(SICK)
    with hung_mount(host):
        code, found = named(user, "--only", "shm")  # nothing of it waits for the workdir
        assert (code, found) == (0, [])
        assert named(user, "--only", "mounts")[0] == 1
        wait_until("the helper has ended", lambda: not helpers(host), timeout=30)


def test_code_that_somebody_changed_on_a_host_is_named_until_a_run_has_put_it_right(three: Lab, user: User) -> None:
    user.write("train.py", "print('trained')\n")
    run = ("run", "--nproc-per-node", "1", "train.py")
    assert user.run(*run).code == 0
    assert named(user, "--only", "code") == (0, [])
    three.host(SICK).run(["sh", "-c", "echo 1/0 | tee -a clusterddp/*/train.py"])
    code, found = named(user, "--only", "code")
    assert_said(found, (("code", "warn", "changed since it was synced: train.py"),))
    assert code == 0
    assert user.run(*run).code == 0
    assert named(user, "--only", "code") == (0, [])


def package(host: LabHost) -> None:
    host.run(["mkdir", "-p", "other/numpy-0.1.dist-info"])


def fake_torch(host: LabHost) -> None:
    host.write("other/torch/__init__.py", "__version__ = '1.0+other'\nclass version:\n    cuda = hip = None\n")


def data(host: LabHost) -> None:
    host.run(["rm", "-r", "data"])


OTHER = {"clusterddp_env": {"PYTHONPATH": f"{HOME}/other"}}
DATA = {"clusterddp_env": {"DATA": f"{HOME}/data"}}
# (what is done on the sick host, what the inventory says of it, and of all, the check, the verdict, words)
MADE: list[tuple[Callable[[LabHost], None], dict[str, Any], dict[str, Any], str, str, str]] = [
    (package, OTHER, {}, "packages", "warn", "numpy 0.1 ("),
    (fake_torch, OTHER, {}, "torch-equal", "fail", "torch 1.0+other, "),
    (data, {}, DATA, "paths", "warn", f"DATA={HOME}/data is not there, on gpu00 it is"),
]


@pytest.mark.parametrize(("act", "own", "every", "name", "verdict", "words"), MADE, ids=[row[3] for row in MADE])
def test_what_one_host_has_otherwise_is_named(
    three: Lab,
    user: User,
    act: Callable[[LabHost], None],
    own: dict[str, Any],
    every: dict[str, Any],
    name: str,
    verdict: str,
    words: str,
) -> None:
    host = three.host(SICK)
    for one in three.hosts:
        one.run(["mkdir", "-p", "other", "data"])
    path = three.write_inventory(user.folder / "other.yaml", more={SICK: own, "all": every})
    assert named(user, "-i", str(path), "--only", name) == (0, [])
    act(host)
    code, found = named(user, "-i", str(path), "--only", name)
    host.run(["rm", "-rf", "other", "data"])
    assert_said(found, ((name, verdict, words),))
    assert code == int(verdict == "fail")


def test_a_login_that_finds_another_python_is_named(three: Lab, user: User) -> None:
    host = three.host(SICK)
    path = three.write_inventory(user.folder / "plain.yaml", more={"all": {"clusterddp_python": None}})
    assert named(user, "-i", str(path), "--only", "login-python") == (0, [])
    host.run(["sh", "-c", "mkdir -p env/bin && touch env/pyvenv.cfg && ln -s $(command -v python3) env/bin/python"])
    host.write(".bash_profile", f"PATH={HOME}/env/bin:$PATH\n")
    code, found = named(user, "-i", str(path), "--only", "login-python")
    host.run(["rm", "-r", "env", ".bash_profile"])
    assert_said(found, (("login-python", "warn", f"a login finds {HOME}/env/bin/python, a job /usr"),))
    assert code == 0


def test_folders_that_hosts_have_in_common_are_named_with_all_of_them(tmp_path: Path, three: Lab, user: User) -> None:
    assert three.hosts
    assert named(user, "--only", "shared") == (0, [])
    with Lab(2, shared_home=True) as lab:
        both = User(tmp_path)
        path = lab.write_inventory(both.folder / "shared.yaml")
        code, found = named(both, "-i", str(path), "--only", "shared")
        left = lab.host("gpu00").run(["find", ".", "-name", ".clusterddp-*-*"]).stdout
    assert (code, [one[:3] for one in found]) == (0, 2 * [("shared", "warn", ("gpu00", "gpu01"))])
    assert ["state" in found[0][3], "workdir" in found[1][3]] == [True, True]
    assert left == ""


def test_a_key_that_is_refused_is_named(three: Lab, user: User, tmp_path: Path) -> None:
    key = make_key(tmp_path / "stranger")
    path = three.write_inventory(user.folder / "key.yaml", more={SICK: {"ansible_ssh_private_key_file": str(key)}})
    code, found = named(user, "-i", str(path), "--only", "SSH")
    assert_said(found, (("connection", "fail", "refused"),))
    assert code == 1


def test_a_host_that_is_full_of_newcomers_is_named(three: Lab, user: User) -> None:
    """MaxStartups 1: one login at a time is enough for us, unless somebody else begins one and does not end it."""
    assert named(user, "--only", "SSH") == (0, [])
    with socket.create_connection((three.host(CROWDED).address, 22)) as newcomer:
        assert newcomer.recv(4) == b"SSH-"
        code, found = named(user, "--only", "SSH")
    assert [(one[0], one[1], one[2]) for one in found] == [("connection", "fail", (CROWDED,))]
    assert code == 1
    wait_until("it lets us in", lambda: named(user, "--only", "SSH") == (0, []), timeout=60)


def test_processes_that_a_run_has_left_are_named(three: Lab, user: User) -> None:
    user.write("leaves.py", LEAVES)
    assert named(user, "--only", "leftovers") == (0, [])
    host = three.host(SICK)
    with nothing_left(three):
        path = three.write_inventory(user.folder / "one.yaml", hosts=[SICK])
        (run,) = user.run("run", "-i", str(path), "--detach", "leaves.py").lines
        user.hear(run, "started")
        seen = [one for one in host.leftovers(run) if "supervisor" in one.cmdline]
        kill_and_wait([process for process in (ProcessId.of(one.pid) for one in seen) if process])
        code, found = named(user, "--only", "leftovers")
        user.run("stop", run)
    assert_said(found, (("leftovers", "warn", f"run {run} has left "),))
    assert code == 0


def test_a_host_key_that_has_changed_is_named(three: Lab, user: User) -> None:
    """The last of this file: the host has another key from now on."""
    host = three.host(SICK)
    host.new_host_key()
    code, found = named(user, "--only", "SSH")
    assert_said(found, (("host-keys", "fail", "key"),))
    assert code == 1
