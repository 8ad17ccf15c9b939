"""Find options of ``run`` that were written after SCRIPT by mistake; all else there belongs to the script."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterddp.cli.output import say
from clusterddp.cli.run_command import words_before_script
from clusterddp.errors import InventoryError, UsageError
from clusterddp.inventory import load

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from clusterddp.inventory import Inventory
    from clusterddp.project.project import Project


def refuse_misplaced(script: str, args: Sequence[str], inventory: Inventory) -> None:
    """Refuse ``-i FILE`` and ``--limit PATTERN`` after the script, where they would choose no hosts.

    Only if FILE is an inventory, or PATTERN matches hosts of the one in use; and not after a ``--``. Raises UsageError.
    """
    if _has_double_dash():
        return
    for position, word in enumerate(args):
        name, equals, value = word.partition("=")
        if word.startswith("-i") and word[2:3] not in ("", "="):  # -iFILE
            name, equals, value = "-i", "=", word[2:]
        following = [] if equals else list(args[position + 1 : position + 2])
        value = value if equals else "".join(following)
        is_inventory = name in ("-i", "--inventory") and _is_inventory(value)
        if not value or not (is_inventory or (name == "--limit" and _matches_hosts(inventory, value))):
            continue
        ours = {position, *range(position + 1, position + 1 + len(following))}
        raise _refusal(script, args, ours, "would go to the script and choose no hosts")


def refuse_unread(script: str, args: Sequence[str], project: Project, *, module: bool) -> None:
    """Refuse options of `clusterddp run` that stand after a script of the project which does not read them.

    Nothing is refused after a ``--``.

    The project's files are read only if a word is exactly one of our long options, with ``-`` or ``_``. Raises
    UsageError.
    """
    own_options = {} if _has_double_dash() else _find_own_options(args)
    if not own_options:
        return
    from clusterddp.launch.options.script_options import is_in_project, unread_options  # noqa: PLC0415 - only where a word is an option of ours

    if not is_in_project(script, project, module=module):
        return
    unread = unread_options({name for name, _ in own_options.values()}, project)
    words = [(position, length) for position, (name, length) in own_options.items() if name in unread]
    ours = {position + offset for position, length in words for offset in range(length)}
    if ours:
        raise _refusal(script, args, ours, "would go to the script, and no file of the project reads it")


def _has_double_dash() -> bool:
    """Whether a ``--`` stands before SCRIPT."""
    return words_before_script()[-1:] == ["--"]


def _find_own_options(args: Sequence[str]) -> dict[int, tuple[str, int]]:
    """Return the position of each long option of ``run`` among the script's arguments: its name and number of words."""
    parameters = click.get_current_context().command.params
    options = {
        name: parameter
        for parameter in parameters
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name[:2] == "--"
    }
    positions = {}
    for position, word in enumerate(args):
        if word == "--":  # what follows is no option to the script either
            break
        name, equals, value = word.partition("=")
        option = options.get(name.replace("_", "-"))
        if not isinstance(option, click.Option):
            continue
        following = args[position + 1 : position + 2]
        if option.is_flag and not equals:
            positions[position] = (name, 1)
        elif not option.is_flag and (value or (not equals and following and not following[0].startswith("-"))):
            positions[position] = (name, 1 if equals else 2)
    return positions


def _refusal(script: str, args: Sequence[str], ours: Collection[int], why: str) -> UsageError:
    """Return the error for misplaced arguments, ``ours`` by position, with the two commands that may be meant."""
    misplaced = [word for position, word in enumerate(args) if position in ours]
    rest = [word for position, word in enumerate(args) if position not in ours]
    before = list(_without_folder(words_before_script()))
    corrected = shlex.join(["clusterddp", "run", *before, *misplaced, script, *rest])
    for_script = shlex.join(["clusterddp", "run", *before, "--", script, *args])
    return UsageError(
        f"{shlex.join(misplaced)} stands after {script}, so it {why}",
        remedy=f"write `{corrected}`; or, if the script is to have it, `{for_script}`",
    )


def _without_folder(words: Sequence[str]) -> Iterator[str]:
    """Yield the words without ``-C DIR``, which every command that is quoted gets when it is shown."""
    remaining = iter(words)
    for word in remaining:
        if word == "-C":
            next(remaining, None)
        elif not word.startswith("-C"):
            yield word


def _is_inventory(name: str) -> bool:
    """Whether it is an inventory file with hosts."""
    try:
        return bool(name) and Path(name).is_file() and bool(load(name).hosts)
    except (InventoryError, OSError, ValueError):  # then it is the script's argument
        return False


def _matches_hosts(inventory: Inventory, pattern: str) -> bool:
    """Whether the pattern matches any host of the inventory."""
    try:
        return bool(inventory.limit(pattern).hosts)
    except (InventoryError, ValueError):  # not even a pattern
        return False


def notice_own_options(args: Sequence[str]) -> None:
    """Print a line if an argument of the script is also an option of ours; not after a ``--``."""
    own_options = {
        name
        for parameter in click.get_current_context().command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    duplicates = [word for word in args if word[:2] == "--" and word.split("=")[0].replace("_", "-") in own_options]
    if duplicates and not _has_double_dash():
        say(f"{duplicates[0]} stands after the script, so it goes to the script; options of clusterddp stand before it")
