"""A script held against its project, before any host is reached."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import ScriptError, SyncError, UsageError
from clusterddp.launch.options import RunOptions
from clusterddp.launch.script import check_script, check_synced
from clusterddp.project.project import find
from clusterddp.sync.project_files.project_tree import scan
from tests.unit.sync_help import project_at, write

if TYPE_CHECKING:
    from pathlib import Path


def check(folder: Path, source: str | bytes, name: str = "train.py", **options: object) -> None:
    (folder / ".git").mkdir(exist_ok=True)
    (folder / name).write_bytes(source if isinstance(source, bytes) else source.encode())
    check_script(RunOptions(script=name, **options), find(folder))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os\nprint('a'\n", "train.py:2: SyntaxError: '(' was never closed: print('a'; nothing was started"),
        ("def f():\nreturn 1\n", "train.py:2: IndentationError: expected an indented block"),
        ("x = 1\n\nreturn x\n", "train.py:3: SyntaxError: 'return' outside function"),
        (b"x = '\xff'\n", "train.py:1: SyntaxError: (unicode error) 'utf-8' codec"),
        ("print 'a'\n", "train.py:1: SyntaxError: Missing parentheses"),
    ],
)
def test_a_syntax_error_is_found_with_its_place(tmp_path: Path, source: str | bytes, said: str) -> None:
    with pytest.raises(ScriptError) as caught:
        check(tmp_path, source)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("source", ["", "PK\3\4\0", "import torch\n", '"\\d"\n', "x = '" + "a" * 100_000 + "'\n"])
def test_a_script_that_compiles_passes_without_a_word(
    tmp_path: Path, source: str, recwarn: pytest.WarningsRecorder
) -> None:
    check(tmp_path, source)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("source", "since"),
    [
        ("try:\n    pass\nexcept* ValueError:\n    pass\n", (3, 11)),
        ("type Pair = tuple[int, int]\n", (3, 12)),
        ("def first[T](items: list[T]) -> T:\n    return items[0]\n", (3, 12)),
        ("a = {'b': 1}\nprint(f'{a['b']}')\n", (3, 12)),
        ("try:\n    pass\nexcept ValueError, KeyError:\n    pass\n", (3, 14)),
        ("name = 1\nx = t'{name}'\n", (3, 14)),
    ],
)
@pytest.mark.parametrize("ours", [(3, 10), (3, 11), (3, 12), (3, 14)])
def test_syntax_that_is_newer_than_our_python_is_left_to_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, since: tuple[int, int], ours: tuple[int, int]
) -> None:
    try:
        compile(source, "", "exec")
    except SyntaxError:
        monkeypatch.setattr(sys, "version_info", (*ours, 0))
        if since > ours:
            check(tmp_path, source)
        else:
            with pytest.raises(ScriptError):
                check(tmp_path, source)
    else:
        check(tmp_path, source)


@pytest.mark.parametrize(
    ("name", "source", "holds"),
    [
        ("train.sh", "export A=1\npython src/train.py --lr 3\n", "take src/train.py for SCRIPT"),
        ("start", "#!/usr/bin/env bash\ntrue\n", "take the Python script it calls for SCRIPT"),
    ],
)
def test_a_shell_script_is_told_what_to_write(tmp_path: Path, name: str, source: str, holds: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(tmp_path, source, name)
    assert str(caught.value).startswith(f"script {name} is a shell script; torchrun starts Python programs; {holds}")


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        (
            "a b.ipynb",
            '{"cells": []}',
            "notebook; torchrun starts Python programs; `jupyter nbconvert --to script 'a b.",
        ),
        (
            "conf.yaml",
            "lr: 3\n",
            ".yaml file; torchrun starts Python programs; write the program before it: train.py con",
        ),
        ("conf.json", "{}", ".json file; "),
        ("notes.txt", "", ".txt file; "),
    ],
)
def test_what_is_no_program_is_not_started_as_one(tmp_path: Path, name: str, source: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(tmp_path, source, name)
    assert str(caught.value).startswith(f"script {name} is a {said}")


def test_what_lies_on_the_hosts_already_is_not_looked_at_here(tmp_path: Path) -> None:
    check(tmp_path, "(", no_sync=True)
    check(tmp_path, "", "train.sh", no_sync=True)


@pytest.mark.parametrize("typed", ["train.py", "./train.py", "../exps/train.py", "{cwd}/train.py"])
def test_a_script_is_named_relative_to_the_workers_cwd(tmp_path: Path, typed: str) -> None:
    project = replace(project_at(tmp_path), subfolder="exps")
    cwd = project.root / "exps"
    cwd.mkdir()
    (cwd / "train.py").touch()
    options = RunOptions(script=typed.format(cwd=cwd))
    assert check_script(options, project) == "train.py"
    assert check_script(replace(options, no_sync=True), project) == options.script
    (cwd / "train.py").unlink()
    assert check_script(replace(options, again="abcdefghij"), project) == "train.py", "the kept code has it"


def test_a_script_may_be_named_by_a_link_to_its_projects_folder(tmp_path: Path) -> None:
    (tmp_path / "p" / ".git").mkdir(parents=True)
    (tmp_path / "p" / "train.py").write_text("")
    (tmp_path / "link").symlink_to("p")
    options = RunOptions(script=str(tmp_path / "link" / "train.py"))
    assert check_script(options, find(tmp_path / "p")) == "train.py"


def test_a_script_below_a_link_to_a_folder_of_the_project_is_synced_with_it(tmp_path: Path) -> None:
    write(tmp_path / "p", **{"src/train.py": "", "data/x": ""})
    project = project_at(tmp_path / "p")
    (project.root / "scripts").symlink_to("src")
    check_synced(RunOptions(script="scripts/train.py"), project, scan(project))
    (project.root / "scripts").unlink()
    write(tmp_path / "elsewhere", **{"train.py": ""})
    (project.root / "scripts").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        SyncError, match=r"script scripts/train.py would not be synced: .*; name another file of"
    ) as told:
        check_synced(RunOptions(script="scripts/train.py"), project, scan(project))
    assert "git" not in str(told.value)


@pytest.mark.parametrize("in_git", [True, False])
def test_a_script_that_is_not_synced_is_told_what_mends_that(tmp_path: Path, in_git: bool) -> None:  # noqa: FBT001
    write(tmp_path / "p", **{".env.py": "", "out.py": "", ".gitignore": "out.py\n", "__pycache__/a.py": ""})
    (tmp_path / "away.py").touch()
    project = project_at(tmp_path / "p")
    (project.root / "link.py").symlink_to(tmp_path / "away.py")
    if in_git:
        subprocess.run(["git", "init", "-q", project.root], check=True)
    another = "name another file of the project"
    expected = {
        ".env.py": f"they look like keys; {another}",
        "link.py": f"links that lead out of the project; {another}",
        **({"out.py": "git ignores it; take it out of .gitignore"} if in_git else {}),
        **({} if in_git else {"__pycache__/a.py": f"nothing in that folder ever is; {another}"}),
    }
    for name, said in expected.items():
        with pytest.raises(SyncError) as caught:
            check_synced(RunOptions(script=name), project, scan(project))
        assert str(caught.value) == f"script {name} would not be synced: {said}"


def test_the_script_of_a_repeated_run_may_not_be_outside_its_project(tmp_path: Path) -> None:
    options = RunOptions(script=str(tmp_path / "elsewhere/train.py"), again="abcdefghij")
    with pytest.raises(UsageError, match="is outside the project"):
        check_script(options, project_at(tmp_path / "toy"))
