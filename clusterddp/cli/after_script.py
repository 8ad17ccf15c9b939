"""What stands after SCRIPT on ``run``'s line: the script's own, unless it plainly chooses our hosts."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterddp.cli.output import say
from clusterddp.errors import InventoryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterddp.inventory import Inventory

_BEFORE = f"{__name__}.before"  # in a context's meta: the words before SCRIPT


class RunCommand(click.Command):
    """A command that keeps the words before SCRIPT: with a ``--`` there, all that follows is meant for the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click's, which eats up the ``--``."""
        words = list(args)
        rest = super().parse_args(ctx, args)
        behind = len(ctx.params.get("args") or ()) + (ctx.params.get("script") is not None)
        ctx.meta[_BEFORE] = words[: len(words) - behind]
        return rest


def refuse_misplaced(script: str, args: Sequence[str], inventory: Inventory) -> None:
    """Refuse ``-i FILE`` and ``--limit PATTERN`` behind the script, where they would choose no hosts.

    Only where FILE is an inventory, and PATTERN matches hosts of the one in use; and not after a ``--``.

    Raises:
        UsageError: says both lines that may be meant.
    """
    before: list[str] = click.get_current_context().meta.get(_BEFORE, [])
    if before[-1:] == ["--"]:
        return
    for place, word in enumerate(args):
        name, equals, value = word.partition("=")
        if word.startswith("-i") and word[2:3] not in ("", "="):  # -iFILE
            name, equals, value = "-i", "=", word[2:]
        following = [] if equals else list(args[place + 1 : place + 2])
        value = value if equals else "".join(following)
        is_inventory = name in ("-i", "--inventory") and _is_inventory(value)
        if not value or not (is_inventory or (name == "--limit" and _matches(inventory, value))):
            continue
        ours = [word, *following]
        rest = [*args[:place], *args[place + len(ours) :]]
        right = shlex.join(["clusterddp", "run", *before, *ours, script, *rest])
        scripts = shlex.join(["clusterddp", "run", *before, "--", script, *args])
        raise UsageError(
            f"{shlex.join(ours)} stands after {script}, so it would go to the script and choose no hosts",
            remedy=f"write `{right}`; or, if the script is to have it, `{scripts}`",
        )


def _is_inventory(name: str) -> bool:
    from clusterddp.inventory import load  # noqa: PLC0415 - start-up

    try:
        return bool(name) and Path(name).is_file() and bool(load(name).hosts)
    except (InventoryError, OSError, ValueError):  # then it is the script's argument
        return False


def _matches(inventory: Inventory, pattern: str) -> bool:
    try:
        return bool(inventory.limit(pattern).hosts)
    except (InventoryError, ValueError):  # no pattern either: the same
        return False


def notice_own_options(args: Iterable[str], parameters: Iterable[click.Parameter]) -> None:
    """One line where an argument of the script is written as an option of ours."""
    own: set[Any] = {name for one in parameters for name in (*one.opts, *one.secondary_opts) if name[:2] == "--"}
    taken = [word for word in args if word.split("=")[0].replace("_", "-") in own]
    if taken:
        say(f"{taken[0]} stands after the script, so it goes to the script; options of clusterddp stand before it")
