"""Which runs are looked for among the processes of a host."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.processes import orphans
from clusterddp.remote.shared.processes.process_records import OrphansRequest
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.system import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN, HOST = "k3xa8w2mnp", f"host-{os.getpid()}"  # tests in other processes see all processes too


@contextmanager
def process_with(env: dict[str, str]) -> Iterator[int]:
    """Run a process with this environment while the block runs; yield its pid."""
    with subprocess.Popen(["/bin/cat"], env=env, stdin=subprocess.PIPE) as process:
        yield process.pid
        assert process.stdin
        process.stdin.close()


def found(state: Path) -> list[tuple[str, bool, list[int]]]:
    """The runs that the operation reports for a state folder, whether each is known there, and their pids."""
    request: Any = SimpleNamespace(state=str(state), read_args=lambda _: OrphansRequest(hosts=(HOST,)))
    return [(one["run"], one["known"], [left["pid"] for left in one["processes"]]) for one in orphans.orphans(request)]


def test_a_live_run_of_another_state_folder_has_a_supervisor(tmp_path: Path) -> None:
    """clusterddp_state was changed during the run, or the run is another project's, which has its own state folder."""
    spool = Spool.of(str(tmp_path / "other"), RUN, 1, f"0-{HOST}")
    Path(spool.folder).mkdir(parents=True)
    env = {"CLUSTERDDP_RUN_ID": RUN, "CLUSTERDDP_HOST": HOST}
    with process_with({**env, "PYTHON_EXEC": spool.path("worker")}) as agent, process_with(env) as worker:
        assert found(tmp_path) == [(RUN, False, sorted([agent, worker]))]
        assert spool.take_lock()
        try:
            assert found(tmp_path) == []
        finally:
            spool.release_lock()
    with process_with({**env, "PYTHON_EXEC": f"{__file__}/worker"}) as pid:  # in no folder
        assert found(tmp_path) == [(RUN, False, [pid])]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_lock_that_is_no_file_has_no_holder(tmp_path: Path, kind: str) -> None:
    """A user's setuid program counts as root's, but its environment is what that user has given it."""
    theirs, held = tmp_path / "theirs", Spool(str(tmp_path / "held"))
    for folder in (theirs, Path(held.folder)):
        folder.mkdir()
    assert held.take_lock()
    try:
        if kind == "link":
            (theirs / "lock").symlink_to(held.path("lock"))
        else:
            os.mkfifo(theirs / "lock")
        env = {"CLUSTERDDP_RUN_ID": RUN, "CLUSTERDDP_HOST": HOST, "PYTHON_EXEC": f"{theirs}/worker"}
        with process_with(env) as pid:
            assert found(tmp_path) == [(RUN, False, [pid])]
    finally:
        held.release_lock()


def test_a_run_that_another_command_removes_meanwhile_has_left_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`down --purge` in one terminal, `up` in another."""
    spool = Spool.of(str(tmp_path), RUN, 1, f"0-{HOST}")
    Path(spool.folder).mkdir(parents=True)
    alive = Spool.alive

    def removed(self: Spool) -> bool:
        is_alive = alive(self)
        Path(self.folder).rmdir()
        return is_alive

    monkeypatch.setattr(Spool, "alive", removed)
    assert found(tmp_path) == []


def test_another_users_run_is_not_told_to_who_sees_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process_with({"CLUSTERDDP_RUN_ID": RUN, "CLUSTERDDP_HOST": HOST}) as pid:
        assert found(tmp_path) == [(RUN, False, [pid])]
        monkeypatch.setattr(procfs, "other_user", lambda _: "alice")
        assert found(tmp_path) == []


def test_a_mark_that_is_no_runs_id_leads_to_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user can start a process with any environment, and make a folder that accuses others."""
    looked: list[str] = []

    def processes(spools: list[Spool], _: object) -> Any:
        looked.extend(spool.folder for spool in spools)
        return SimpleNamespace(find=lambda _: [])

    monkeypatch.setattr(orphans, "NodeProcesses", processes)
    request: Any = SimpleNamespace(state=str(tmp_path), read_args=lambda _: OrphansRequest(hosts=("an-odd-host",)))
    with ExitStack() as stack:
        for run in ("k3xa8w2mnp", "../../planted", "a b"):
            env = {"CLUSTERDDP_RUN_ID": run, "CLUSTERDDP_HOST": "an-odd-host"}
            process = stack.enter_context(subprocess.Popen(["/bin/cat"], env=env, stdin=subprocess.PIPE))
            assert process.stdin
            stack.callback(process.stdin.close)
        assert orphans.orphans(request) == []
    assert looked == [f"{tmp_path}/runs/k3xa8w2mnp/1/0-an-odd-host"]
