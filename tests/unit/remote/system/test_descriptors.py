"""A file that is open kept under another name: the same file where that can be, and only what is open."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.system.descriptors import link_or_copy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "code"
    path.write_bytes(b"ours")
    path.chmod(0o600)
    return path


@pytest.fixture
def handle(code: Path) -> Iterator[int]:
    with code.open("rb") as file:
        yield file.fileno()


def test_it_is_the_same_file_and_stays_when_the_other_name_goes(tmp_path: Path, code: Path, handle: int) -> None:
    kept = tmp_path / "kept"
    link_or_copy(handle, str(kept))
    assert os.path.samestat(kept.stat(), code.stat())
    code.unlink()
    assert kept.read_bytes() == b"ours"


def test_it_is_the_open_file_whatever_lies_at_its_path_by_now(tmp_path: Path, code: Path, handle: int) -> None:
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "theirs").replace(code)
    link_or_copy(handle, str(tmp_path / "kept"))
    assert (tmp_path / "kept").read_bytes() == b"ours"
    assert code.read_bytes() == b"theirs"


def test_a_file_without_any_name_is_copied(tmp_path: Path, code: Path, handle: int) -> None:
    code.unlink()
    link_or_copy(handle, str(tmp_path / "kept"))
    assert (tmp_path / "kept").read_bytes() == b"ours"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_one_that_others_may_read_or_write_is_copied_for_us_alone(
    tmp_path: Path, code: Path, handle: int, mode: int
) -> None:
    code.chmod(mode)
    link_or_copy(handle, str(tmp_path / "kept"))
    assert not os.path.samestat((tmp_path / "kept").stat(), code.stat())
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o600


def test_where_the_file_system_gives_it_no_other_name_it_is_copied(
    tmp_path: Path, handle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", no_links)
    link_or_copy(handle, str(tmp_path / "kept"))
    assert (tmp_path / "kept").read_bytes() == b"ours"


def test_what_stands_in_the_way_is_replaced_whole(tmp_path: Path, handle: int) -> None:
    (tmp_path / "elsewhere").write_bytes(b"another's")
    (tmp_path / "kept").symlink_to(tmp_path / "elsewhere")
    link_or_copy(handle, str(tmp_path / "kept"))
    assert (tmp_path / "kept").read_bytes() == b"ours"
    assert not (tmp_path / "kept").is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"another's"
