"""Decide which inventory a command uses, for every command and for completion.

The user consents to an inventory by naming it: with ``-i`` or CLUSTERDDP_INVENTORY for one command, with ``up`` until
the next ``up``. One that only the project's folder names, in project.json or pyproject.toml, is reported and not read.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from clusterddp.cli.command_lines import name_inventory
from clusterddp.cli.project_options import checked, option_location
from clusterddp.errors import InventoryError, UsageError
from clusterddp.inventory import built_in, load
from clusterddp.project.project import foreign_project, short_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from clusterddp.inventory import Inventory
    from clusterddp.project.consent import Writers
    from clusterddp.project.project import Project


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The inventory and its hosts that a command uses, and who named them, for error messages."""

    path: Path | None  # None for the built-in one
    limit: str | None
    writers: Writers | None = None  # who could write the inventory when `up` was given it; None if it is named now
    path_by: str = ""  # who named it; empty: the command line
    limit_by: str = ""  # who gave the pattern; empty: the command line


def choose(project: Project, path: Path | None, limit: str | None) -> Choice:
    """Choose the inventory of the command line or CLUSTERDDP_INVENTORY, else that of `up`, else the built-in one.

    Raises InventoryError if the project names one that this user has not agreed to, or the one of `up` is gone;
    UsageError if the user's key cannot be read, or pyproject.toml is wrong.
    """
    path_by, limit_by = _variable("inventory") if path else "", _variable("limit") if limit else ""
    own = checked(project)
    if path and not path_by:
        name_inventory(str(path))
    if path is None and project.unproved.inventory:
        return _remembered(project, limit, limit_by)
    if path is None and "inventory" in own:
        raise _not_agreed(option_location(project, "inventory"), project.root / own["inventory"], None)
    if path is None and project.untrusted_parent:
        _refuse_above(project.untrusted_parent)
    if limit is None and "limit" in own:
        limit, limit_by = own["limit"], option_location(project, "limit")
    return Choice(path=path, limit=limit, path_by=path_by, limit_by=limit_by)


def read_chosen(chosen: Choice) -> Inventory:
    """Read the hosts that were chosen; raises InventoryError if the file is missing or wrong, or has no such hosts."""
    with _said_by(chosen.path_by):
        loaded = load(chosen.path, chosen.writers) if chosen.path else built_in()
    with _said_by(chosen.limit_by):
        return loaded.limit(chosen.limit) if chosen.limit else loaded


def _remembered(project: Project, limit: str | None, limit_by: str) -> Choice:
    kept, named = project.remembered, project.unproved
    if kept.inventory is None:
        raise _not_agreed(str(project.folder / "project.json"), named.inventory, named.limit)
    if not os.path.exists(kept.inventory):  # noqa: PTH110 - Path's raises where it may not look
        remedy = "`clusterddp up FILE` remembers another"
        raise InventoryError("the remembered inventory is gone", where=str(kept.inventory), remedy=remedy)
    if limit is None and kept.limit:
        limit, limit_by = kept.limit, "remembered by up"
    return Choice(path=kept.inventory, limit=limit, writers=kept.writers, limit_by=limit_by)


def _refuse_above(folder: Path) -> None:
    """Refuse the inventory that another user's project in a folder above names; an unreadable one is ignored."""
    try:
        above = foreign_project(folder)
        named, own = above.unproved, above.options.get("inventory")
    except UsageError:
        return
    if named.inventory:
        raise _not_agreed(str(above.folder / "project.json"), named.inventory, named.limit)
    if isinstance(own, str):
        raise _not_agreed(option_location(above, "inventory"), above.root / own, None)


def _not_agreed(where: str, path: Path | None, limit: str | None) -> InventoryError:
    """Return the error for an inventory named without the user's consent, with the command that gives it."""
    if path is None or not os.path.exists(path):  # noqa: PTH110 - Path's raises where it may not look
        remedy = "`clusterddp up FILE` remembers another"
        return InventoryError("there is no such inventory file", where=f"{where}: {path}", remedy=remedy)
    file = short_path(path)
    words = ["clusterddp", "up", f"./{file}" if file.startswith("-") else file]
    line = shlex.join([*words, *(["--limit", limit] if limit else [])])
    remedy = f"if you trust it: `{line}`"
    return InventoryError(f"the inventory {file} is not read without your consent", where=where, remedy=remedy)


def _variable(name: str) -> str:
    """Return the environment variable that set an option of this command, if one did."""
    context = click.get_current_context(silent=True)
    given = context and context.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT
    return f"CLUSTERDDP_{name.upper()}" if given else ""


@contextlib.contextmanager
def _said_by(whom: str) -> Iterator[None]:
    try:
        yield
    except InventoryError as error:
        error.message = f"{whom}: {error.message}" if whom else error.message
        raise
