"""Marks in the folders of hosts: who sees whose, and that none is left."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from clusterddp.remote.probes import shared_folders
from tests.unit.operation import run_operation

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_mark_is_seen_where_the_folder_is_one_and_is_gone_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "own").mkdir()
    first = {"state": str(tmp_path / "own"), "workdir": str(tmp_path / "common" / "not" / "yet")}
    second = {"state": str(tmp_path / "common"), "workdir": str(tmp_path / "common")}
    assert run_operation(shared_folders.mark, {"nonce": "n1", "folders": first}) == ["state", "workdir"]
    told: dict[str, Any] = run_operation(
        shared_folders.marked, {"nonces": {"gpu01": "n1", "gpu03": "n3"}, "folders": second}
    )
    assert told == {"folders": {"state": ["gpu01"], "workdir": ["gpu01"]}}
    run_operation(shared_folders.unmark, {"nonce": "n1", "folders": first})
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


def test_a_folder_that_takes_no_mark_is_left_out() -> None:
    assert run_operation(shared_folders.mark, {"nonce": "n1", "folders": {"state": "/proc/self"}}) == []


def test_what_a_lost_host_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    stale, fresh, other = (tmp_path / name for name in (".clusterddp-mark-old", ".clusterddp-mark-new", "data"))
    for path in (stale, fresh, other):
        path.touch()
    for path in (stale, other):
        os.utime(path, (1, 1))
    run_operation(shared_folders.mark, {"nonce": "n1", "folders": {"home": str(tmp_path)}})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".clusterddp-mark-n1", ".clusterddp-mark-new", "data"]


def test_a_stale_mark_that_cannot_be_removed_keeps_no_other_out(tmp_path: Path) -> None:
    stale = tmp_path / ".clusterddp-mark-old"
    stale.mkdir()  # as in a sticky folder that of another user, for root too
    os.utime(stale, (1, 1))
    (tmp_path / ".clusterddp-mark-older").touch()
    os.utime(tmp_path / ".clusterddp-mark-older", (1, 1))
    assert run_operation(shared_folders.mark, {"nonce": "n1", "folders": {"home": str(tmp_path)}}) == ["home"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".clusterddp-mark-n1", ".clusterddp-mark-old"]


def test_a_clock_that_is_ahead_of_the_file_servers_makes_no_mark_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".clusterddp-mark-other").touch()
    ahead = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: ahead)
    assert run_operation(shared_folders.mark, {"nonce": "n1", "folders": {"home": str(tmp_path)}}) == ["home"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".clusterddp-mark-n1", ".clusterddp-mark-other"]
