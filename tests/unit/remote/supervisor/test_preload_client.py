"""Which runs are begun from a warm server: those that would come out the same, and no others. Real processes."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.fork_server.fork_checks import RefusedError
from clusterddp.remote.preload import preload_server, server_folder
from clusterddp.remote.preload.server_folder import LivePreloadServer
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.supervisor import preload_client
from clusterddp.remote.supervisor.preload_client import DiffersError, PreloadedStart
from clusterddp.remote.system import procfs
from clusterddp.remote.worker import fork_client
from clusterddp.remote.worker.agent_environment import agent_environment
from tests.lab.system import wait_until
from tests.unit.plan_made import PLAN, changed, made_spool

if TYPE_CHECKING:
    from collections.abc import Iterator

FORKED = changed(PLAN, worker_argv=("-u", "train.py"), warm=900.0)
ENV = {"PATH": "/bin", "OMP_NUM_THREADS": "1"}


def start(state: Path, **environment: str) -> PreloadedStart:
    """A node that is about to be started."""
    spool = Spool(str(state / "runs" / "run1" / "1" / "0-h"))
    made_spool(spool, FORKED)
    return PreloadedStart(str(state), spool, FORKED, {**ENV, **environment})


def server(**changes: Any) -> Iterator[LivePreloadServer]:
    """A process that stands as a warm server of ``ENV`` would, but for the changes."""
    with subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, **{"env": ENV, **changes}) as living:
        ticks = procfs.start_ticks(living.pid) or 0
        try:
            environ = Path(f"/proc/{living.pid}/environ")  # not there at once when Popen returns
            wait_until("the server's variables are there", environ.read_bytes)
            yield LivePreloadServer(living.pid, ticks, FORKED.python, Path(sys.argv[0]).name, ready=True)
        finally:
            living.kill()


@pytest.fixture
def same() -> Iterator[LivePreloadServer]:
    yield from server()


def differs(node: PreloadedStart, one: LivePreloadServer) -> str:
    """Why the run is started plainly; empty if it is not."""
    try:
        node.compare(one)
    except DiffersError as why:
        return str(why)
    return ""


def test_what_each_login_and_run_has_of_its_own_matters_not(tmp_path: Path, same: LivePreloadServer) -> None:
    node = start(tmp_path, SSH_CONNECTION="1 2 3 4", CLUSTERDDP_RUN_ID="r", NCCL_DEBUG="WARN", HF_TOKEN="t", RANK="1")
    assert differs(node, same) == ""


@pytest.mark.parametrize(("name", "value"), [("OMP_NUM_THREADS", "2"), ("ANY", "1"), ("LD_LIBRARY_PATH", "/opt")])
def test_any_other_variable_means_a_plain_start(tmp_path: Path, same: LivePreloadServer, name: str, value: str) -> None:
    assert differs(start(tmp_path, **{name: value}), same) == f"{name} is another"


def test_a_variable_that_is_missing_now_means_a_plain_start(tmp_path: Path, same: LivePreloadServer) -> None:
    node = start(tmp_path)
    node = node._replace(environment={"PATH": "/bin"})
    assert differs(node, same) == "OMP_NUM_THREADS is another"


def test_a_secret_of_another_name_means_a_plain_start(tmp_path: Path, same: LivePreloadServer) -> None:
    node = start(tmp_path)
    Path(node.spool.path("secrets.json")).write_text('{"MY_TOKEN": "t"}')
    assert differs(node, same) == "MY_TOKEN is another"


def test_another_version_or_interpreter_means_a_plain_start(tmp_path: Path, same: LivePreloadServer) -> None:
    node = start(tmp_path)
    assert differs(node, same._replace(code="other")) == "it is of another version"
    assert differs(node, same._replace(python="/other")) == "its interpreter is /other"


def call(name: str, *numbers: int) -> None:
    """Have the C library do it."""
    assert not getattr(ctypes.CDLL(None), name)(*numbers)


NO_NEW_PRIVS, DROP_FROM_BOUNDING, SYS_TIME = 38, 24, 25  # prctl's; a capability
OTHERWISE: dict[str, dict[str, Any]] = {
    "umask": {"umask": 0o27},
    "scheduling": {"preexec_fn": lambda: os.nice(1)},
    "set of limits": {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))},
    "set of capabilities": {"preexec_fn": partial(call, "prctl", NO_NEW_PRIVS, 1, 0, 0, 0)},
}
AS_ROOT: dict[str, dict[str, Any]] = {
    "list of groups": {"extra_groups": [54321]},
    "set of capabilities": {"preexec_fn": partial(call, "prctl", DROP_FROM_BOUNDING, SYS_TIME, 0, 0, 0)},
    "mount namespace": {"preexec_fn": partial(call, "unshare", 0x20000)},
    "UTS namespace": {"preexec_fn": partial(call, "unshare", 0x4000000)},
    "IPC namespace": {"preexec_fn": partial(call, "unshare", 0x8000000)},
    "network namespace": {"preexec_fn": partial(call, "unshare", 0x40000000)},
    "cgroup namespace": {"preexec_fn": partial(call, "unshare", 0x2000000)},
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_another_standing_of_the_process_means_a_plain_start(tmp_path: Path, what: str) -> None:
    for one in server(**OTHERWISE[what]):
        assert differs(start(tmp_path), one) == f"its {what} is another"


@pytest.mark.skipif(os.getuid() != 0, reason="changes groups, capabilities and namespaces")
@pytest.mark.parametrize("what", AS_ROOT)
def test_other_rights_or_another_world_mean_a_plain_start(tmp_path: Path, what: str) -> None:
    for one in server(**AS_ROOT[what]):
        assert differs(start(tmp_path), one) == f"its {what} is another"


def test_fewer_cores_mean_a_plain_start(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    for one in server(preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})):
        assert differs(start(tmp_path), one) == "its affinity is another"


def test_another_security_label_means_a_plain_start(
    tmp_path: Path, same: LivePreloadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_client, "_bytes_of", lambda path: path if path.endswith("attr/current") else b"")
    assert differs(start(tmp_path), same) == "its security label is another"


LOGIN = "0::/user.slice/user-1000.slice/session-%s.scope\n"
JOB = "0::/system.slice/slurmstepd.scope/job_%s/step_extern\n"  # a login that Slurm has adopted


@pytest.mark.parametrize(
    ("here", "there", "limits", "why"),
    [
        (LOGIN % 7, LOGIN % "c12", ("max", "max"), ""),
        (LOGIN % 7, LOGIN % 8, ("max", "1000"), "its cgroup is another"),
        (LOGIN % 7, "0::/system.slice/ssh.service\n", ("max", "max"), "its cgroup is another"),
        (JOB % 41, JOB % 42, ("max", "max"), "its cgroup is another"),
        ("4:memory:/a\n" + LOGIN % 7, "4:memory:/b\n" + LOGIN % 7, ("max", "max"), "its cgroup is another"),
    ],
)
def test_another_control_group_means_a_plain_start_but_another_login_of_the_same_limits(
    tmp_path: Path,
    same: LivePreloadServer,
    monkeypatch: pytest.MonkeyPatch,
    here: str,
    there: str,
    limits: tuple[str, str],
    why: str,
) -> None:
    def text(path: str) -> str | None:
        groups = {f"/proc/{os.getpid()}/cgroup": here, f"/proc/{same.pid}/cgroup": there}
        mine = path.startswith("/sys/fs/cgroup" + here.splitlines()[-1][3:] + "/")
        return groups.get(path) or (limits[not mine] if path.endswith("memory.max") else None)

    node = start(tmp_path)
    monkeypatch.setattr(preload_client, "_text", text)
    assert differs(node, same) == why


@pytest.mark.parametrize(
    ("cache", "keys", "why"),
    [
        ("FILE:/tmp/krb5cc", "3b7 I--Q--- 1 perm 3f030000 {uid} 65534 keyring _ses: 1\n", ""),
        ("KEYRING:persistent:1000", "", "this login holds keys in the kernel's keyring"),
        ("FILE:/tmp/krb5cc", "1f I--Q--- 1 perm 3f030000 {uid} 1000 user fscrypt:0a: 16\n", "this login holds"),
        ("FILE:/tmp/krb5cc", "1f I--Q--- 1 perm 3f030000 99999 1000 user fscrypt:0a: 16\n", ""),
    ],
)
def test_a_home_or_ticket_that_hangs_on_a_key_of_the_login_means_a_plain_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str, keys: str, why: str
) -> None:
    node = start(tmp_path, KRB5CCNAME=cache)
    text = {"/proc/keys": keys.format(uid=os.getuid())}
    monkeypatch.setattr(preload_client, "_text", lambda path: text.get(path, ""))
    for one in server(env={**ENV, "KRB5CCNAME": cache}):
        assert differs(node, one).startswith(why)
        assert bool(differs(node, one)) == bool(why)


def test_setup_lines_with_another_outcome_mean_a_plain_start(tmp_path: Path, same: LivePreloadServer) -> None:
    node = start(tmp_path)
    plan = changed(FORKED, setup=("export OMP_NUM_THREADS=$(( 1 + 1 ))",), env={}, yielding=())
    env = agent_environment(plan, node.spool)
    node = node._replace(plan=plan, environment={**ENV, "OMP_NUM_THREADS": env["OMP_NUM_THREADS"]})
    assert differs(node, same) == "OMP_NUM_THREADS is another"


@pytest.mark.parametrize("words", [("train.sh",), ("-u",), ("-m", "torch.something")])
def test_what_is_not_pythons_own_start_of_a_script_is_started_plainly(
    tmp_path: Path, same: LivePreloadServer, words: tuple[str, ...]
) -> None:
    node = start(tmp_path)
    node = node._replace(plan=node.plan._replace(worker_argv=words))
    assert differs(node, same) == "the workers' command line is another kind"


def test_another_driver_means_a_plain_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version").write_bytes(b"NVRM version: 550")
    monkeypatch.setattr(preload_server, "DRIVER", str(tmp_path / "version"))
    one = object.__new__(preload_server.PreloadServer)
    one.seen, one.driver = {}, "NVRM version: 550"
    one.refuse_changes()
    (tmp_path / "version").write_bytes(b"NVRM version: 560")
    with pytest.raises(RefusedError, match="the driver has changed since it was started"):
        one.refuse_changes()


TELLS = "#!/bin/sh\n{ pwd; ls -l /proc/self/fd; env; } >%s.new && mv %s.new %s\n"


def left_by(node: PreloadedStart, told: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a program in the interpreter's place sees of the warm server's start."""
    monkeypatch.setattr(sys, "argv", [node.spool.path("remote.pyz")])
    program = told.with_name("python")
    program.write_text(TELLS.replace("%s", str(told)))
    program.chmod(0o755)
    node = node._replace(plan=node.plan._replace(python=str(program)))
    node.start_for_next_run(0)
    wait_until("the program has told", told.exists, 30)
    return told.read_text()


