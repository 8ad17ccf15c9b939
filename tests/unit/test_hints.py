"""What a message tells a user to do can be done: every command and option of ours in the source's texts is parsed.

Texts are all string literals that are no docstrings; what is filled in at run time stands there as a 1.
"""

from __future__ import annotations

import functools
import re
import shlex
from typing import TYPE_CHECKING

from clusterddp.cli.main import COMMANDS
from tests.remedies import SOURCE, string_literals
from tests.unit.cli_help import command

if TYPE_CHECKING:
    import pytest

_QUOTED = re.compile(r"`([^`]+)`")
_OPTION = re.compile(r"(?<![\w`-])--[a-z][a-z-]*[a-z]")
# Who may say a text in which an option stands alone: the longest beginning of its file's path counts. Elsewhere it
# must be an option of all of ANY.
ANY = frozenset({"run", "logs", "status", "runs", "stop", "wait", "down", "doctor", "hosts", "signal"})
SAID_BY = {
    "cli/down_tables.py": {"down"},
    "environments/removal.py": {"down"},
    "launch/": {"run"},
    "api/": {"run"},
    "api/copy.py": {"pull"},
    "launch/slurm/run_files.py": {"pull"},
    "launch/preflight.py": {"run", "up"},
    "launch/prepare.py": {"run"},
    "launch/run_secrets.py": {"run"},
    "launch/host_report.py": {"up"},
    "facts/": {"run", "up", "doctor"},
    "facts/gpu_assignment.py": {"run"},  # names --gpus where it was given
    "inventory/hostlist.py": {"up"},
    "checks/catalog/": {"run", "up", "doctor"},
    "checks/engine.py": {"run", "up", "doctor"},
    "logs/": {"logs"},
    "remote/logs/": {"logs"},
    "remote/supervisor/": {"run"},
    "remote/workdir/": {"run"},
    "remote/transfer/": {"run"},
    "remote/slurm/code_delivery.py": {"run"},
    "remote/user_files/push_operations.py": {"push"},
    "cli/main.py": {"run"},
    "runs/view/notices.py": {"run"},
    "runs/background.py": {"run"},
    "runs/view/known_messages/": {"run"},
    "runs/view/verdict_lines.py": {"run"},
    "sync/": {"run"},
    "shell/": {"exec"},
    "discover/": {"discover"},
    "cli/attach.py": {"run"},
    "cli/bundle_lines.py": {"run"},
    "doctor/bundle/": {"doctor"},
    "cli/misplaced_options.py": {"run"},
    "cli/option_checks.py": {"run"},
    "cli/host_list.py": {"up"},
    "cli/fix.py": {"doctor"},
    "provision/": {"up", "doctor"},
    "cli/run_tables.py": {"status"},
    **{f"cli/commands/{name}.py": {name} for name in COMMANDS},
    **{f"cli/actions/{name}_action.py": {name} for name in COMMANDS},
}
# Options of other programs, in texts that speak of those: a torchrun started by hand, a container, cp, click itself.
FOREIGN = {
    *(
        "--mpi",
        "--cpus-per-task",
        "--kill-on-bad-exit",
        "--reservation",
        "--nodes",
        "--ntasks",
        "--ntasks-per-node",
        "--steps",
        "--jobs",
        "--noheader",
        "--format",
    ),  # of Slurm
    "--rdzv-conf",
    "--shm-size",
    "--help",
    "--local-rank",
    "--parents",
    "--backup",
    "--hash",
    "--cached",  # of git
}


@functools.cache
def said() -> list[tuple[str, str]]:
    """Every text of ours, with its file."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name != "report_html.py":  # whose style sheet has --words
            name = path.relative_to(SOURCE).as_posix()
            found += [(name, text) for text in string_literals(path, "1") if " " in text]
    return found


def parse(line: str) -> None:
    """Parse a line as the program would; it is not run."""
    name, *words = shlex.split(line.replace("…", "1"))
    assert name in COMMANDS
    command(name).make_context(name, words).close()


def lines() -> list[str]:
    """Every whole command line in the texts."""
    quoted = {line.removeprefix("clusterddp ") for _, text in said() for line in _QUOTED.findall(text)}
    return sorted(line for line in quoted if line.partition(" ")[0] in COMMANDS and " " in line)


def test_there_are_lines_to_try() -> None:
    assert len(lines()) > 15
    assert any("--skip" in text for _, text in said())


def test_every_line_that_a_message_tells_can_be_given(subtests: pytest.Subtests) -> None:
    for line in lines():
        with subtests.test(line):
            parse(line)


def test_an_option_that_a_message_tells_is_one_of_the_command_that_says_it() -> None:
    options = {name: {opt for one in command(name).params for opt in one.opts} for name in COMMANDS}
    wrong = []
    for path, text in said():
        named = {word for word in _OPTION.findall(_QUOTED.sub("", text)) if not text.startswith(word)} - FOREIGN
        by = next((SAID_BY[start] for start in sorted(SAID_BY, key=len, reverse=True) if path.startswith(start)), ANY)
        wrong += [f"{path}: {name} of {cmd}: {text[:90]!r}" for name in named for cmd in by if name not in options[cmd]]
    assert "\n".join(wrong) == ""
