"""Changes below a workdir, where somebody puts something else in the place of a folder or file."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.sync.inside import Inside
from clusterddp.remote.system.bootstrap import Refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# What a sync does to files, by their paths.
CHANGES: dict[str, Callable[[Inside], object]] = {
    "unlink": lambda inside: inside.unlink("deep/file"),
    "executable": lambda inside: inside.set_executable("deep/file", executable=True),
    "mkdir": lambda inside: inside.mkdir("deep/new"),
    "rmdir": lambda inside: inside.rmdir("deep/empty"),
    "keep": lambda inside: inside.keep_as("deep/file", "deep/kept"),
    "rename": lambda inside: inside.rename("deep/file", "deep/other"),
    "bytecode": lambda inside: inside.remove_bytecode("deep/file.py"),
    "exists": lambda inside: inside.exists("deep/file"),
}


def laid_out(folder: Path) -> Path:
    (folder / "empty").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    for name in ("file", "__pycache__/file.cpython-311.pyc"):
        (folder / name).write_text("mine")
        (folder / name).chmod(0o600)
    return folder


def seen(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path.relative_to(folder)), path.lstat().st_mode) for path in folder.rglob("*"))


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_done_in_a_folder_and_refused_by_way_of_a_link(tmp_path: Path, change: str) -> None:
    root, private = tmp_path / "workdir", laid_out(tmp_path / "private")
    laid_out(root / "deep")
    before = seen(private)
    CHANGES[change](Inside(os.fsencode(root)))
    (root / "deep").rename(tmp_path / "away")
    (root / "deep").symlink_to(private)
    with pytest.raises(Refused, match="workdir/deep was replaced during the sync") as refused:
        CHANGES[change](Inside(os.fsencode(root)))
    assert refused.value.remedy == "sync again"
    assert seen(private) == before


def test_a_folder_that_is_open_already_is_the_one_that_is_changed(tmp_path: Path) -> None:
    root, private = tmp_path / "workdir", laid_out(tmp_path / "private")
    laid_out(root / "deep")
    before = seen(private)
    inside = Inside(os.fsencode(root))
    assert inside.exists("deep/file")
    (root / "deep").rename(tmp_path / "away")
    (root / "deep").symlink_to(private)
    inside.unlink("deep/file")
    assert not (tmp_path / "away" / "file").exists()
    assert seen(private) == before


@pytest.mark.parametrize("make", [lambda path, other: path.symlink_to(other), lambda path, _other: os.mkfifo(path)])
def test_the_mode_of_no_other_file_is_changed(tmp_path: Path, make: Callable[[Path, Path], object]) -> None:
    (tmp_path / "key").write_text("secret")
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "workdir").mkdir()
    make(tmp_path / "workdir" / "tool.sh", tmp_path / "key")
    with pytest.raises(Refused, match=r"tool\.sh was replaced"):
        Inside(os.fsencode(tmp_path / "workdir")).set_executable("tool.sh", executable=True)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize(("mode", "executable", "wanted"), [(0o640, True, 0o750), (0o755, False, 0o644)])
def test_a_file_is_made_executable_for_its_readers_or_for_nobody(
    tmp_path: Path,
    mode: int,
    executable: bool,  # noqa: FBT001 - a case's value
    wanted: int,
) -> None:
    (tmp_path / "tool").touch()
    (tmp_path / "tool").chmod(mode)
    Inside(os.fsencode(tmp_path)).set_executable("tool", executable=executable)
    assert stat.S_IMODE((tmp_path / "tool").stat().st_mode) == wanted