def test_the_server_for_the_next_run_has_no_marks_secrets_or_descriptors_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = {"CLUSTERDDP_RUN_ID": "run1", "HF_TOKEN": "t0ken", "RANK": "1", "SSH_CONNECTION": "1 2 3 4"}
    node = start(tmp_path, MY_TOKEN="t0ken", **marks)
    Path(node.spool.path("secrets.json")).write_text('{"MY_TOKEN": "t0ken"}')
    seen = left_by(node, tmp_path / "told", monkeypatch)
    names = {line.partition("=")[0] for line in seen.splitlines()}
    assert names & {*marks, "MY_TOKEN"} == set()
    assert "t0ken" not in seen
    assert "OMP_NUM_THREADS=1\n" in seen
    assert seen.startswith(server_folder.folder_of(str(tmp_path)) + "/cwd-")
    assert "socket:" not in seen
    assert node.spool.path("hook") not in seen
    assert Path(server_folder.folder_of(str(tmp_path))).stat().st_mode & 0o777 == 0o700


def test_whose_runs_are_kept_on_the_account_matters_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = start(tmp_path)
    for run, operator in (("run2", "ann@laptop"), ("run3", "ann@desktop")):
        plan = FORKED._replace(run=run, record=FORKED.record._replace(operator=operator))
        assert made_spool(Spool(str(tmp_path / "runs" / run / "1" / "0-h")), plan)
    assert left_by(node, tmp_path / "told", monkeypatch)


