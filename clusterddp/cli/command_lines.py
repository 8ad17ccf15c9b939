"""Complete the commands that messages quote by the user's own ``-C`` and ``-i``, so that they can be typed as shown.

`clusterddp stop RUN` would not find a run that was started with ``-i FILE``. An inventory named by a variable or by an
earlier `up` also holds for the next command, so it is not added, except to `up` itself.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass

NO_INVENTORY = frozenset({"up", "init", "discover"})  # commands without -i
_COMMAND = re.compile(r"`clusterddp ([a-z]+)((?: [^`]*)?)`")
_GIT = re.compile(r"`git (?!-C )")


@dataclass(kw_only=True, slots=True)
class _CommandLine:
    """What the user's command line named; empty: nothing."""

    folder: str = ""  # of ``-C``
    inventory: str = ""  # of ``-i``
    up: str = ""  # the arguments with which `up` would choose the same hosts


_line = _CommandLine()


def forget() -> None:
    """Forget the ``-C`` and ``-i`` of an earlier command line."""
    _line.folder = _line.inventory = _line.up = ""


def name_folder(folder: str) -> None:
    """Remember the folder of ``-C`` for later messages; a second one is relative to the first."""
    _line.folder = os.path.join(_line.folder, folder)  # noqa: PTH118 - no text is changed


def name_inventory(inventory: str) -> None:
    """Remember the file of ``-i`` for later messages."""
    _line.inventory = inventory


def name_cluster(inventory: str, limit: str | None) -> None:
    """Remember the inventory that this command uses, and the limit kept with it, for `up` in later messages."""
    file = f"./{inventory}" if inventory.startswith("-") else inventory
    _line.up = shlex.join([file, *(["--limit", limit] if limit else [])])


def completed(line: str) -> str:
    """Add the user's ``-C`` and ``-i`` to the commands that a message quotes, and to `up` its inventory."""
    if _line.folder:
        line = _GIT.sub(lambda _: f"`git -C {shlex.quote(_line.folder)} ", line)
    return _COMMAND.sub(_completed, line) if _line != _CommandLine() else line


def _completed(found: re.Match[str]) -> str:
    (name, rest), folder, inventory = found.groups(), _line.folder, _line.inventory
    before = f"-C {shlex.quote(folder)} " if folder else ""
    named = re.search(r" (?:-i|--inventory)[ =]", rest)
    after = f" -i {shlex.quote(inventory)}" if inventory and name not in NO_INVENTORY and not named else ""
    if name == "up" and not rest and _line.up:
        rest = f" {_line.up}"
    return f"`clusterddp {before}{name}{after}{rest}`"
