"""Which runs are begun from a warm server: those that would come out the same, and no others. Real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.hosts.zipapp import bundle
from clusterddp.remote.spool.layout import Spool, create_spool
from clusterddp.remote.supervisor import warm
from clusterddp.remote.supervisor.warm import DiffersError, Start
from clusterddp.remote.system import procfs
from clusterddp.remote.worker import warm_folder
from clusterddp.remote.worker.warm_folder import WarmServer
from tests.unit.plan_made import PLAN

if TYPE_CHECKING:
    from collections.abc import Iterator

FORKED = PLAN._replace(worker_argv=("-u", "train.py"), warm=900.0)
ENV = {"PATH": "/bin", "OMP_NUM_THREADS": "1"}


def start(state: Path, **environment: str) -> Start:
    """A node that is about to be started."""
    spool = Spool(str(state / "runs" / "run1" / "1" / "0-h"))
    create_spool(spool, FORKED, bundle().code)
    return Start(str(state), spool, FORKED, {**ENV, **environment})


def server(**changes: Any) -> Iterator[WarmServer]:
    """A process that stands as a warm server of ``ENV`` would, but for the changes."""
    with subprocess.Popen(["sleep", "600"], env=ENV, stdin=subprocess.DEVNULL, **changes) as living:
        ticks = procfs.start_ticks(living.pid) or 0
        yield WarmServer(living.pid, ticks, FORKED.python, Path(sys.argv[0]).name, ready=True)
        living.kill()


@pytest.fixture
def same() -> Iterator[WarmServer]:
    yield from server()


def differs(node: Start, one: WarmServer) -> str:
    """Why the run is started plainly; empty if it is not."""
    try:
        node.compare(one)
    except DiffersError as why:
        return str(why)
    return ""


def test_what_each_login_and_run_has_of_its_own_matters_not(tmp_path: Path, same: WarmServer) -> None:
    node = start(tmp_path, SSH_CONNECTION="1 2 3 4", CLUSTERDDP_RUN_ID="r", NCCL_DEBUG="WARN", HF_TOKEN="t", RANK="1")
    assert differs(node, same) == ""


@pytest.mark.parametrize(("name", "value"), [("OMP_NUM_THREADS", "2"), ("ANY", "1"), ("LD_LIBRARY_PATH", "/opt")])
def test_any_other_variable_means_a_plain_start(tmp_path: Path, same: WarmServer, name: str, value: str) -> None:
    assert differs(start(tmp_path, **{name: value}), same) == f"{name} is another"


def test_a_variable_that_is_missing_now_means_a_plain_start(tmp_path: Path, same: WarmServer) -> None:
    node = start(tmp_path)
    node = node._replace(environment={"PATH": "/bin"})
    assert differs(node, same) == "OMP_NUM_THREADS is another"


def test_a_secret_of_another_name_means_a_plain_start(tmp_path: Path, same: WarmServer) -> None:
    node = start(tmp_path)
    Path(node.spool.path("secrets.json")).write_text('{"MY_TOKEN": "t"}')
    assert differs(node, same) == "MY_TOKEN is another"


def test_another_version_or_interpreter_means_a_plain_start(tmp_path: Path, same: WarmServer) -> None:
    node = start(tmp_path)
    assert differs(node, same._replace(code="other")) == "it is of another version"
    assert differs(node, same._replace(python="/other")) == "its interpreter is /other"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"umask": 0o27}, "its status is another"), ({"preexec_fn": lambda: os.nice(1)}, "its scheduling is another")],
)
def test_another_standing_of_the_process_means_a_plain_start(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    for one in server(**changes):
        assert differs(start(tmp_path), one) == reason


def test_a_run_of_ours_a_managers_and_one_that_wants_none_are_started_plainly() -> None:
    assert warm.wants(FORKED)
    for plan in (
        PLAN,
        FORKED._replace(warm=0.0),
        FORKED._replace(manager="slurm"),
        FORKED._replace(program="bench.py"),
    ):
        assert not warm.wants(plan)


def test_only_a_process_that_lives_is_found_and_ended(tmp_path: Path, same: WarmServer) -> None:
    state = str(tmp_path)
    file = Path(warm_folder.folder_of(state), warm_folder.RECORD)
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
        assert warm_folder.find(state) is None
    file.write_text(json.dumps(record))
    assert warm_folder.find(state) == WarmServer(same.pid, same.ticks, "/p", "c", ready=False)
    assert warm_folder.end(state)
    assert os.waitid(os.P_PID, same.pid, os.WEXITED | os.WNOWAIT)
    assert not file.parent.exists()
    assert not warm_folder.end(state)