def record_of(node: PreloadedStart, one: LivePreloadServer, *, ready: bool, awaits: int = 0, **wishes: Any) -> None:
    """Have ``one`` on record as the warm server of the node's state folder."""
    folder = Path(node.folder)
    folder.mkdir(parents=True, mode=0o700)
    record = {"pid": one.pid, "ticks": one.ticks, "boot": procfs.boot_identity(), "python": one.python}
    awaited = [awaits, procfs.start_ticks(awaits) or 0] if awaits else [0, 0]
    (folder / server_folder.RECORD).write_text(json.dumps({**record, "code": one.code, "awaits": awaited}))
    (folder / server_folder.WISHES).write_text(json.dumps(wishes))
    if ready:
        told = {"packages": [], "left_out": [], "reads": [], "considered": ["HF_TOKEN"]}
        (folder / server_folder.BEGUN_WITH).write_text(json.dumps(told))
        (folder / "fork.sock").touch()


def plainly(node: PreloadedStart) -> str:
    """Why a start does without the warm server; empty where there is none."""
    try:
        assert not node.begin([], [])
    except DiffersError as why:
        return str(why)
    return ""


def begins_another(node: PreloadedStart, monkeypatch: pytest.MonkeyPatch, *, replace: bool = False) -> bool:
    """Whether another server is left for the next run."""
    begun: list[int] = []
    monkeypatch.setattr(PreloadedStart, "_start", lambda _, awaited: begun.append(awaited))
    node.start_for_next_run(os.getpid(), replace=replace)
    return bool(begun)


