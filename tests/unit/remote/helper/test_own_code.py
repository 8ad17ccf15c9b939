"""What a host makes of the code for its own Python."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest

from clusterddp.remote.helper.own_code import compile_code
from clusterddp.remote.shared.code.code_archive import archive, is_whole
from clusterddp.remote.system import code_finder, indexed_code

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    """A small zipapp as it was sent."""
    folder = tmp_path / "state" / "helper"
    folder.mkdir(mode=0o700, parents=True)
    finder = Path(indexed_code.__file__).read_bytes()
    path = folder / f"{'0' * 64}.pyz"
    path.write_bytes(archive({"ours/__init__.py": b"", "ours/system/indexed_code.py": finder, "ours/a.py": b"A = 1"}))
    return path


def made(sent: Path) -> list[Path]:
    return [path for path in sent.parent.iterdir() if path != sent]


def index_of(path: Path) -> tuple[int, int, str]:
    with path.open("rb") as file:
        return code_finder._own_index(file.fileno())


def test_it_is_found_by_its_last_bytes_and_made_once(sent: Path) -> None:
    compile_code(str(sent))
    (own,) = made(sent)
    code = own.read_bytes()
    offset, size, digest = index_of(own)
    assert is_whole(code)
    assert code_finder._sha256()(code[offset : offset + size]).hexdigest() == digest
    time = own.stat().st_mtime_ns
    compile_code(str(sent))
    assert own.stat().st_mtime_ns == time


@pytest.mark.parametrize("size", [0, 1, 79, 80, 200])
def test_what_is_damaged_is_no_index(sent: Path, size: int) -> None:
    compile_code(str(sent))
    (own,) = made(sent)
    own.write_bytes(own.read_bytes()[:size])
    with pytest.raises(OSError, match=r"^$|Invalid"):
        index_of(own)
    compile_code(str(sent))
    assert is_whole(own.read_bytes())


def test_two_do_not_make_it_at_once(sent: Path) -> None:
    handle = os.open(sent.parent, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    compile_code(str(sent))
    os.close(handle)
    assert made(sent) == []


def test_nothing_is_left_where_all_was_removed_meanwhile(sent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.statvfs

    def remove(folder: str) -> os.statvfs_result:
        sent.unlink()
        return read(folder)

    monkeypatch.setattr(os, "statvfs", remove)
    compile_code(str(sent))
    assert not sent.parent.parent.exists()
