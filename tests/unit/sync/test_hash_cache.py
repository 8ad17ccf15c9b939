"""The hash cache: a damaged file costs the hashes, never the sync."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from clusterddp.remote.shared.workdir.manifest import stats_of
from clusterddp.sync import hash_cache
from clusterddp.sync.chosen_files import read_sources
from clusterddp.sync.hash_cache import FILE_NAME, HashCache
from tests.unit.json_values import VALUES
from tests.unit.sync_help import project_at, write

if TYPE_CHECKING:
    from pathlib import Path


def hashed(folder: Path) -> tuple[int, int]:
    """Size of a file by the cache, and how many files were read for it."""
    path = folder / "train.py"
    path.write_text("print(1)")
    cache = HashCache(folder)
    size, digests = cache.get(bytes(folder), b"train.py", path.stat())
    assert list(map(len, digests)) == [64]
    return size, cache.read


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"train.py": 1}', b'{"train.py": [[1], 5]}', b"[" * 99_999])
def test_a_damaged_file_is_as_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(text)
    assert hashed(tmp_path) == (8, 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(value=VALUES)
def test_whatever_json_it_holds_files_are_hashed(tmp_path: Path, value: object) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps({"train.py": value, "b": [value, "x"]}))
    assert hashed(tmp_path)[0] == 8


def test_a_file_with_the_same_stats_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("print(1)")
    (tmp_path / FILE_NAME).write_text(json.dumps({"train.py": [stats_of(path.stat()), ["f" * 64]]}))
    cache = HashCache(tmp_path)
    assert (cache.get(bytes(tmp_path), b"train.py", path.stat()), cache.read) == ((8, ["f" * 64]), 0)


def test_a_first_push_remembers_the_hashes_wherever_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "set"
    write(data, **{"a.bin": "a", "b/c.bin": "c"})
    for path in data.rglob("*.bin"):
        os.utime(path, (1, 1))
    project = project_at(tmp_path / "toy")
    assert not project.folder.exists()
    later = time.time_ns() + 10**10  # the files' ctime is not young any more
    monkeypatch.setattr(time, "time_ns", lambda: later)
    first = read_sources(project, [str(data)], "data", lambda _: None)
    monkeypatch.setattr(hash_cache, "hash_file", lambda path: pytest.fail(f"{path} is read again"))
    assert read_sources(project, [str(data)], "data", lambda _: None) == first