def test_one_that_has_refused_gives_way_at_once(
    tmp_path: Path, same: LivePreloadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(tmp_path)
    record_of(node, same, ready=True)
    assert not begins_another(node, monkeypatch)
    assert begins_another(node, monkeypatch, replace=True)
    assert os.waitid(os.P_PID, same.pid, os.WEXITED | os.WNOWAIT)


def test_one_that_waits_for_another_runs_end_says_so_and_gives_way(
    tmp_path: Path, same: LivePreloadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(tmp_path)
    record_of(node, same, ready=False, awaits=os.getpid())
    assert plainly(node) == "it waits for the end of another run here"
    assert begins_another(node, monkeypatch)


def test_one_that_imports_still_says_so_and_stays(
    tmp_path: Path, same: LivePreloadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(tmp_path)
    record_of(node, same, ready=False)
    assert plainly(node) == "it is not ready yet"
    assert not begins_another(node, monkeypatch)


@pytest.mark.parametrize(
    ("its", "ours", "ready", "why"),
    [
        (["HF_TOKEN"], (), True, "HF_TOKEN is a secret of one run and not of the other"),
        ([], ("HF_TOKEN",), True, "HF_TOKEN is a secret of one run and not of the other"),
        (["HF_TOKEN", "WANDB_API_KEY"], ("HF_TOKEN",), True, ""),  # nothing that is preloaded reads it
        (["WANDB_API_KEY"], (), False, "WANDB_API_KEY is a secret of one run and not of the other"),
    ],
)
def test_secrets_are_compared_as_far_as_a_package_reads_them(
    tmp_path: Path, same: LivePreloadServer, its: list[str], ours: tuple[str, ...], why: str, *, ready: bool
) -> None:
    node = start(tmp_path)
    node = node._replace(plan=changed(node.plan, preload=("hub",), secrets=ours))
    record_of(node, same, ready=ready, preload=["hub"], secrets=its)
    found = server_folder.find(str(tmp_path))
    assert found
    assert differs(node, found) == why


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (
            "a warning\nrefused: only 900 MB of memory are left here\n",
            "there is none, for only 900 MB of memory are left here",
        ),
        ("refused: it was so once\na warning\n", ""),  # of an import, by one that has ended since
        ("", ""),
    ],
)
def test_why_the_last_one_could_not_be_is_said(tmp_path: Path, log: str, why: str) -> None:
    node = start(tmp_path)
    Path(node.folder).mkdir(parents=True)
    (Path(node.folder) / server_folder.LOG).write_text(log)
    assert plainly(node) == why


def test_a_run_of_ours_a_managers_and_one_that_wants_none_are_started_plainly() -> None:
    assert preload_client.may_preload(FORKED)
    for plan in (
        PLAN,
        changed(FORKED, warm=0.0),
        FORKED._replace(manager="slurm"),
        changed(FORKED, program="bench.py"),
    ):
        assert not preload_client.may_preload(plan)


def test_only_a_process_that_lives_is_found_and_ended(tmp_path: Path, same: LivePreloadServer) -> None:
    state = str(tmp_path)
    file = Path(server_folder.folder_of(state), server_folder.RECORD)
    file.parent.mkdir(parents=True)
    record = {"pid": same.pid, "ticks": same.ticks, "boot": procfs.boot_identity(), "python": "/p", "code": "c"}
    damaged: Any
    for damaged in (
        {},
        {"boot": "other"},
        {**record, "ticks": same.ticks + 1},
        {**record, "boot": "other"},
        [],
        {"boot": 1},
    ):
        file.write_text(json.dumps(damaged))
        assert server_folder.find(state) is None
    file.write_text(json.dumps(record))
    assert server_folder.find(state) == LivePreloadServer(same.pid, same.ticks, "/p", "c", ready=False)
    assert server_folder.end(state)
    assert os.waitid(os.P_PID, same.pid, os.WEXITED | os.WNOWAIT)
    assert not file.parent.exists()
    assert not server_folder.end(state)
