"""Remedies: what messages of the source tell a user to type, and how a test takes them from what was printed.

LEFT = remedy("launch/answering.py", "go on without: --limit {}")   # its file, and its text with {} for each field
(pattern,) = LEFT.printed(done.err)                             # fails where it was not printed
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import clusterddp
from tests.integration.cli import CLUSTERDDP, Done
from tests.lean import lean_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.integration.cli import User

SOURCE = Path(clusterddp.__file__).parent
TESTS = Path(__file__).parent
LISTED = TESTS / "data" / "remedies.tsv"
LIMIT = 120.0  # seconds for a line that is typed
_FIELD = re.compile(r"\{\}|%[sdr]")
_COMMAND = re.compile(r"`clusterddp\\ (\w+)")  # as re.escape leaves it; -C and -i come in when it is shown
_PLAIN = re.compile(r"clusterddp(?: [\w@%+=:,./-]+)*", re.ASCII)  # a shell takes each word as it stands
_QUOTED = re.compile(r"`([^`]+)`")
_NAMES = re.compile(
    r"`[^`]+`"  # a command
    r"|(?<=[\s('])--[a-z][a-z-]*[a-z]"  # an option; at the beginning of a text it is what is wrong
    r"|\b(?:clusterddp|ansible)_[a-z_]+|\bCLUSTERDDP_[A-Z_]+"  # a setting
)
_NOT_SHOWN = {"help", "metavar", "epilog", "short_help", "doc"}  # keywords of texts read before, not in trouble
_NOT_MESSAGES = {"debug", "compile", "getLogger"}  # functions whose texts no user is told


@dataclass(frozen=True, slots=True)
class Remedy:
    """A text of the source that tells what to type.

    Attributes:
        path: Its file, below the package.
        text: It, with ``{}`` for each field.
    """

    path: str
    text: str

    def found(self, said: str) -> re.Match[str]:
        """Where it was printed; the groups are what stood for its fields."""
        *parts, last = [re.escape(part) for part in _FIELD.split(self.text)]
        pattern = "".join(f"{part}(.*?)" for part in parts) + (last or "$")
        pattern = _COMMAND.sub(r"`clusterddp (?:-C \\S+ )?\1(?: -i \\S+)?", pattern)
        pattern = pattern.replace("up(?: -i \\S+)?`", "up(?: [^`]+)?`")  # its inventory comes in
        found = re.search(pattern, said, re.MULTILINE)
        assert found, f"{self.text!r} was not printed: {said!r}"
        return found

    def printed(self, said: str) -> tuple[str, ...]:
        """What stood for its fields."""
        return self.found(said).groups()

    def commands(self, said: str) -> list[str]:
        """The commands that it told, as they were printed."""
        commands = _QUOTED.findall(self.found(said)[0])
        assert commands, f"no command stands in {self.text!r}"
        return commands


def remedy(path: str, text: str) -> Remedy:
    """Name a remedy that the test types in the situation that prints it."""
    return Remedy(path, text)


def type_line(user: User, line: str, **variables: str) -> Done:
    """Type a line into the user's shell, in the project's folder."""
    first = [str(Path(program).parent) for program in (lean_python(), CLUSTERDDP)]  # the PATH's python3 has torchrun
    env = {**user.env, **variables, "PATH": ":".join([*first, user.env["PATH"]])}
    commands = line.split(" && ")
    if all(_PLAIN.fullmatch(command) for command in commands):
        return _without_a_shell(user, commands, env)
    done = subprocess.run(
        ["bash", "-c", line],
        check=False,
        cwd=user.folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)


def _without_a_shell(user: User, commands: list[str], env: Mapping[str, str]) -> Done:
    """What a shell makes of plain commands after each other; forked, they take a third of the CPU time."""
    done = Done(code=0, out="", err="")
    for command in commands:
        if done.code == 0:
            last = user.run(*command.split()[1:], env=env)
            done = Done(code=last.code, out=done.out + last.out, err=done.err + last.err)
    return done


@functools.cache
def texts() -> frozenset[Remedy]:
    """Every text of the source that a user may be shown, in one line."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        shown = string_literals(path, leave_out=_is_no_message)
        found |= {Remedy(name, text) for text in shown if " " in text and "\n" not in text}
    return frozenset(found)


@functools.cache
def in_source() -> frozenset[Remedy]:
    """Every remedy of the source: a message that names a command, an option or a setting."""
    return frozenset(one for one in texts() if _NAMES.search(one.text))


def string_literals(
    path: Path, field: str = "{}", *, leave_out: Callable[[ast.AST], bool] = lambda _: False
) -> Iterator[str]:
    """The string literals of a file that are no docstrings, with ``field`` for each field of an f-string.

    Those in a part of the file that ``leave_out`` chooses are left out.
    """
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    inside |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
    inside |= {id(part) for node in nodes if leave_out(node) for part in ast.walk(node)}
    for node in nodes:
        if id(node) in inside:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else field for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _is_no_message(node: ast.AST) -> bool:
    """Whether the texts in this part of a file are shown to no user in trouble."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _NOT_MESSAGES
    return isinstance(node, ast.keyword) and node.arg in _NOT_SHOWN


@functools.cache
def typed() -> frozenset[Remedy]:
    """Every remedy that a test names."""
    found = set()
    for path in TESTS.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "remedy(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "remedy":
                words = [one.value for one in node.args if isinstance(one, ast.Constant)]
                found.add(Remedy(*map(str, words)))
    return frozenset(found)


@functools.cache
def listed() -> dict[Remedy, str]:
    """The remedies that no test types, with the reason: lines of reason, file and text, apart by tabs."""
    rows = [line.split("\t") for line in LISTED.read_text(encoding="utf-8").splitlines()]
    return {Remedy(path, text): reason for reason, path, text in rows}


def main() -> None:
    """Write the list anew."""
    left = sorted(in_source() - typed(), key=lambda one: (one.path, one.text))
    LISTED.write_text("".join(f"{listed().get(one, 'open')}\t{one.path}\t{one.text}\n" for one in left))


if __name__ == "__main__":
    main()
