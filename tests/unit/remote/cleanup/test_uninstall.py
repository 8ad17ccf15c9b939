"""What `down` says of the runs that a host keeps."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from clusterddp.cli.down_tables import rows_that_stay
from clusterddp.remote.cleanup import retention, uninstall
from clusterddp.remote.cleanup.uninstall import clean
from clusterddp.remote.helper.request import Request
from clusterddp.remote.shared.cleanup.cleanup_records import CleanAnswer
from clusterddp.remote.shared.schema.record import read_record
from clusterddp.remote.spool.layout import EXIT, Spool, all_spools
from clusterddp.runs.cleanup import Cleaned
from clusterddp.runs.holdings import Holdings
from tests.unit.plan_made import PLAN, made_spool

if TYPE_CHECKING:
    from pathlib import Path

LONG_AGO = 1  # ns since the epoch
NEVER = 10**19  # ns since the epoch


def ended(state: Path, run: str, *, attempts: int = 1, host: str = "gpu00", at: int = NEVER) -> None:
    for attempt in range(1, attempts + 1):
        spool = state / "runs" / run / str(attempt) / f"0-{host}"
        spool.mkdir(parents=True)
        record = {"state": "failed", "exit_code": 1, "reason": "", "ended": at}
        (spool / "exit.json").write_text(json.dumps(record))


@pytest.mark.parametrize("of_others", [(), ("theirs1", "theirs2")], ids=["own home", "shared home"])
def test_what_stays_is_counted_in_the_hosts_runs_not_in_spools(tmp_path: Path, of_others: tuple[str, ...]) -> None:
    """A run has a spool for each attempt, and hosts that share a home see each other's runs."""
    ended(tmp_path, "old", attempts=2, at=LONG_AGO)
    ended(tmp_path, "young", attempts=2)
    for run in of_others:
        ended(tmp_path, run, host="gpu01")
    held = Holdings(host="gpu00", runs=len({spool.run for spool in all_spools(str(tmp_path))}))
    asked = {"state": str(tmp_path), "hosts": ["gpu00"], "project": "p1", "purge": False}
    answer = read_record(CleanAnswer, clean(Request(0, asked, -1, -1)), "answer")
    assert answer.spools == 2
    (row,) = rows_that_stay([held], [], [Cleaned(host="gpu00", **answer._asdict())], workdir="")
    assert row.what == "1 run on record: 30 days, or with --purge"


def test_what_another_node_has_just_removed_from_a_shared_folder_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, workdir, gone = tmp_path / "state", tmp_path / "workdir", str(tmp_path / "state" / "gone")
    state.mkdir()
    workdir.mkdir()
    monkeypatch.setattr(uninstall, "stat_caches", lambda _: [(gone, str(workdir)), (gone, None)])
    assert uninstall.unclaimed_workdirs(str(state)) == []
    assert retention.ended_at(Spool(gone)) == pytest.approx(time.time(), abs=60)
    assert uninstall.remove_leftovers(str(state))


def purge(state: Path, host: str, project: str = "p1") -> CleanAnswer:
    asked = {"state": str(state), "hosts": [host], "project": project, "purge": True}
    return read_record(CleanAnswer, clean(Request(0, asked, -1, -1)), "answer")


def age(folder: str | Path) -> None:
    """Make a folder two minutes older."""
    os.utime(folder, (time.time() - 120,) * 2)


@pytest.fixture
def no_inode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no folder be made, as on a file system without a free inode."""

    def full(path: str, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(os, "mkdir", full)


def test_old_runs_are_removed_where_no_inode_is_free(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for run in ("first", "second"):
        ended(tmp_path, run, at=LONG_AGO)
    request.getfixturevalue("no_inode")
    removed = retention.prune(str(tmp_path), ["gpu00"])
    assert (removed.spools, [*(tmp_path / "runs").iterdir()]) == (2, [])
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_runs_are_purged_where_no_inode_is_free(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    spool = tmp_path / "runs" / "abcdefghij" / "1" / "0-gpu00"
    (spool / "logs").mkdir(parents=True)
    age(spool)
    request.getfixturevalue("no_inode")
    assert purge(tmp_path, "gpu00").spools == 1
    assert not spool.exists()


def test_hosts_that_share_a_state_folder_each_remove_all_of_theirs(tmp_path: Path) -> None:
    hosts = [f"gpu{number:02}" for number in range(4)]
    for run in range(20):
        for host in hosts:
            ended(tmp_path, f"run{run}", host=host, at=LONG_AGO)
    begin = threading.Barrier(len(hosts))

    def remove(host: str) -> int:
        begin.wait(30)
        return retention.prune(str(tmp_path), [host]).spools

    with ThreadPoolExecutor(len(hosts)) as pool:
        assert [*pool.map(remove, hosts)] == [20] * len(hosts)
    assert [*all_spools(str(tmp_path))] == []


def test_what_an_interrupted_removal_has_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trash" / "0a").mkdir(parents=True)  # as an earlier version named it
    ended(tmp_path, "old", at=LONG_AGO)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        retention.prune(str(tmp_path), ["gpu00"])
    assert sorted(path.name.partition(".")[0] for path in tmp_path.iterdir()) == ["runs", "trash", "trash"]
    retention.prune(str(tmp_path), ["gpu00"])
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_start_measures_runs_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file server takes a second for each."""
    ended(tmp_path, "old", at=LONG_AGO)
    for run in range(9):
        ended(tmp_path, f"young{run}")
    seconds = 0

    def disk_usage(_: str) -> int:
        nonlocal seconds
        seconds += 1
        return 1000

    monkeypatch.setattr(retention, "disk_usage", disk_usage)
    monkeypatch.setattr(retention, "time", SimpleNamespace(time=time.time, monotonic=lambda: seconds))
    assert retention.prune(str(tmp_path), ["gpu00"], deadline=2).spools == 1
    assert seconds == 3
    assert len([*all_spools(str(tmp_path))]) == 9


