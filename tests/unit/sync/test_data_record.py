"""The record of a project's data on a host: after a sync that broke off, of data that was code meanwhile, damaged."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import HelperError, SyncError
from clusterddp.remote.shared.wire.chunk_stream import bundles_of
from clusterddp.remote.shared.wire.chunks import digest_of
from clusterddp.remote.shared.workdir import manifest
from clusterddp.remote.shared.workdir.manifest import Entry
from clusterddp.remote.workdir.data import HOST, DataPlan
from clusterddp.remote.workdir.update import WorkdirUpdate
from tests.unit.sync.test_data import git
from tests.unit.sync_help import CKPT, Cut, FakeHost, content, cut_after, synced, write

if TYPE_CHECKING:
    from pathlib import Path


def test_data_that_may_not_be_synced_is_refused(root: Path, host: FakeHost) -> None:
    synced(root, host)
    sent = manifest.encode([Entry(".clusterddp/x", "file", executable=False, size=1, content="0" * 64)])
    args = {"workdir": str(host.workdir), "digest": "", "data": digest_of(sent), "manifest": len(sent)}
    with pytest.raises(HelperError, match="may not be synced"):
        host.upload("data_state", {**args, "chunk_lists": 2}, bundles_of(sent + b"{}", compress=False))


@pytest.mark.parametrize("cuts", [1, 2])
@pytest.mark.parametrize("text", ["laptop", "better 1", "better 2", "better 3"])
def test_what_a_sync_wrote_before_it_broke_off_counts_as_a_syncs(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch, cuts: int, text: str
) -> None:
    synced(root, host)
    with monkeypatch.context() as patch:
        patch.setattr(DataPlan, "complete", cut_after(0)(DataPlan.complete))
        for number in range(1, cuts + 1):
            write(root, **{CKPT: f"better {number}", f"new {number}.csv": "1"})
            with pytest.raises(Cut):
                synced(root, host)
            (root / f"new {number}.csv").unlink()
    write(root, **{CKPT: text, "new 1.csv": "2"})
    assert synced(root, host).notices == ()
    there = content(host.workdir)
    assert (there[CKPT], there["new 1.csv"]) == (text, "2")
    write(host.workdir, **{CKPT: "epoch 1"})
    assert synced(root, host).standing == {"gpu01": (CKPT,)}


def test_what_a_run_wrote_over_data_of_a_sync_that_broke_off_is_the_hosts(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced(root, host)
    write(root, **{CKPT: "better"})
    with monkeypatch.context() as patch:
        patch.setattr(DataPlan, "complete", cut_after(0)(DataPlan.complete))
        with pytest.raises(Cut):
            synced(root, host)
    write(host.workdir, **{CKPT: "epoch 1"})
    with pytest.raises(SyncError, match="changed in the project and on gpu01"):
        synced(root, host)
    assert content(host.workdir)[CKPT] == "epoch 1"


def test_a_mode_that_a_sync_that_broke_off_did_not_set_is_set_by_the_next(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, tool="#!/bin/sh")
    synced(root, host)
    (root / "tool").chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(WorkdirUpdate, "commit", cut_after(0)(WorkdirUpdate.commit))
        with pytest.raises(Cut):
            synced(root, host)
    synced(root, host)
    assert os.access(host.workdir / "tool", os.X_OK)


def test_code_that_became_data_in_a_sync_that_broke_off_is_no_conflict(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(root.parent, "init", "-q", str(root))
    write(root, **{"params.json": "1"})
    git(root, "add", "params.json")
    synced(root, host)
    git(root, "rm", "-q", "--cached", "-f", "params.json")
    with monkeypatch.context() as patch:
        patch.setattr(DataPlan, "complete", cut_after(0)(DataPlan.complete))
        with pytest.raises(Cut):
            synced(root, host)
    write(root, **{"params.json": "2"})
    synced(root, host)
    assert content(host.workdir)["params.json"] == "2"


def test_data_that_left_the_project_and_becomes_code_is_a_syncs(root: Path, host: FakeHost) -> None:
    git(root.parent, "init", "-q", str(root))
    write(root, **{"params.json": "1"})
    synced(root, host)
    write(root, **{".gitignore": "params.json\n.gitignore\n"})
    synced(root, host)
    write(root, **{"params.json": "2"})
    git(root, "add", "-f", "params.json")
    assert synced(root, host).notices == ()
    assert content(host.workdir)["params.json"] == "2"


@pytest.mark.parametrize("as_code", ["changed", "as it was", "removed"])
def test_data_that_was_code_meanwhile_is_put_again(root: Path, host: FakeHost, as_code: str) -> None:
    git(root.parent, "init", "-q", str(root))
    write(root, **{"params.json": "1"})
    synced(root, host)
    if as_code != "as it was":
        write(root, **{"params.json": "2"})
    git(root, "add", "params.json")
    synced(root, host)
    git(root, "rm", "-q", "--cached", "-f", "params.json")
    if as_code == "removed":
        (root / "params.json").unlink()
        synced(root, host)
        assert "params.json" not in content(host.workdir)
    write(root, **{"params.json": "3"})
    assert synced(root, host).notices == ()
    assert content(host.workdir)["params.json"] == "3"


DAMAGES = [
    b"", b"[", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"format": 1}',
    b'{"format": 2, "digest": "", "left": [], "named": []}',
    b'{"format": 1, "digest": "../../etc/passwd", "left": [], "named": []}',
    b'{"format": 1, "digest": "", "left": [["../x", "file", false, 1, "a"]], "named": []}',
    b'{"format": 1, "digest": "", "left": [], "named": [], "placing": [["/x", "file", false, 1, "a"]]}',
    b'{"format": 1, "digest": "", "left": 7, "named": [7]}', b'{"format": 1, "digest": 7, "left": [], "named": []}',
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_loses_nothing(root: Path, host: FakeHost, damage: bytes) -> None:
    synced(root, host)
    write(host.workdir, **{CKPT: "epoch 1"})
    (host.workdir / ".clusterddp-live/data.json").write_bytes(damage)
    with pytest.raises(SyncError, match="changed in the project and on gpu01"):
        synced(root, host)  # nothing says that the project's was not changed
    assert content(host.workdir)[CKPT] == "epoch 1"
    synced(root, host, take=HOST)
    assert synced(root, host).standing == {"gpu01": (CKPT,)}
