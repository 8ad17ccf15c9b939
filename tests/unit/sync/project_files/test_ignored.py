"""Data that git ignores is named, with its size and what to do; what a job never misses is not."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from clusterddp.sync.project_files import ignored
from tests.unit.sync_help import tree_of, write

if TYPE_CHECKING:
    from pathlib import Path

DATA = "x" * 1_500_000
REMEDY = "; bring what the job needs of it with `clusterddp push PATH`, or take it out of .gitignore"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    write(folder, **{"train.py": "", ".gitignore": "*.bin\n/data/\n/sets\n.cache\nbuild\n__pycache__\nvenv\n*.log\n"})
    return folder


def test_a_folder_a_file_and_several_of_one_folder_are_named_the_largest_first(root: Path) -> None:
    write(root, **{"data/a/1.pt": DATA, "data/2.pt": DATA, "w.bin": DATA, "m/a.bin": DATA, "m/b.bin": DATA * 2})
    write(root, **{"deep/er/one.bin": DATA})
    said = "2 files in m/ (4.5 MB), data/ (3 MB), deep/er/one.bin (1.5 MB), w.bin (1.5 MB)"
    assert tree_of(root).notices == (f"not synced, ignored by git: {said}{REMEDY}",)


def test_what_is_small_or_made_again_is_passed_over(root: Path) -> None:
    write(root, **{"data/few.csv": "1,2", "out.log": "x"})
    write(root, **{f"{name}/x.bin": DATA for name in (".cache", "build", "__pycache__", "pkg/__pycache__", "venv")})
    write(root, **{"venv/pyvenv.cfg": "", ".hidden.bin": DATA})
    assert tree_of(root).notices == ()


def test_a_link_to_data_is_named_as_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (root / "sets").symlink_to(tmp_path / "elsewhere")
    (root / "gone.bin").symlink_to(tmp_path / "nowhere")
    assert tree_of(root).notices == (f"not synced, ignored by git: sets (a link){REMEDY}",)


def test_of_very_many_files_only_some_are_looked_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored, "MAX_FILES", 3)
    write(root, **{f"data/{number}.pt": DATA for number in range(5)})
    assert tree_of(root).notices == (f"not synced, ignored by git: data/ (more than 4.5 MB){REMEDY}",)


def test_outside_git_nothing_is_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    write(folder, **{".gitignore": "*.bin\n", "w.bin": DATA})
    assert tree_of(folder).notices == ()
