"""Add the user's own ``-C`` and ``-i`` to the commands that messages quote, so that they can be typed as shown.

`clusterddp stop RUN` would not find a run that was started with ``-i FILE``. An inventory named by a variable or by an
earlier `up` also holds for the next command, so it is not added, except to `up` itself.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass

NO_INVENTORY = frozenset({"up", "init", "skill", "discover"})  # commands without -i
_COMMAND = re.compile(r"`clusterddp ([a-z]+)((?: [^`]*)?)`")
_GIT = re.compile(r"`git (?!-C )")


@dataclass(kw_only=True, slots=True)
class _CommandLine:
    """What the user's command line named; empty: nothing."""

    folder: str = ""  # of ``-C``
    inventory: str = ""  # of ``-i``
    up_arguments: str = ""  # the arguments with which `up` would choose the same hosts


_command_line = _CommandLine()


def forget() -> None:
    """Forget the ``-C`` and ``-i`` of an earlier command line."""
    _command_line.folder = _command_line.inventory = _command_line.up_arguments = ""


def remember_folder(folder: str) -> None:
    """Remember the folder of ``-C`` for later messages; a second one is relative to the first."""
    _command_line.folder = os.path.join(_command_line.folder, folder)  # noqa: PTH118 - no text is changed


def remember_inventory(inventory: str) -> None:
    """Remember the file of ``-i`` for later messages."""
    _command_line.inventory = inventory


def remember_cluster(inventory: str, limit: str | None) -> None:
    """Remember the inventory that this command uses, and its limit, as arguments of `up` in later messages."""
    file = f"./{inventory}" if inventory.startswith("-") else inventory
    _command_line.up_arguments = shlex.join([file, *(["--limit", limit] if limit else [])])


def complete_commands(line: str) -> str:
    """Add the user's ``-C`` and ``-i`` to the commands that a message quotes, and to `up` its inventory."""
    if _command_line.folder:
        line = _GIT.sub(lambda _: f"`git -C {shlex.quote(_command_line.folder)} ", line)
    return _COMMAND.sub(_complete_command, line) if _command_line != _CommandLine() else line


def _complete_command(match: re.Match[str]) -> str:
    """Return a quoted command of ours with the options that it lacks."""
    (name, rest), folder, inventory = match.groups(), _command_line.folder, _command_line.inventory
    before = f"-C {shlex.quote(folder)} " if folder else ""
    named = re.search(r" (?:-i|--inventory)[ =]", rest)
    after = f" -i {shlex.quote(inventory)}" if inventory and name not in NO_INVENTORY and not named else ""
    if name == "up" and not rest and _command_line.up_arguments:
        rest = f" {_command_line.up_arguments}"
    return f"`clusterddp {before}{name}{after}{rest}`"
