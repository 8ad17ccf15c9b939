"""Options of ours behind SCRIPT: refused where they plainly choose hosts, else the script's."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from clusterddp.cli.after_script import RunCommand, refuse_misplaced
from clusterddp.cli.commands.run import command
from clusterddp.errors import UsageError
from clusterddp.inventory import load
from clusterddp.project import find
from tests.unit.cli_help import folder, said

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder"]  # fixture

HOSTS = "all: {hosts: {'gpu[00:03]': }}\n"


@pytest.fixture(autouse=True)
def inventories(folder: Path) -> None:
    (folder / "i.yaml").write_text(HOSTS)
    (folder / "config.yaml").write_text("model: {layers: 3}\n")


def check(line: str) -> None:
    """Parse a line by the command itself, then judge what stands behind its script."""
    assert isinstance(command, RunCommand)
    with command.make_context("run", shlex.split(line)) as context:
        refuse_misplaced(context.params["script"], context.params["args"], load("i.yaml"))


@pytest.mark.parametrize(
    ("line", "right", "meant"),
    [
        ("train.py -i i.yaml --lr 3", "-i i.yaml train.py --lr 3", "-- train.py -i i.yaml --lr 3"),
        ("train.py -ii.yaml", "-ii.yaml train.py", "-- train.py -ii.yaml"),
        ("train.py --inventory=i.yaml", "--inventory=i.yaml train.py", "-- train.py --inventory=i.yaml"),
        ("--nnodes 2 t.py --limit gpu01", "--nnodes 2 --limit gpu01 t.py", "--nnodes 2 -- t.py --limit gpu01"),
        ("train.py x --limit 'gpu0*'", "--limit 'gpu0*' train.py x", "-- train.py x --limit 'gpu0*'"),
        ("-m pkg.train -i i.yaml", "-m -i i.yaml pkg.train", "-m -- pkg.train -i i.yaml"),
    ],
)  # fmt: skip
def test_what_chooses_hosts_behind_the_script_is_refused_with_both_lines(line: str, right: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(line)
    assert caught.value.remedy == (
        f"write `clusterddp run {right}`; or, if the script is to have it, `clusterddp run {meant}`"
    )
    check(meant)
    check(right)


@pytest.mark.parametrize(
    "args",
    [
        "-i config.yaml", "-i none.yaml", "-i .", "-i", "--limit 100", "--limit", "--limit=", "--inventory train.py",
        "--input i.yaml", "i.yaml", "--lr 3 --name x",
    ],
)  # fmt: skip
def test_all_else_behind_the_script_is_the_scripts(args: str) -> None:
    check(f"train.py {args}")


def test_it_is_refused_by_the_command_before_any_host_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = said(capsys, "run", "train.py", "-i", "i.yaml")
    assert code == 125
    assert lines[-1].startswith("-i i.yaml stands after train.py, so it would go to the script")


@pytest.mark.parametrize(
    ("words", "program", "instead"),
    [
        (["python", "train.py", "--lr", "3"], "Python", "write train.py --lr 3"),
        (["python3", "-u", "-m", "pkg.train", "a b"], "Python", "write -m pkg.train 'a b'"),
        (["/usr/bin/python3.11", "train.py"], "Python", "write train.py"),
        (["torchrun", "--nproc_per_node", "2", "train.py", "x"], "torchrun", "write train.py x"),
        (["torchrun", "--standalone"], "torchrun", "write the script in its place"),
    ],
)
def test_a_program_in_the_scripts_place_is_told_what_to_write(
    capsys: pytest.CaptureFixture[str], words: list[str], program: str, instead: str
) -> None:
    code, lines = said(capsys, "run", *words)
    assert (code, lines[-1]) == (
        125,
        f"{words[0]} is no script: clusterddp starts {program} itself, on every host; {instead}",
    )


def test_hosts_that_up_could_not_make_ready_are_named_before_this_machine_trains_alone(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    find().remember_try(folder / "i.yaml")
    (folder / "train.py").write_text("(")
    code, lines = said(capsys, "run", "train.py")
    assert (code, lines[1]) == (1, "this machine only!")
    assert "`clusterddp up i.yaml`" in lines[2]
    find().remember(folder / "i.yaml", None)
    assert find().tried is None
