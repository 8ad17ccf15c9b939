"""Large files: only chunks that lie nowhere on the host travel, and a sync that was cut goes on where it was."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterddp.errors import HelperError
from clusterddp.remote.shared.wire.chunks import CHUNK, ZEROS, Chunk, content_of, digest_of
from clusterddp.remote.shared.wire.partial_files import Parts
from tests.unit.sync_help import FakeHost, content, push, tree_of, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTS = ".clusterddp-live/parts"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write(folder, **{"train.py": "print(1)"})
    return folder


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def sent(root: Path, host: FakeHost) -> int:
    """Sync; the bytes that went over."""
    before = host.sent_bytes
    push(root, host)
    assert same(root, host)
    assert not (host.workdir / PARTS).exists()
    return host.sent_bytes - before


def same(root: Path, host: FakeHost) -> bool:
    names = [path.relative_to(root) for path in root.rglob("*") if path.is_file() and ".clusterddp" not in path.parts]
    return all((host.workdir / name).read_bytes() == (root / name).read_bytes() for name in names)


class Broken(Exception):
    """The connection ends here."""


def break_after(host: FakeHost, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next upload's data end after so many bytes."""
    upload = host.upload

    def cut(op: str, args: Any, chunks: Any, **options: Any) -> Any:
        def pieces() -> Iterator[bytes]:
            left = size
            for chunk in chunks:
                for start in range(0, len(chunk), 60_000):
                    piece = chunk[start : start + min(60_000, left)]
                    yield piece
                    left -= len(piece)
                    if not left:
                        raise Broken

        return upload(op, args, pieces() if op == "sync_apply" else chunks, **options)

    monkeypatch.setattr(host, "upload", cut)


def test_of_a_changed_large_file_only_the_changed_chunk_travels(root: Path, host: FakeHost) -> None:
    data = bytearray(os.urandom(3 * CHUNK + 5))
    (root / "weights.bin").write_bytes(data)
    assert sent(root, host) > 3 * CHUNK
    data[CHUNK + 7] ^= 1
    (root / "weights.bin").write_bytes(data)
    assert CHUNK < sent(root, host) < CHUNK + 100_000
    (root / "weights.bin").write_bytes(data + b"more")
    assert sent(root, host) < 100_000
    (root / "weights.bin").write_bytes(data[:CHUNK])
    assert sent(root, host) < 100_000


