"""Which scripts may import torch, by the words of their import statements and of the project's files they import."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.fork_server.script_imports import folders_put_first, needs_packages

if TYPE_CHECKING:
    from pathlib import Path


def needing(argv: list[str], folder: Path) -> bool:
    return needs_packages(argv, [str(folder)])


@pytest.mark.parametrize(
    ("script", "needs"),
    [
        ("import pytest", True),
        ("from model import Net", True),
        ("def late():\n    import pytest.monkeypatch as m", True),
        ("import os, json\nfrom pathlib import Path", False),
        ("import other\nprint('pytest')", False),
        ("", False),
    ],
)
def test_a_script_needs_packages_where_it_names_one_itself_or_by_a_file_of_the_project(
    script: str, needs: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "model.py").write_text("from pytest import mark as Net\n")
    (tmp_path / "other.py").write_text("import os\n")
    assert needing(["python", "-u", "train.py"], tmp_path) is needs


@pytest.mark.parametrize("argv", [["-m", "somewhere.train"], ["missing.py"]])
def test_where_that_cannot_be_told_it_does(argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert needing(["python", "-u", *argv], tmp_path)


def test_a_module_of_the_project_is_read_as_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("import os\n")
    assert not needing(["python", "-u", "-m", "pkg.train"], tmp_path)


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("sys.path.insert(0, 'src')", True),
        ("sys.path[:0] = ['src']", True),
        ("from sys import path; path.insert(0, 'src')", True),
        ("sys.path.append('src')", False),
        ("print(sys.path_hooks)", False),
    ],
)
def test_folders_that_the_code_may_put_before_installed_packages_are_known(
    line: str, changes: object, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"import sys\n{line}\n")
    (tmp_path / "src" / "net").mkdir(parents=True)
    (tmp_path / "src" / "net" / "__init__.py").touch()
    (tmp_path / "data").mkdir()
    found = [str(tmp_path), str(tmp_path / "src"), str(tmp_path / "src" / "net")]
    assert folders_put_first([str(tmp_path)]) == (found if changes else [])
