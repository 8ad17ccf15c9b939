"""Which paths are folders above others, whatever the paths, and at which cost."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.wire.chunks import CHUNK, chunks_of, hash_file
from clusterddp.remote.shared.workdir import manifest
from clusterddp.remote.shared.workdir.manifest import BadManifest, Disk, checked_path, folders_above, paths_above_others

if TYPE_CHECKING:
    from pathlib import Path

NAMES = st.sampled_from([b"a", b"a.", b"a-", b"b", b"a0", b"\xff"])
PATHS = st.lists(st.lists(NAMES, min_size=1, max_size=4).map(b"/".join), max_size=8)


@given(PATHS)
def test_a_path_is_above_others_where_it_is_one_of_their_folders(paths: list[bytes]) -> None:
    assert paths_above_others(paths) == folders_above(paths) & set(paths)


def test_deep_paths_take_no_more_memory_than_their_text_a_few_times() -> None:
    paths = [b"%d/" % number + b"a/" * 2000 + b"b" for number in range(500)]
    size = sum(map(len, paths))
    tracemalloc.start()
    try:
        assert paths_above_others(paths) == set()
        assert tracemalloc.get_traced_memory()[1] < 3 * size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("letter", ["a", "\xe9"])
def test_a_path_is_as_long_as_the_system_takes_it_in_bytes(letter: str) -> None:
    longest = letter * (4095 // len(letter.encode()))
    assert checked_path(longest) == longest
    with pytest.raises(BadManifest, match="is longer than 4095 bytes"):
        checked_path(longest + letter)


@pytest.mark.parametrize("size", [0, CHUNK + 1, 2 * CHUNK])
def test_a_file_that_changes_before_it_is_read_has_the_size_of_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    (tmp_path / "ckpt").write_bytes(b"x" * (CHUNK - 1))

    def grown(path: bytes, _check: object) -> tuple[int, list[str]]:
        (tmp_path / "ckpt").write_bytes(b"y" * size)
        return hash_file(path)

    monkeypatch.setattr(manifest, "hash_file", grown)
    disk = Disk(bytes(tmp_path))
    entry = disk.entry("ckpt")
    assert entry
    assert entry.size == size
    digests = disk.chunk_lists().get(entry.content, [entry.content])
    assert sum(chunk.size for chunk in chunks_of(entry.content, size, digests)) == size
