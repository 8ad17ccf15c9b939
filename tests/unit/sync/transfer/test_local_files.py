"""The folder here that files of hosts come to."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import SyncError
from clusterddp.remote.shared.wire.chunks import Chunk, digest_of
from clusterddp.remote.shared.workdir.manifest import Entry
from clusterddp.sync.transfer.local_files import LocalFolder

if TYPE_CHECKING:
    from pathlib import Path


def test_two_pulls_into_one_folder_never_mix_up_their_parts(tmp_path: Path) -> None:
    x = digest_of(b"x")
    with LocalFolder(tmp_path) as first:
        with pytest.raises(SyncError, match=f"another pull is writing to {tmp_path}"):
            LocalFolder(tmp_path).__enter__()
        first.want({x: [Chunk(x, 1)]}, {x: 1})
        first.put(x, b"x")
        assert first.move_into_place(Entry("a", "file", False, 1, x), last=True, overwrite=False)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with LocalFolder(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_on_a_file_system_without_hard_links_a_file_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    x = digest_of(b"x")

    def link(*_: Any, **_options: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    with LocalFolder(tmp_path) as folder:
        folder.want({x: [Chunk(x, 1)]}, {x: 1})
        folder.put(x, b"x")
        assert folder.move_into_place(Entry("a", "file", False, 1, x), last=True, overwrite=False)
    assert (tmp_path / "a").read_bytes() == b"x"


def test_a_pull_interrupted_as_it_places_a_file_leaves_no_way_into_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, mine = digest_of(b"x"), tmp_path / "mine"
    real = os.link

    def interrupted(*names: Any, **options: Any) -> None:
        real(*names, **options)
        raise KeyboardInterrupt  # where Ctrl-C comes during a call of the kernel

    with LocalFolder(tmp_path) as first, monkeypatch.context() as patch:
        patch.setattr(os, "link", interrupted)
        first.want({x: [Chunk(x, 1)]}, {x: 1})
        first.put(x, b"x")
        with pytest.raises(KeyboardInterrupt):
            first.move_into_place(Entry("mine", "file", False, 1, x), last=True, overwrite=False)
    mine.write_text("the user goes on")
    with LocalFolder(tmp_path) as second:
        assert second.want({x: [Chunk(x, 1)]}, {x: 1}) == {x: 1}
        second.put(x, b"x")
        assert second.move_into_place(Entry("new", "file", False, 1, x), last=True, overwrite=True)
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert files == {"mine": "the user goes on", "new": "x"}


def test_a_copy_that_a_killed_pull_was_making_goes_with_the_next(tmp_path: Path) -> None:
    parts = tmp_path / ".clusterddp-parts"
    parts.mkdir(0o700)
    (parts / "copy").write_text("half")
    with LocalFolder(tmp_path) as folder:
        folder.want({}, {})
    assert list(tmp_path.iterdir()) == []
