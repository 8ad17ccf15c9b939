"""A project that somebody else has planted runs nothing on the operator's machine: real users, real hostile layouts.

Each layout holds an inventory whose host is this machine and whose interpreter leaves a mark, so that an inventory that
is read shows: the same layouts leave the mark once the user has named them.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import CLUSTERDDP, OURS, Done
from tests.integration.two_users import STRANGER, VICTIM, Machine, give, needs_two_users

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needs_two_users

COMMANDS = [
    ("hosts",), ("status",), ("runs",), ("run", "train.py"), ("exec", "true"), ("sync",), ("doctor",),
    ("stop", "--all"), ("down", "--yes"), ("logs",), ("logs", "--follow"), ("wait",), ("pull", "x"),
    ("push", "train.py", "there"), ("signal", "x", "USR1"), ("shell", "n"), ("forward", "n:80"),
]  # fmt: skip


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory() as base:
        yield Machine(Path(base))


def refused(done: Done, line: str, code: int = 2) -> None:
    """The one line that is said, with what is to be typed."""
    assert done.code == code, done.err
    assert len(done.err.splitlines()) == 1, done.err
    assert done.err.startswith(OURS)
    assert done.err.endswith(f"; if you trust it: `{line}`\n"), done.err


def clone(machine: Machine, *names: str) -> tuple[Path, Path]:
    """A folder of the victim's own, as after `git clone` or `tar x`, and the inventory in it."""
    folder = machine.work / "clone"
    folder.mkdir()
    (folder / "train.py").write_text("print('trained')\n")
    inventory = machine.plant(folder, VICTIM, *names)
    give(folder, VICTIM)
    return folder, inventory


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_reads_the_inventory_that_a_clone_names(machine: Machine, words: tuple[str, ...]) -> None:
    folder, _ = clone(machine, "pyproject.toml")
    done = machine.run(*words, cwd=folder)
    refused(done, "clusterddp up inv.yaml", 125 if words[0] == "run" or "--follow" in words else 2)
    assert not machine.ran


@pytest.mark.parametrize("named_in", ["project.json", "pyproject.toml"])
def test_a_clone_or_a_tarball_is_read_only_once_up_was_given_its_inventory(machine: Machine, named_in: str) -> None:
    folder, _ = clone(machine, named_in)
    with tarfile.open(machine.shared / "planted.tar", "w") as packed:
        packed.add(folder, "unpacked")
    # Python before 3.11.4 cannot be told that an archive is trusted, later ones warn of one that is not.
    subprocess.run(["tar", "-xf", machine.shared / "planted.tar", "-C", machine.work], check=True)
    unpacked = machine.work / "unpacked"
    (unpacked / ".git").mkdir()
    (unpacked / "sub").mkdir()
    give(unpacked, VICTIM)
    inside = folder / "inv.yaml" if named_in == "project.json" else Path("inv.yaml")
    refused(machine.run("status", cwd=unpacked), f"clusterddp up {inside}")
    refused(machine.run("-C", "unpacked", "status"), f"clusterddp -C unpacked up {inside}")
    refused(machine.run("status", "-C", str(unpacked)), f"clusterddp -C {unpacked} up {inside}")
    below = inside if inside.is_absolute() else unpacked / inside
    refused(machine.run("status", cwd=unpacked / "sub"), f"clusterddp up {below}")
    assert not machine.ran
    done = machine.run("up", "inv.yaml", cwd=unpacked)
    assert machine.ran, done.err


def test_a_project_above_that_is_a_strangers_is_neither_read_nor_the_users(machine: Machine) -> None:
    inventory = machine.plant(machine.shared, STRANGER, "project.json", "pyproject.toml")
    refused(machine.run("status"), f"clusterddp up {inventory}")
    assert not machine.ran
    (machine.work / "mine.yaml").write_text("all: {hosts: {m: {ansible_connection: local}}}\n")
    give(machine.work, VICTIM)
    assert machine.run("hosts", "-i", "mine.yaml").out.startswith("m\t")
    machine.run("up", "mine.yaml")
    assert (machine.work / ".clusterddp" / "project.json").is_file()
    assert {path.name for path in (machine.shared / ".clusterddp").iterdir()} == {"project.json"}
    assert not machine.ran


def test_a_strangers_git_folder_above_makes_no_project_of_what_lies_below(machine: Machine) -> None:
    machine.plant(machine.shared, STRANGER)
    (machine.shared / ".git").mkdir()
    give(machine.shared / ".git", STRANGER)
    done = machine.run("hosts", "-v")
    assert f"project {machine.work}," in done.err
    assert "none configured" in done.err


def test_a_strangers_unreadable_folder_above_is_passed_over(machine: Machine) -> None:
    machine.plant(machine.shared, STRANGER, "project.json")
    (machine.shared / ".clusterddp").chmod(0o700)
    done = machine.run("hosts")
    assert (done.code, len(done.lines)) == (0, 2), done.err


def test_a_folder_of_a_strangers_own_is_his_project_and_read_as_little(machine: Machine) -> None:
    theirs = machine.shared / "theirs"
    theirs.mkdir()
    machine.plant(theirs, STRANGER, "project.json")
    give(theirs, STRANGER)
    refused(machine.run("status", cwd=theirs), "clusterddp up inv.yaml")
    refused(machine.run("-C", str(theirs), "status"), f"clusterddp -C {theirs} up inv.yaml")
    assert not machine.ran


