"""Outside git a .gitignore means what it means to git: the real git is asked about the same files."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from clusterddp.errors import SyncError
from clusterddp.sync.project_files.gitignore import _is_pattern, _spec, rule_for, walk
from tests.unit.sync_help import tree_of, write
from tests.unit.user_rights import another_user, needs_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = (
    "a.log", "keep.log", "data/x.bin", "data/keep/y.bin", "build/out.o", "src/build/in.py", "src/a.log",
    "deep/er/data/z", "sp ace.txt", "trail ", "#hash", "!bang", "w[x].txt", "wx.txt", "foo/bar/baz.txt",
    "foo/qux/bar/baz.txt", "A.LOG",
)  # fmt: skip


def by_git(folder: Path) -> set[str]:
    git = ["git", "-c", "core.excludesFile=/dev/null", "-c", "core.ignoreCase=false"]
    subprocess.run([*git, "init", "-q"], cwd=folder, check=True)
    listed = subprocess.check_output([*git, "ls-files", "-z", "--others", "--exclude-standard"], cwd=folder)
    return set(filter(None, listed.decode().split("\0")))


@pytest.mark.parametrize("name", [*FILES, "w*.txt", "??.txt", "a\\.log", "lr[0.1]/a [b]"])
def test_the_rule_for_a_path_matches_it_alone(tmp_path: Path, name: str) -> None:
    write(tmp_path, **dict.fromkeys([*FILES, name], "x"), **{".gitignore": rule_for(name)})
    left = {*FILES, ".gitignore"} - {name}
    assert by_git(tmp_path) == {path.decode() for path in walk(bytes(tmp_path), {b".git"})} == left


@pytest.mark.parametrize(
    "rules",
    [
        {".gitignore": "*.log\n!keep.log\n"},
        {".gitignore": "data/\n!data/keep/\n"},
        {".gitignore": "data/*\n!data/keep/\n"},
        {".gitignore": "/build\n/data"},
        {".gitignore": "build\nsrc/*.log\n"},
        {".gitignore": "foo/**/baz.txt\n"},
        {".gitignore": "**/data\n"},
        {".gitignore": "foo/*/baz.txt\n"},
        {".gitignore": "\\#hash\n\\!bang\n# comment\n\n"},
        {".gitignore": "trail\\ \nsp ace.txt   \n"},
        {".gitignore": "w[[]x].txt\nw[!y].txt\n"},
        {".gitignore": "!\n[\n*.bin\n"},
        {".gitignore": "*.log\n", "src/.gitignore": "!a.log\n/build\n"},
        {".gitignore": "/*\n!/foo\n/foo/*\n!/foo/bar\n", "foo/.gitignore": "bar/baz.txt\n"},
        {".gitignore": "*\n!.gitignore\n"},
        {"deep/.gitignore": "data\n"},
        {".gitignore": "*a*a*.p*\n*e*p*.l*g\n*.*.*\n"},
        {".gitignore": "**/foo/**/bar/**/*z*t\nd*p/**/d*t*/*z*\n*r*/b*r*/\n"},
    ],
    ids=str,
)
def test_a_gitignore_means_what_it_means_to_git(tmp_path: Path, rules: dict[str, str]) -> None:
    write(tmp_path, **dict.fromkeys(FILES, "x"), **rules)
    found = {os.fsdecode(name) for name in walk(bytes(tmp_path), ())}
    assert found == by_git(tmp_path)


@settings(deadline=None)
@given(
    line=st.lists(st.sampled_from(["*", "*", "**", "/", "/**/", "**/", "?", "[ab]", "a", "b"]), max_size=12)
    .map("".join)
    .filter(_is_pattern),
    path=st.lists(st.sampled_from(["a", "b", "ab", "/"]), min_size=1, max_size=14).map("".join),
)
def test_stars_match_what_they_do_in_pathspec(line: str, path: str) -> None:
    path = re.sub("/+", "/", path)
    assert _spec([line]).check_file(path).include == GitIgnoreSpec.from_lines([line]).check_file(path).include


@pytest.mark.parametrize(
    ("rules", "path"),
    [("*a" * 100 + "*b", "a" * 250), ("*?" * 100 + "b", "a" * 250), ("**/a/" * 30 + "b", "a/" * 60 + "a")],
)
def test_a_gitignore_of_many_stars_has_an_end(tmp_path: Path, rules: str, path: str) -> None:
    write(tmp_path, **{".gitignore": rules, path: ""})
    assert os.fsencode(path) in walk(bytes(tmp_path), ())


def test_a_project_outside_git_leaves_out_what_is_ignored(tmp_path: Path) -> None:
    root = tmp_path / "project"
    write(root, **{"train.py": "1", "out/model.pt": "2", ".gitignore": "out/\n\xe9*\n"})
    (root / os.fsdecode(b"caf\xe9")).write_text("x")
    assert [entry.path for entry in tree_of(root).entries] == [".gitignore", "caf\udce9", "train.py"]


def test_of_an_environment_only_the_file_that_tells_it_comes_unless_it_ignores_itself(tmp_path: Path) -> None:
    write(tmp_path, **{"a/pyvenv.cfg": "", "a/lib/x": "", "b/pyvenv.cfg": "", "b/lib/x": "", "b/.gitignore": "*\n"})
    assert list(walk(bytes(tmp_path), ())) == [b"a/pyvenv.cfg"]


def test_a_gitignore_that_is_a_folder_says_nothing_and_one_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, **{"sub/.gitignore/x": "1"})
    assert list(walk(bytes(tmp_path), ())) == [b"sub/.gitignore/x"]
    (tmp_path / ".gitignore").symlink_to(".gitignore")
    with pytest.raises(SyncError, match=r"^\.gitignore: cannot be read"):
        list(walk(bytes(tmp_path), ()))


@needs_root
def test_a_folder_that_may_not_be_searched_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, **{"sub/.gitignore": "", "sub/x": ""})
    (tmp_path / "sub").chmod(0o744)
    with (
        another_user(tmp_path),
        pytest.raises(SyncError, match=r"^sub/\.gitignore: cannot be read \(Permission denied\)"),
    ):
        list(walk(bytes(tmp_path), ()))


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _large(path: Path) -> None:
    path.write_bytes(b"#" * (1 << 20) + b"\n")


@pytest.mark.parametrize("make", [_pipe, _device, _large])
def test_a_gitignore_that_is_no_file_or_too_large_is_an_error(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / ".gitignore")
    with pytest.raises(SyncError, match=r"^\.gitignore: cannot be read \(no file, or too large\)"):
        list(walk(bytes(tmp_path), ()))


def test_a_gitignore_behind_a_link_is_read(tmp_path: Path) -> None:
    write(tmp_path, **{"rules": "*.log\n", "a.log": ""})
    (tmp_path / ".gitignore").symlink_to("rules")
    assert set(walk(bytes(tmp_path), ())) == {b".gitignore", b"rules"}


def test_git_that_does_not_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterddp.sync.project_files.git._TIMEOUT", 1.0)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    _pipe(tmp_path / ".gitignore")
    with pytest.raises(SyncError, match=r"git has not ended within 1 s; look there for a pipe"):
        tree_of(tmp_path)
