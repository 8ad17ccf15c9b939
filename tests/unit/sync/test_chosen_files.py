"""Where the files of a push go, by its words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.sync.chosen_files import Destination, destination, destination_path, read_sources, with_slash
from tests.unit.sync_help import project_at, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("dest", "folder", "prefix"),
    [
        ("~/x.py", "~", "x.py"), ("~", "~/", "ok.py"), ("~/", "~/", "ok.py"), (".", "./", "ok.py"),
        ("/x.py", "/", "x.py"), ("x.py", ".", "x.py"), ("d/x.py", "d", "x.py"), ("d/.", "d/./", "ok.py"),
    ],
)  # fmt: skip
def test_a_single_file_becomes_the_destination_or_goes_below_a_folder(dest: str, folder: str, prefix: str) -> None:
    assert destination([("ok.py", False)], with_slash(dest)) == Destination(folder=folder, prefixes=(prefix,))


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("data", "data"), ("data/", "data"), ("data/a", "a"), ("sub/up", "sub/up"), ("sub/.", "sub"),
        ("inside", "sub/v1"), ("inside/", "sub/v1"),
    ],
)  # fmt: skip
def test_a_source_that_is_a_link_out_of_the_project_keeps_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, path: str
) -> None:
    project = project_at(tmp_path.resolve() / "project")
    (tmp_path / "disk" / "imagenet").mkdir(parents=True)
    (tmp_path / "disk" / "imagenet" / "a").touch()
    (project.root / "sub" / "v1").mkdir(parents=True)
    (project.root / "inside").symlink_to("sub/v1")  # sync brings this link as one
    (project.root / "sub" / "up").symlink_to("../data")
    (project.root / "data").symlink_to(tmp_path / "disk" / "imagenet")
    monkeypatch.chdir(project.root)
    assert destination_path(project, [source], None) == path


def test_the_parts_of_a_pull_that_broke_off_stay_here_wherever_they_lie(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project")
    write(project.root, **{"data/in/f": "1", "data/in/.clusterddp-parts/0a": "half", "data/in/.clusterddp-notes": "n"})
    _, chosen = read_sources(project, [str(project.root / "data")], "data", lambda _: None)
    assert [entry.path for entry in chosen.entries] == ["in/.clusterddp-notes", "in/f"]
    assert chosen.notices == ("left out, clusterddp's own: in/.clusterddp-parts",)


def test_a_project_that_is_pushed_by_its_name_comes_without_what_we_keep_in_it(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project")
    write(project.root, **{"f": "1", ".clusterddp/hashes.json": "{}", "sub/.clusterddp/project.json": "of another"})
    _, chosen = read_sources(project, [str(project.root)], "there/", lambda _: None)
    assert [entry.path for entry in chosen.entries] == ["project/f", "project/sub/.clusterddp/project.json"]
    assert chosen.notices == ("left out, clusterddp's own: project/.clusterddp",)
