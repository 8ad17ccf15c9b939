"""Bad input through the real command line, without any host: one clear line and the contract's code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import CLUSTERDDP, User
from tests.integration.complaint import by_plain, one_line, shell

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    made = User(tmp_path_factory.mktemp("user"))
    made.write("train.py", "print('hi')\n")
    return made


@pytest.mark.parametrize(
    ("script", "holds"),
    [
        ("nope.py", ("script nope.py is not there", "paths are relative to")),
        ("", ("script '' is not there",)),
        (".", ("script . is a folder",)),
        ("../x.py", ("script ../x.py is not there",)),
        ("/etc/hostname", ("outside the project", "start from the folder it is in")),
    ],
)
def test_a_script_that_cannot_be_run_is_named(user: User, script: str, holds: tuple[str, ...]) -> None:
    one_line(user.run("run", script), 125, *holds)


def test_a_file_given_as_a_module_is_refused(user: User) -> None:
    one_line(user.run("run", "-m", "train.py"), 125, "-m 'train.py' is no module's name", "leave -m out")


def test_a_script_that_cannot_be_read_is_named(user: User) -> None:
    user.write("locked.py", "").chmod(0)
    done = by_plain(user, "run", "locked.py")
    (user.folder / "locked.py").unlink()
    one_line(done, 125, "script locked.py cannot be read", "chmod u+r")


def test_a_project_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.folder.chmod(0o555)
    done = by_plain(user, "up", "a,b")
    user.folder.chmod(0o755)
    one_line(done, 2, f"{user.folder}/.clusterddp: cannot be written (Permission denied)", "make the folder writable")


@pytest.mark.parametrize(("text", "mode"), [("{", 0o600), ("[]", 0o600), ('{"id": 7}', 0o600), ("{}", 0)])
def test_a_broken_record_of_the_project_is_named(tmp_path: Path, text: str, mode: int) -> None:
    user = User(tmp_path)
    user.write("train.py", "")
    user.write(".clusterddp/project.json", text).chmod(mode)
    one_line(by_plain(user, "run", "train.py"), 125, "project.json: ", "remove it or mend it")


@pytest.mark.parametrize("command", ["up", "run"])
def test_an_inventory_that_cannot_be_read_is_named(user: User, command: str) -> None:
    user.write("locked.yaml", "all: {hosts: {a: }}\n").chmod(0)
    argv = ("up", "locked.yaml") if command == "up" else ("run", "-i", "locked.yaml", "train.py")
    one_line(by_plain(user, *argv), 2 if command == "up" else 125, "locked.yaml: cannot be read: Permission denied")
    (user.folder / "locked.yaml").unlink()


def test_the_home_folder_and_the_root_are_no_projects(user: User) -> None:
    (user.home / "x.py").touch()
    one_line(user.run("run", "x.py", cwd=str(user.home)), 125, "the home folder", "go to the project's own folder")
    one_line(user.run("run", "etc/hostname", cwd="/"), 125, "a folder above the home folder")
    assert not (user.home / ".clusterddp" / "project.json").exists()


@pytest.mark.parametrize(
    ("name", "text", "holds"),
    [
        ("e.yaml", "", ("e.yaml:1: is empty",)),
        ("g.yaml", "gpu:\n  hosts:\n", ("g.yaml:1: holds no host",)),
        ("r.yaml", "all:\n  hosts:\n    gpu[3:1]:\n", ("r.yaml:3:gpu[3:1]: range '[3:1]' is empty",)),
        ("m.yaml", "all:\n  hosts:\n    -gpu01:\n", ("m.yaml:3:-gpu01: host name '-gpu01' begins with -",)),
    ],
)
def test_a_wrong_inventory_is_one_line_with_its_place(user: User, name: str, text: str, holds: tuple[str, ...]) -> None:
    user.write(name, text)
    one_line(user.run("up", name), 2, *holds)
    one_line(user.run("run", "-i", name, "train.py"), 125, *holds)


def test_a_script_in_place_of_an_inventory_is_for_up_which_runs_what_is_executable(user: User) -> None:
    user.write("x.yaml", "#!/bin/sh\n")
    one_line(user.run("run", "-i", "x.yaml", "train.py"), 125, "x.yaml: is an executable inventory", "up x.yaml")
    one_line(user.run("up", "x.yaml"), 2, "x.yaml: is a script that is not executable", "chmod u+x")


def test_a_host_list_that_fails_leaves_an_inventory_to_edit_that_is_never_overwritten(tmp_path: Path) -> None:
    user = User(tmp_path)
    done = user.run("up", "no-such-host.invalid", "-e", "clusterddp_nproc=2")
    assert (done.code, len(done.notes)) == (1, 3), done.err
    assert done.notes[1] == (
        "the hosts stand in .clusterddp/inventory.yaml: edit it where that helps, then"
        " `clusterddp up .clusterddp/inventory.yaml`"
    )
    assert done.notes[2].startswith("no-such-host.invalid: cannot resolve no-such-host.invalid")
    file = user.folder / ".clusterddp" / "inventory.yaml"
    there = file.read_text()
    file.write_text(there.replace("clusterddp_nproc: 2", "clusterddp_nproc: 4\n    ansible_password: hunter2"))
    edited = file.read_text()
    again = user.run("up", "other-host.invalid")
    assert again.code == 2
    assert "-     no-such-host.invalid: {}" in again.notes
    assert "+     other-host.invalid: {}" in again.notes
    assert "-     ansible_password: ********" in again.notes
    assert again.notes[-1] == (
        ".clusterddp/inventory.yaml has been edited and is not overwritten; `clusterddp up .clusterddp/inventory.yaml`"
        " takes it as it is; to take the list, move it away first"
    )
    assert file.read_text() == edited


def test_a_host_list_that_fails_leaves_the_remembered_one(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.run("up", "no-such-host.invalid")
    file = user.folder / ".clusterddp" / "inventory.yaml"
    remembered = json.loads((user.folder / ".clusterddp" / "project.json").read_text())
    remembered["inventory"] = remembered.pop("tried")
    (user.folder / ".clusterddp" / "project.json").write_text(json.dumps(remembered))
    earlier = file.read_text()
    done = user.run("up", "other-host.invalid")
    assert done.notes[0] == "cluster: 1 host from .clusterddp/inventory.new.yaml"
    assert file.read_text() == earlier
    assert "other-host" in file.with_name("inventory.new.yaml").read_text()


@pytest.mark.parametrize(
    ("line", "out", "said"),
    [
        ("hosts | true; echo ${PIPESTATUS[0]}", "141\n", []),
        ("hosts >&-; echo $?", "0\n", []),
        ("hosts 2>&- >/dev/null; echo $?", "0\n", []),
        ("hosts >/dev/full; echo $?", "1\n", ["clusterddp: cannot write or read: No space left on device"]),
    ],
)
def test_streams_that_are_gone_or_full_end_it_quietly(user: User, line: str, out: str, said: list[str]) -> None:
    assert shell(user, f"{CLUSTERDDP} {line}") == (out, said)


def test_a_current_folder_that_is_gone_is_said(user: User) -> None:
    _, said = shell(user, f"mkdir gone && cd gone && rmdir ../gone && {CLUSTERDDP} hosts")
    assert said == ["clusterddp: the current folder is gone; cd to the project's folder"]