def test_root_too_is_asked_first(machine: Machine) -> None:
    folder, _ = clone(machine, "pyproject.toml")
    refused(machine.run("status", cwd=folder, uid=0, HOME=str(machine.marks.parent)), "clusterddp up inv.yaml")
    assert not machine.ran


def test_a_limit_that_is_named_stands_in_the_line_quoted(machine: Machine) -> None:
    folder, inventory = clone(machine, "project.json")
    inventory = inventory.rename(folder / "--playbook=x `id`.yaml")
    state = folder / ".clusterddp" / "project.json"
    state.write_text(json.dumps({"id": "0123456789", "inventory": str(inventory), "limit": "n; $(id)"}))
    refused(machine.run("status", cwd=folder), "clusterddp up './--playbook=x `id`.yaml' --limit 'n; $(id)'")


def consented(machine: Machine) -> tuple[Path, Path]:
    """A project of the victim's with an inventory in it that `up` was given: what such a project's file holds."""
    folder = machine.work / "own"
    folder.mkdir()
    inventory = folder / "inv.yaml"
    inventory.write_text("all: {hosts: {m: {ansible_connection: local}}}\n")
    give(folder, VICTIM)
    remember = (
        "from clusterddp.project.project import find; from pathlib import Path; find().remember(Path('inv.yaml'), None)"
    )
    argv = ["setpriv", f"--reuid={VICTIM}", f"--regid={VICTIM}", "--clear-groups"]
    python = str(Path(CLUSTERDDP).with_name("python"))
    env = {"HOME": str(machine.home), "PATH": os.environ["PATH"]}
    subprocess.run([*argv, python, "-c", remember], cwd=folder, env=env, check=True)
    return folder, inventory


@pytest.mark.parametrize("place", ["group_vars/all.yml", "host_vars/m.yml"])
def test_variables_that_a_stranger_puts_beside_an_inventory_are_not_read(machine: Machine, place: str) -> None:
    machine.plant(machine.shared, STRANGER)
    inventory = machine.shared / "mine.yaml"
    inventory.write_text("all: {hosts: {m: {ansible_connection: local}}}\n")
    os.chown(inventory, VICTIM, VICTIM)
    planted = machine.shared / place
    planted.parent.mkdir()
    planted.write_text(f"ansible_python_interpreter: {machine.shared}/python\n")
    give(planted.parent, STRANGER)
    for done in (machine.run("status", "-i", str(inventory)), machine.run("up", str(inventory))):
        assert (done.code, len(done.err.splitlines())) == (2, 1), done.err
        assert (
            f"{planted}: its folder belongs to uid {STRANGER}, who may not write mine.yaml: it is not read" in done.err
        )
    assert not machine.ran
    give(planted.parent, VICTIM)
    machine.run("status", "-i", str(inventory))
    assert machine.ran


@pytest.mark.parametrize("harm", ["belongs to another", "for all to write", "another's link"])
def test_a_consented_inventory_is_read_only_while_nobody_else_may_write_it(machine: Machine, harm: str) -> None:
    folder, inventory = consented(machine)
    assert machine.run("hosts", cwd=folder).out.startswith("m\t")
    if harm == "belongs to another":
        give(inventory, STRANGER)
    elif harm == "for all to write":
        inventory.chmod(0o666)
    else:
        inventory.unlink()
        inventory.symlink_to(machine.plant(machine.work, VICTIM))
        give(inventory, STRANGER)
    done = machine.run("status", cwd=folder)
    assert (done.code, len(done.err.splitlines())) == (2, 1), done.err
    assert not machine.ran
    assert machine.run("hosts", "-i", "inv.yaml", cwd=folder).code == 0


def test_a_team_shares_an_inventory_by_one_up_of_each(machine: Machine) -> None:
    team = machine.shared / "team"
    team.mkdir()
    inventory = machine.plant(team, STRANGER)
    (team / "group_vars").mkdir()
    (team / "group_vars" / "all.yml").write_text("colour: blue\n")
    give(team, STRANGER)
    (machine.work / "pyproject.toml").write_text(f'[tool.clusterddp]\ninventory = "{inventory}"\n')
    refused(machine.run("hosts"), f"clusterddp up {inventory}")
    done = machine.run("up", str(inventory))
    assert f"{OURS}{inventory} can be written by uid {STRANGER}, who can run programs as you by it" in done.err
    assert machine.ran


def test_continuous_integration_names_its_inventory_and_keeps_nothing(machine: Machine) -> None:
    folder, _ = clone(machine, "pyproject.toml")
    assert machine.run("hosts", "-i", "inv.yaml", cwd=folder, HOME="/nonexistent").out.startswith("n\t")
    found = machine.run("hosts", cwd=folder, HOME="/nonexistent", CLUSTERDDP_INVENTORY="inv.yaml")
    assert found.out.startswith("n\t")
    done = machine.run("up", "inv.yaml", cwd=folder, HOME="/nonexistent")
    said = done.err.splitlines()[-1]
    assert done.code == 2
    assert "/nonexistent/.local/state/clusterddp: your state folder cannot be written (Permission denied); " in said
    assert "set XDG_STATE_HOME to a folder of yours; `-i FILE` needs none" in said
    assert not machine.ran
