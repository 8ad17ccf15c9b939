"""A repository that others packed: no program that its configuration names is started, no file outside it is taken."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import SyncError
from tests.unit.sync_help import tree_of, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True)


@pytest.mark.parametrize("lies_in", ["config", "an include", "a worktree"])
def test_a_repository_from_an_archive_starts_none_of_its_programs(tmp_path: Path, lies_in: str) -> None:
    root, mark = tmp_path / "repository", tmp_path / "ran"
    write(root, **{"a.py": "1", ".gitattributes": "*.py filter=evil\n"})
    git(root, "init")
    git(root, "add", ".")
    git(root, "commit", "-m", "x")
    program = f"touch {mark}; cat"
    if lies_in == "a worktree":
        git(root, "worktree", "add", str(tmp_path / "tree"))
    keys = ("core.fsmonitor", "filter.evil.clean")
    if lies_in == "an include":
        included = root / ".git" / "more"
        for key in keys:
            git(root, "config", "--file", str(included), key, program)
        git(root, "config", "include.path", str(included))
    else:
        for key in keys:
            git(root, "config", key, program)
    scanned = tmp_path / "tree" if lies_in == "a worktree" else root
    write(scanned, **{"a.py": "2"})
    assert tree_of(scanned).git["dirty"] is True  # type: ignore[index]
    assert not mark.exists()
    git(scanned, "status")
    assert mark.exists()


def _a_name_that_options_cannot_hold(root: Path, program: str) -> Path:
    git(root, "config", "filter.a=b.clean", program)
    (root / ".git/info/attributes").write_text("* filter=a=b\n")
    return root


def _configuration_in_another_folder(root: Path, program: str) -> Path:
    shutil.copytree(root / ".git", root / "other")
    git(root, "config", "--file", "other/config", "filter.evil.clean", program)
    (root / "other/info/attributes").write_text("* filter=evil\n")
    (root / ".git/commondir").write_text("../other\n")
    return root


def _configuration_of_no_repository(root: Path, program: str) -> Path:
    git(root, "config", "filter.evil.clean", program)
    (root / ".git/info/attributes").write_text("* filter=evil\n")
    write(root, **{"sub/.git/config": ""})
    return root / "sub"


def _extension_of_git_lfs(root: Path, program: str) -> Path:
    git(root, "config", "--global", "filter.lfs.clean", program)  # stands for git-lfs, which starts its extensions
    git(root, "config", "any.key", "text\nlfs.extension.evil.clean=x")
    (root / ".git/info/attributes").write_text("* filter=lfs\n")
    return root


@pytest.mark.parametrize(
    "plant",
    [
        _a_name_that_options_cannot_hold,
        _configuration_in_another_folder,
        _configuration_of_no_repository,
        _extension_of_git_lfs,
    ],
)
def test_no_way_of_naming_a_filter_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path, str], Path]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    root, mark = tmp_path / "p", tmp_path / "ran"
    write(root, **{"a.py": "1", "sub/b.py": "1"})
    git(root, "init")
    git(root, "add", ".")
    git(root, "commit", "-m", "x")
    planted = plant(root, f"touch {mark}; cat")
    for file in ("a.py", "sub/b.py"):
        os.utime(root / file, (1e9, 1e9))
    tree_of(planted)
    assert not mark.exists()
    git(planted, "status")
    assert mark.exists()


def test_a_submodule_from_an_archive_starts_none_of_its_programs(tmp_path: Path) -> None:
    root, mark = tmp_path / "p", tmp_path / "ran"
    write(root, **{"a.py": "1", "sub/.gitattributes": "*.py filter=evil\n", "sub/b.py": "1"})
    for folder in (root / "sub", root):
        git(folder, "init")
        git(folder, "add", ".")
        git(folder, "commit", "-m", "x")
    git(root / "sub", "config", "filter.evil.clean", f"touch {mark}; cat")
    assert tree_of(root).git["dirty"] is False  # type: ignore[index]
    write(root, **{"sub/b.py": "2"})
    assert tree_of(root).git["dirty"] is True  # type: ignore[index]
    assert not mark.exists()
    git(root, "status")
    assert mark.exists()


def test_what_a_partial_clone_from_an_archive_lacks_is_not_fetched_by_its_program(tmp_path: Path) -> None:
    root, mark = tmp_path / "p", tmp_path / "ran"
    write(root, **{"a.py": "1"})
    git(root, "init")
    git(root, "add", ".")
    git(root, "commit", "-m", "x")
    listed = subprocess.run(["git", "rev-parse", "HEAD^{tree}"], cwd=root, check=True, capture_output=True, text=True)
    tree = listed.stdout.strip()
    (root / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    config = {
        "core.repositoryFormatVersion": "1",
        "core.sshCommand": f"touch {mark}; false",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": "ssh://x/y",
    }
    for key, value in config.items():
        git(root, "config", key, value)
    assert tree_of(root).git["dirty"] is True  # type: ignore[index]
    assert not mark.exists()
    subprocess.run(["git", "status"], cwd=root, check=False, capture_output=True)
    assert mark.exists()


def test_filters_of_the_user_still_tell_what_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path / "repository"
    write(root, **{"a.txt": "one", ".gitattributes": "*.txt filter=upper\n"})
    git(root, "init")
    git(root, "config", "--global", "filter.upper.clean", "tr a-z A-Z")
    git(root, "add", ".")
    git(root, "commit", "-m", "x")
    write(root, **{"a.txt": "ONE"})
    assert tree_of(root).git["dirty"] is False  # type: ignore[index]


def test_a_file_outside_the_repository_that_its_index_names_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "p"
    write(tmp_path, **{"secret": "x", "p/aaaaaaaaa": "1"})
    git(root, "init")
    git(root, "add", ".")
    index = root / ".git" / "index"
    data = index.read_bytes()[:-20].replace(b"aaaaaaaaa", b"../secret")
    index.write_bytes(data + hashlib.sha1(data, usedforsecurity=False).digest())
    with pytest.raises(SyncError, match=r"^'\.\./secret': git lists it, though it lies outside the project"):
        tree_of(root)
