"""A carried path is put into its folder alone, whatever another user has put there."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.wire.chunks import Chunk, digest_of
from clusterddp.remote.system.bootstrap import Refused
from clusterddp.remote.transfer.replicated_paths import read_content, receive_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OTHER = 40002
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user's links are made")
TEXTS = (b"weights", b"state")


class Sent:
    """Bundles of all that another host has."""

    def bundles(self, *_: object) -> Iterator[list[tuple[str, bytes]]]:
        yield [(digest_of(text), text) for text in TEXTS]


def take_checkpoint(tmp_path: Path) -> None:
    """Carry ``ckpt/last -> epoch_7`` from one workdir into another."""
    epoch = tmp_path / "there/ckpt/epoch_7"
    if not epoch.exists():
        epoch.mkdir(parents=True)
        for name, text in zip(("weights.bin", "state.bin"), TEXTS, strict=True):
            (epoch / name).write_bytes(text)
        (epoch / "state.bin").chmod(0o700)
        (epoch.parent / "last").symlink_to("epoch_7")
    carried = read_content(str(tmp_path / "there"), "ckpt/last")
    assert carried
    assert set(carried.chunks()) == {Chunk(digest_of(text), len(text)) for text in TEXTS}
    receive_path(str(tmp_path / "here"), "ckpt/last", carried, Sent(), lambda: None, 0o027)  # type: ignore[arg-type]


def test_it_takes_its_place_with_the_user_s_modes_and_what_stood_there_keeps_a_number(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    take_checkpoint(tmp_path)
    take_checkpoint(tmp_path)
    place = tmp_path / "here/ckpt"
    assert sorted(path.name for path in place.iterdir()) == ["epoch_7", "epoch_7.~1~", "last", "last.~1~"]
    assert str((place / "last").readlink()) == "epoch_7"
    modes = {
        path.name: stat.S_IMODE(path.lstat().st_mode) for path in (place / "epoch_7", *(place / "epoch_7").iterdir())
    }
    assert modes == {"epoch_7": 0o750, "weights.bin": 0o640, "state.bin": 0o750}
    assert (place / "last/weights.bin").read_bytes() == b"weights"


def test_a_link_whose_target_lies_behind_another_link_is_followed(tmp_path: Path) -> None:
    epoch = tmp_path / "scratch/epoch_7"
    epoch.mkdir(parents=True)
    for name, text in zip(("weights.bin", "state.bin"), TEXTS, strict=True):
        (epoch / name).write_bytes(text)
    folder = tmp_path / "there/ckpt"
    folder.mkdir(parents=True)
    (folder / "runs").symlink_to(tmp_path / "scratch")
    (folder / "last").symlink_to("runs/epoch_7")
    carried = read_content(str(tmp_path / "there"), "ckpt/last")
    assert carried
    receive_path(str(tmp_path / "here"), "ckpt/last", carried, Sent(), lambda: None)  # type: ignore[arg-type]
    assert (tmp_path / "here/ckpt/last/weights.bin").read_bytes() == b"weights"


@needs_root
def test_it_goes_and_comes_by_no_link_of_another_user(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "last").write_text("secret")
    (tmp_path / "here").mkdir()
    (tmp_path / "here/ckpt").symlink_to(private)
    os.lchown(tmp_path / "here/ckpt", OTHER, OTHER)
    with pytest.raises(Refused, match="here/ckpt is another user's link"):
        take_checkpoint(tmp_path)
    with pytest.raises(OSError, match="is another user's link"):
        read_content(str(tmp_path / "here"), "ckpt/last")
    (tmp_path / "here/ckpt").unlink()
    (tmp_path / "here/ckpt").mkdir()
    (tmp_path / "here/ckpt/last").symlink_to(private / "last")
    os.lchown(tmp_path / "here/ckpt/last", OTHER, OTHER)
    with pytest.raises(OSError, match="is another user's link"):
        read_content(str(tmp_path / "here"), "ckpt/last")
    assert [path.name for path in private.iterdir()] == ["last"]


def test_a_link_in_the_place_of_its_working_folder_is_not_followed(tmp_path: Path) -> None:
    private = tmp_path / "private"
    (private / "new").mkdir(parents=True)
    (private / "new/key").write_text("secret")
    (private / "new/key").chmod(0o600)
    (tmp_path / "here/ckpt").mkdir(parents=True)
    (tmp_path / "here/ckpt/.clusterddp-carry").symlink_to(private)
    with pytest.raises(FileExistsError):
        take_checkpoint(tmp_path)
    assert stat.S_IMODE((private / "new/key").stat().st_mode) == 0o600
    assert [path.name for path in private.iterdir()] == ["new"]