def test_what_a_user_keeps_in_a_state_folder_by_a_like_name_stays(tmp_path: Path) -> None:
    """`clusterddp_state` may name a folder in which the user has files, too."""
    kept = ("trash.2023", "trashed.1.tmp")
    for name in (*kept, "trash.0a.tmp"):
        (tmp_path / name).mkdir()
    retention.prune(str(tmp_path), ["gpu00"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


@pytest.mark.parametrize("how", ["by age", "purged"])
def test_a_process_of_one_attempt_keeps_all_files_of_its_run(tmp_path: Path, how: str) -> None:
    """The later attempt has left a process that another user's rights protect."""
    record = PLAN.record._replace(project="p1")
    for attempt, left in ((1, []), (2, [os.getpid()])):
        plan = PLAN._replace(attempt=attempt, record=record)
        spool = Spool.of(str(tmp_path), plan.run, attempt, plan.node)
        assert made_spool(spool, plan)
        at = LONG_AGO if how == "by age" else time.time_ns()
        exit_record = {"state": "failed", "exit_code": 1, "reason": "", "ended": at, "unseen": left}
        (tmp_path / spool.path(EXIT)).write_text(json.dumps(exit_record))
    result = tmp_path / "rundirs" / f"{spool.run}-{spool.host}" / "result"
    result.parent.mkdir(parents=True)
    result.write_text("")
    answer = purge(tmp_path, spool.host, "p1" if how == "purged" else "other")
    assert (answer.spools, answer.kept) == (0, (spool.run,) if how == "purged" else ())
    assert [kept.attempt for kept in all_spools(str(tmp_path))] == [1, 2]
    assert result.exists()


def test_a_run_dir_that_cannot_be_removed_is_told_and_its_run_stays_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container has written files of root's there."""
    for attempt in (1, 2):
        plan = PLAN._replace(attempt=attempt, record=PLAN.record._replace(project="p1"))
        spool = Spool.of(str(tmp_path), plan.run, attempt, plan.node)
        assert made_spool(spool, plan)
        age(spool.folder)
    roots = tmp_path / "rundirs" / f"{spool.run}-{spool.host}" / "roots"
    roots.mkdir(parents=True)
    rmtree, tries = shutil.rmtree, 0

    def refused(path: str, *, ignore_errors: bool = False) -> None:
        nonlocal tries
        if path != str(roots.parent):
            rmtree(path, ignore_errors=ignore_errors)
            return
        tries += 1
        (roots / f"{tries}").write_bytes(b"x" * 10_000)  # the container still runs
        if not ignore_errors:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(roots))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", refused)
        answer = purge(tmp_path, spool.host)
    assert (answer.spools, answer.run_dirs, answer.runs_left, answer.bytes) == (0, 0, 1, 0)
    assert tries == 2  # once for both attempts: it may have a million files
    assert answer.left == ((str(roots.parent), "Permission denied"),)
    answer = purge(tmp_path, spool.host)
    assert (answer.spools, answer.run_dirs, answer.runs_left, answer.left) == (2, 1, 0, ())


def test_a_run_that_is_being_started_is_not_purged(tmp_path: Path) -> None:
    """A start has made its spool, and forks the supervisor next."""
    plan = PLAN._replace(record=PLAN.record._replace(project="p1"))
    spool = Spool.of(str(tmp_path), plan.run, plan.attempt, plan.node)
    assert made_spool(spool, plan)
    assert (purge(tmp_path, spool.host).spools, spool.readable_plan()) == (0, plan)
    age(spool.folder)  # the start was interrupted
    assert purge(tmp_path, spool.host, "other").spools == 0
    assert purge(tmp_path, spool.host).spools == 1


def test_what_an_interrupted_start_left_before_it_had_a_plan_is_purged(tmp_path: Path) -> None:
    spool = tmp_path / "runs" / "abcdefghij" / "1" / "0-gpu00"
    (spool / "logs").mkdir(parents=True)
    (spool / "exit.json.room").write_bytes(b" " * 100)
    assert purge(tmp_path, "gpu00").spools == 0  # perhaps it is just being made
    age(spool)
    assert purge(tmp_path, "gpu01").spools == 0
    assert purge(tmp_path, "gpu00").spools == 1
    assert not spool.exists()