def test_equal_contents_travel_once_and_a_copy_or_a_new_name_not_at_all(root: Path, host: FakeHost) -> None:
    data = os.urandom(CHUNK // 2)
    for name in ("a.bin", "b.bin", "c/d.bin"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(data)
    (root / "c/d.bin").chmod(0o755)
    assert sent(root, host) < CHUNK
    assert os.access(host.workdir / "c/d.bin", os.X_OK)
    assert not os.access(host.workdir / "a.bin", os.X_OK)
    (root / "a.bin").rename(root / "renamed.bin")
    (root / "zeros.bin").write_bytes(bytes(4 * CHUNK))
    assert sent(root, host) < 10_000 + CHUNK
    inodes = {(host.workdir / name).stat().st_ino for name in ("renamed.bin", "b.bin", "c/d.bin")}
    assert len(inodes) == 3


def test_a_sparse_file_is_sparse_on_the_host_too(root: Path, host: FakeHost) -> None:
    with (root / "memory.map").open("wb") as file:
        file.write(b"head")
        file.truncate(5 * CHUNK)
        file.seek(4 * CHUNK)
        file.write(b"tail")
    assert sent(root, host) < 4 * CHUNK  # of the three chunks of zeros one, packed
    there = (host.workdir / "memory.map").stat()
    assert (there.st_size, there.st_blocks * 512 <= 2 * CHUNK) == (5 * CHUNK, True)


def test_holes_need_no_room_and_stay_holes_in_whatever_order_chunks_come(
    tmp_path: Path,
) -> None:
    data = {digest_of(chunk): chunk for chunk in (b"head" + bytes(CHUNK - 4), bytes(CHUNK), b"tail")}
    head, zeros, tail = data
    assert zeros == ZEROS
    chunks = [Chunk(one, len(data[one])) for one in (head, *[zeros] * 5, tail)]
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        parts = Parts(folder)
        content = content_of([chunk.digest for chunk in chunks])
        parts.want({content: chunks}, {content: 1})
        assert parts.lacking_bytes == CHUNK + 4
        for digest in (tail, zeros, head):
            parts.put(digest, data[digest])
    finally:
        os.close(folder)
    (file,) = tmp_path.iterdir()
    assert file.read_bytes() == b"".join(data[chunk.digest] for chunk in chunks)
    assert file.stat().st_blocks * 512 <= 2 * CHUNK


@pytest.mark.parametrize("at", [1, 50_000, CHUNK + 5000, 2 * CHUNK + 5000])
def test_a_sync_that_was_cut_goes_on_from_there(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    (root / "weights.bin").write_bytes(os.urandom(3 * CHUNK))
    write(root, **{"pkg/a.py": "a", "pkg/b.py": "b"})
    with monkeypatch.context() as patch:
        break_after(host, at, patch)
        with pytest.raises((Broken, HelperError)):
            push(root, host)
    assert not (host.workdir / "weights.bin").exists()
    assert sent(root, host) < 3 * CHUNK + 10_000 - at // CHUNK * CHUNK


def test_a_damaged_part_is_mended_and_an_old_one_removed(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "weights.bin").write_bytes(data := os.urandom(2 * CHUNK))
    with monkeypatch.context() as patch:
        break_after(host, CHUNK + 200_000, patch)
        with pytest.raises((Broken, HelperError)):
            push(root, host)
    part = host.workdir / PARTS / content_of([digest_of(data[:CHUNK]), digest_of(data[CHUNK:])])
    part.write_bytes(b"?" + part.read_bytes()[1:] + b"and more" * CHUNK)
    old, young = (host.workdir / PARTS / (letter * 64) for letter in "ab")
    for path in (old, young):
        path.write_text("left")
    os.utime(old, (time.time() - 8 * 86400,) * 2)
    push(root, host)
    assert same(root, host)
    assert [path.name for path in (host.workdir / PARTS).iterdir()] == [young.name]


def test_a_part_that_is_a_link_is_not_written_through(root: Path, host: FakeHost, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    push(root, host)
    write(root, **{"train.py": "print(2)"})
    (host.workdir / PARTS).mkdir()
    (host.workdir / PARTS / digest_of(b"print(2)")).symlink_to(outside)
    with pytest.raises((HelperError, OSError)):
        push(root, host)
    assert outside.read_text() == "mine"


def test_no_room_is_told_before_anything_is_sent(root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "weights.bin").write_bytes(os.urandom(CHUNK))
    full = os.statvfs_result((4096, 4096, 1000, 10, 10, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(HelperError, match=r"it needs 4\.2 MB in .*, where 0\.0 MB are free; make room there"):
        push(root, host)
    assert content(host.workdir) == {}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_is_cut_at_any_byte_the_next_sync_is_whole(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    place = tmp_path_factory.mktemp("cut")
    root, host = place / "project", FakeHost(place)
    sizes = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([0, 1, 5000, 70_000]), min_size=1)
    for _ in range(2):
        for name, size in data.draw(sizes).items():
            write(root, **{f"{name}/{name}.txt": name * size})
        (root / f"{data.draw(st.sampled_from('abc'))}.bin").write_bytes(os.urandom(100_000))
        with pytest.MonkeyPatch.context() as patch:
            break_after(host, data.draw(st.integers(1, 400_000)), patch)
            with contextlib.suppress(Broken, HelperError):
                push(root, host)
    result = push(root, host)
    assert content(host.workdir) == {
        name: text for name, text in content(root).items() if not name.startswith(".clusterddp/")
    }
    assert result.hosts[0].digest == tree_of(root).digest
