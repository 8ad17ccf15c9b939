"""Data that a sync meets while a run lives, another sync is at work, or large files are read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import HostsError, SyncError
from clusterddp.remote.shared.wire.chunks import CHUNK
from clusterddp.remote.shared.workdir.sync_records import SyncRequest
from clusterddp.remote.transfer import chunk_files
from clusterddp.remote.workdir.folder_lock import FolderLock
from clusterddp.remote.workdir.sync_operations import inspect_workdir
from tests.unit.sync_help import CKPT, FakeHost, content, project_tree, synced, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("path", [CKPT, f".clusterddp-live/parts/{'a' * 64}-20"])
def test_the_lock_is_renewed_while_a_large_file_or_what_a_broken_sync_left_is_read(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    synced(root, host)
    write(host.workdir, **{path: ""})
    (host.workdir / path).parent.chmod(0o700)
    os.truncate(host.workdir / path, 20 * CHUNK)
    write(root, **{"train.py": "print(2)"})
    tree, renewed = project_tree(root), []
    monkeypatch.setattr(FolderLock, "check", lambda _: renewed.append(path))
    order = SyncRequest(workdir=str(host.workdir), digest=tree.digest, data=tree.data_digest)
    inspect_workdir(str(host.state), order)
    assert len(renewed) > 20


def test_data_does_not_change_under_a_live_run(root: Path, host: FakeHost) -> None:
    synced(root, host)
    write(root, **{CKPT: "better"})
    with host.live_run("r1", host.workdir), pytest.raises((SyncError, HostsError, Exception), match="run r1 is live"):
        synced(root, host)
    assert content(host.workdir)[CKPT] == "laptop"
    write(root, **{CKPT: "laptop"})
    with host.live_run("r1", host.workdir):
        write(host.workdir, **{CKPT: "epoch 1"})
        synced(root, host)  # the same code, and data of the host's own: allowed
    assert content(host.workdir)[CKPT] == "epoch 1"


def test_two_syncs_at_once_are_asked_again(root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    synced(root, host)
    write(root, **{CKPT: "better"})
    upload, once = host.upload, [True]

    def meddling(op: str, *rest: Any, **options: Any) -> Any:
        if op == "sync_apply" and once:
            once.clear()
            write(host.workdir, **{CKPT: "epoch 1"})
        return upload(op, *rest, **options)

    monkeypatch.setattr(host, "upload", meddling)
    with pytest.raises(SyncError, match="changed in the project and on gpu01"):
        synced(root, host)
    assert content(host.workdir)[CKPT] == "epoch 1"


def test_a_copy_of_an_equal_file_that_was_cut_off_takes_no_room_from_the_next_sync(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced(root, host)
    parts = host.workdir / ".clusterddp-live/parts"
    parts.mkdir(mode=0o700)
    (parts / "copy").write_text("x" * 900)
    write(root, **{"a.bin": "x" * 1000, "b.bin": "x" * 1000})
    free = lambda _: 2500 - sum(path.stat().st_size for path in parts.iterdir())  # noqa: E731
    monkeypatch.setattr(chunk_files, "free_bytes", free)
    assert (synced(root, host).hosts[0].sent, parts.exists()) == (2, False)
