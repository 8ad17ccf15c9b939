"""Options of ours behind SCRIPT: refused where they are plainly not the script's, else its own with a notice."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from clusterddp.cli.commands.run import command
from clusterddp.cli.misplaced_options import refuse_misplaced, refuse_unread
from clusterddp.cli.run_command import RunCommand
from clusterddp.errors import UsageError
from clusterddp.inventory import load
from clusterddp.project.project import find
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
    ("line", "named"), [("run -C p4", "p4"), ("run -Cp4", "p4"), ("-C p4 run", "p4"), ("-C . run -C p4", "./p4")]
)
def test_a_folder_is_named_once_in_both_lines(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, named: str
) -> None:
    (folder / "p4").mkdir()
    (folder / "p4" / "train.py").touch()
    (folder / "p4" / "i.yaml").write_text(HOSTS)
    monkeypatch.chdir(folder)  # what -C changes is changed back
    _, lines = said(capsys, *line.split(), "--nnodes", "2", "train.py", "-i", "i.yaml")
    first = f"clusterddp -C {named} run --nnodes 2"
    assert lines[-1].endswith(
        f"write `{first} -i i.yaml train.py`; or, if the script is to have it, `{first} -- train.py -i i.yaml`"
    )


def judge(line: str) -> None:
    """Parse a line by the command itself, then judge the options behind its script by what the project reads."""
    with command.make_context("run", shlex.split(line)) as context:
        given = context.params
        refuse_unread(given["script"], given["args"], find(), module=given["module"])


@pytest.mark.parametrize(
    ("line", "own", "right", "meant"),
    [
        ("train.py --dry-run", "--dry-run", "--dry-run train.py", "-- train.py --dry-run"),
        ("train.py --lr 3 --dry_run", "--dry_run", "--dry_run train.py --lr 3", "-- train.py --lr 3 --dry_run"),
        ("-m pkg.train --detach", "--detach", "-m --detach pkg.train", "-m -- pkg.train --detach"),
        ("train.py --nnodes=2 a", "--nnodes=2", "--nnodes=2 train.py a", "-- train.py --nnodes=2 a"),
        (
            "train.py --nnodes 2 --lr 3 --detach",
            "--nnodes 2 --detach",
            "--nnodes 2 --detach train.py --lr 3",
            "-- train.py --nnodes 2 --lr 3 --detach",
        ),
    ],
)
def test_an_option_of_ours_that_the_project_does_not_read_is_refused_with_both_lines(
    folder: Path, line: str, own: str, right: str, meant: str
) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "train.py").write_text("import argparse\n")
    with pytest.raises(UsageError) as caught:
        judge(line)
    script = "pkg.train" if "-m" in line else "train.py"
    assert caught.value.message == (
        f"{own} stands after {script}, so it would go to the script, and no file of the project reads it"
    )
    assert caught.value.remedy == (
        f"write `clusterddp run {right}`; or, if the script is to have it, `clusterddp run {meant}`"
    )
    judge(meant)
    judge(right)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.py", "parser.add_argument('--dry-run', action='store_true')\n"),
        ("lib/options.py", 'parser.add_argument("--dry_run")\n'),
        ("lib/options.py", 'getattr(args, "dry_run")\n'),
        ("conf/base.yaml", "train:\n  dry_run: false\n"),
        ("conf/base.yml", "command: [python, train.py, --dry-run]\n"),
        ("train.py", "@dataclass\nclass Options:\n    dry_run: bool = False\n"),
        ("train.py", "import hydra\n"),
        ("train.py", "import os, fire\n"),
        ("train.py", "def main():\n    from tyro import cli\n"),
        ("train.py", "from jsonargparse import ArgumentParser\n"),
        ("train.py", "from transformers import HfArgumentParser\n"),
        ("train.py", "from lightning.pytorch.cli import LightningCLI\n"),
    ],
)
def test_an_option_that_the_project_may_read_is_the_scripts(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    judge("train.py --dry-run")


@pytest.mark.parametrize(
    "text", ["# import hydra\n", "fired = 1\n", "'--dry-runs'\n", "dry_run_of = {'x': 1}\n", "import firetools\n"]
)
def test_what_only_looks_like_a_mention_lets_no_option_through(folder: Path, text: str) -> None:
    (folder / "other.py").write_text(text)
    (folder / ".gitignore").write_text("out/\n")
    (folder / "out").mkdir()
    (folder / "out" / "copy.py").write_text("'--dry-run'\n")  # ignored: no file of the project
    with pytest.raises(UsageError):
        judge("train.py --dry-run")


@pytest.mark.parametrize(
    "line",
    ["train.py --dry", "train.py --dry-run=1", "train.py x -- --dry-run", "train.py --nnodes", "train.py --help",
     "-m torch.thing --detach", "elsewhere.py --detach", "train.py --name --lr=3"],
)  # fmt: skip
def test_what_is_no_whole_option_or_no_script_of_the_project_is_not_refused(line: str) -> None:
    judge(line)


def test_no_file_is_read_for_options_that_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[bytes] = []

    def walk(root: bytes, _never: object) -> list[bytes]:
        walked.append(root)
        return []

    monkeypatch.setattr("clusterddp.launch.options.script_options.walk", walk)
    judge("train.py --lr 3 --steps=5 x --batch-size 7")
    assert walked == []
    with pytest.raises(UsageError):
        judge("train.py --detach")
    assert len(walked) == 1


def test_what_cannot_be_read_leaves_the_option_to_the_script(folder: Path) -> None:
    (folder / "broken.py").symlink_to("nothing")
    judge("train.py --dry-run")


def test_after_two_dashes_nothing_is_said(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "train.py").write_text("print(')\n'--dry-run'\n")
    assert [line for line in said(capsys, "run", "--", "train.py", "--dry-run")[1] if "stands after" in line] == []
    assert [line for line in said(capsys, "run", "train.py", "--dry-run")[1] if "stands after" in line] == [
        "--dry-run stands after the script, so it goes to the script; options of clusterddp stand before it"
    ]


def test_it_is_refused_with_125_and_nothing_else_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = said(capsys, "run", "train.py", "--dry-run")
    assert code == 125
    assert [line for line in lines if "--dry-run" in line] == lines[-1:]
    assert lines[-1].startswith("--dry-run stands after train.py, so it would go to the script, and no file")


@pytest.mark.parametrize(
    ("words", "program", "instead"),
    [
        (["python", "train.py", "--lr", "3"], "Python", "write train.py --lr 3"),
        (["python3", "-u", "-m", "pkg.train", "a b"], "Python", "write -m pkg.train 'a b'"),
        (["/usr/bin/python3.11", "train.py"], "Python", "write train.py"),
        (["torchrun", "--nproc_per_node", "2", "train.py", "x"], "torchrun", "write train.py x"),
        (["torchrun", "--standalone"], "torchrun", "write the script in its place"),
        (["deepspeed", "--num_gpus", "8", "train.py", "--zero", "2"], "torchrun", "write train.py --zero 2"),
        (["python", "-m", "torch.distributed.run", "--nnodes=2", "train.py"], "Python", "write train.py"),
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
    find().remember_attempt(folder / "i.yaml")
    (folder / "train.py").write_text("(")
    code, lines = said(capsys, "run", "train.py")
    assert (code, lines[1]) == (1, "this machine only!")
    assert "`clusterddp up i.yaml`" in lines[2]
    find().remember(folder / "i.yaml", None)
    assert find().attempted_inventory is None


@pytest.mark.parametrize(
    ("words", "named", "instead"),
    [
        (["accelerate", "launch", "--num_processes", "8", "train.py", "x"], "accelerate launch", "train.py x"),
        (["-m", "torch.distributed.run", "--nproc_per_node", "2", "train.py"], "-m torch.distributed.run", "train.py"),
        (["-m", "torch.distributed.launch", "train.py"], "-m torch.distributed.launch", "--pass-local-rank train.py"),
        (["-m", "torch.distributed.launch", "--use-env", "train.py"], "-m torch.distributed.launch", "train.py"),
        (["-m", "accelerate.commands.launch", "-m", "pkg.train"], "-m accelerate.commands.launch", "-m pkg.train"),
    ],
)
def test_another_launcher_in_the_scripts_place_is_told_what_to_write(
    capsys: pytest.CaptureFixture[str], words: list[str], named: str, instead: str
) -> None:
    code, lines = said(capsys, "run", *words)
    assert code == 125
    assert lines[-1] == (f"{named} is no script: clusterddp starts torchrun itself, on every host; write {instead}")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["tran.py"], "did you mean train.py?"),
        (["train"], "did you mean train.py?"),
        (["train.py --steps 1"], "write it without the quotes: train.py --steps 1"),
    ],
)
def test_a_script_that_is_not_there_is_told_what_may_be_meant(
    capsys: pytest.CaptureFixture[str], words: list[str], remedy: str
) -> None:
    code, lines = said(capsys, "run", *words)
    assert (code, lines[-1]) == (125, f"script {words[0]} is not there; {remedy}")


def test_no_script_of_another_name_is_suggested(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert said(capsys, "run", "evaluate.py")[1][-1] == (
        f"script evaluate.py is not there; paths are relative to {folder}"
    )
