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

from tests.integration.cli import helpers
from tests.integration.doctor.test_doctor import WORKDIRS
from tests.integration.doctor_cli import SICK, Fault, assert_fault, assert_mended, assert_said, named
from tests.integration.throwaway_sshd import make_key
from tests.lab.disorders import HUNG
from tests.lab.options import HostOptions
from tests.lab.system import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.cli import User
    from tests.lab import Lab
    from tests.lab.host import LabHost

pytestmark = pytest.mark.lab
CROWDED = "gpu02"  # lets one at a time log in
HOME = "/home/trainer"
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


HUNG_MOUNT = Fault(
    inject=hung_mount, only="Storage", said=(("mounts", "fail", f"workdir {WORKDIRS}: no answer within 4 s"),)
)
FAULTS = [
    Fault(inject=little_cpu, only="cgroup", said=(("cgroup", "warn", "allows 0.5 CPUs, for workers: 1"),)),
    Fault(inject=rc_file_exits, only="SSH", said=(("helper", "fail", ""),)),
]
TOGETHER = [  # none of them has to do with another
    Fault(inject=own_nccl_file, only="settings-equal", said=(("settings-equal", "warn", "NCCL_ALGO=Ring (unset on "),)),
    Fault(
        inject=own_proxy,
        only="settings-equal",
        said=(("settings-equal", "warn", "=http://***@proxy:3128 ("),),
        host="gpu00",
    ),
    Fault(
        inject=stale_lock,
        only="extension-locks",
        said=(("extension-locks", "warn", "torch_extensions/py311_cpu/fused/lock is 120 min old"),),
    ),
    Fault(inject=few_files, only="limits", said=(("limits", "warn", "low limits: nofile 256"),)),
    Fault(inject=killed_at_logout, only="lingering", said=(("lingering", "fail", "(KillUserProcesses)"),)),
    Fault(
        inject=unreadable_runs,
        only="live-runs,leftovers",
        said=(("live-runs", "unknown", "could not look: "), ("leftovers", "unknown", "could not look: ")),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.inject.__name__)
def test_a_fault_is_named_with_its_host(three: Lab, user: User, fault: Fault) -> None:
    assert_fault(three, user, fault)


def test_several_faults_at_once_are_all_named(three: Lab, user: User) -> None:
    assert_fault(three, user, *TOGETHER)


def test_a_dead_file_server_is_named_and_what_it_holds_holds_no_helper(three: Lab, user: User) -> None:
    host = three.host(SICK)
    with hung_mount(host):
        assert named(user, "--only", "shm") == (0, [])  # nothing of it waits for the workdir
        told = named(user, "--only", HUNG_MOUNT.only)
        wait_until("the helper has ended", lambda: not helpers(host), timeout=30)
    assert_said(told, *HUNG_MOUNT.named)


@pytest.mark.usefixtures("three")
def test_once_the_faults_are_gone_nothing_is_named(user: User) -> None:
    assert_mended(user, *FAULTS, *TOGETHER, HUNG_MOUNT)


def test_code_that_somebody_changed_on_a_host_is_named_until_a_run_has_put_it_right(three: Lab, user: User) -> None:
    user.write("train.py", "print('trained')\n")
    run = ("run", "--nproc-per-node", "1", "train.py")
    assert user.run(*run).code == 0
    assert named(user, "--only", "code") == (0, [])
    three.host(SICK).run(["sh", "-c", "echo 1/0 | tee -a clusterddp/*/train.py"])
    assert_said(named(user, "--only", "code"), ("code", "warn", (SICK,), "changed since it was synced: train.py"))
    assert user.run(*run).code == 0
    assert named(user, "--only", "code") == (0, [])


def package(host: LabHost) -> None:
    host.run(["mkdir", "-p", "other/numpy-0.1.dist-info"])


def fake_torch(host: LabHost) -> None:
    host.write("other/torch/__init__.py", "__version__ = '1.0+other'\nclass version:\n    cuda = hip = None\n")


# (what is done on the sick host, the check, the verdict, words)
MADE: list[tuple[Callable[[LabHost], None], str, str, str]] = [
    (package, "packages", "warn", "numpy 0.1 ("),
    (fake_torch, "torch-equal", "fail", "torch 1.0+other, "),
]


@pytest.mark.parametrize(("act", "name", "verdict", "words"), MADE, ids=[row[1] for row in MADE])
def test_what_one_host_has_otherwise_is_named(
    three: Lab, user: User, act: Callable[[LabHost], None], name: str, verdict: str, words: str
) -> None:
    host = three.host(SICK)
    host.run(["mkdir", "-p", "other"])
    own = {"clusterddp_env": {"PYTHONPATH": f"{HOME}/other"}}
    path = three.write_inventory(user.folder / "other.yaml", more={SICK: own})
    assert named(user, "-i", str(path), "--only", name) == (0, [])
    act(host)
    told = named(user, "-i", str(path), "--only", name)
    host.run(["rm", "-r", "other"])
    assert_said(told, (name, verdict, (SICK,), words))


def test_a_key_that_is_refused_is_named(three: Lab, user: User, tmp_path: Path) -> None:
    key = make_key(tmp_path / "stranger")
    path = three.write_inventory(user.folder / "key.yaml", more={SICK: {"ansible_ssh_private_key_file": str(key)}})
    assert_said(named(user, "-i", str(path), "--only", "SSH"), ("connection", "fail", (SICK,), "refused"))


def test_a_host_that_is_full_of_newcomers_is_named(three: Lab, user: User) -> None:
    """MaxStartups 1: one login at a time is enough for us, unless somebody else begins one and does not end it."""
    assert named(user, "--only", "SSH") == (0, [])
    with socket.create_connection((three.host(CROWDED).address, 22)) as newcomer:
        assert newcomer.recv(4) == b"SSH-"
        told = named(user, "--only", "SSH")
    assert_said(told, ("connection", "fail", (CROWDED,), ""))
    wait_until("it lets us in", lambda: named(user, "--only", "SSH") == (0, []), timeout=60)


def test_a_host_key_that_has_changed_is_named(three: Lab, user: User) -> None:
    """The last of this file: the host has another key from now on."""
    host = three.host(SICK)
    host.new_host_key()
    assert_said(named(user, "--only", "SSH"), ("host-keys", "fail", (SICK,), "key"))
