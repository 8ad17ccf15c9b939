"""The folder here that files of hosts come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
