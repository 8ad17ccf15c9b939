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

from clusterddp.cli.command_lines import remember_inventory
from clusterddp.cli.project_options import option_location, project_settings
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
class InventoryChoice:
    """The inventory that a command uses, the pattern that limits its hosts, and who named both, for messages."""

    path: Path | None  # None for the built-in one
    limit: str | None
    writers: Writers | None = None  # who could write the inventory when `up` was given it; None if it is named now
    path_by: str = ""  # who named it; empty: the command line
    limit_by: str = ""  # who gave the pattern; empty: the command line


def choose(project: Project, path: Path | None, limit: str | None) -> InventoryChoice:
    """Choose the inventory of the command line or CLUSTERDDP_INVENTORY, else that of `up`, else the built-in one.

    Raises InventoryError if the project names one that this user has not agreed to, or the one of `up` is gone;
    UsageError if the user's key cannot be read, or pyproject.toml is wrong.
    """
    path_by = _environment_variable("inventory") if path else ""
    limit_by = _environment_variable("limit") if limit else ""
    settings = project_settings(project)
    if path and not path_by:
        remember_inventory(str(path))
    if path is None and project.unproved.inventory:
        return _choose_remembered(project, limit, limit_by)
    if path is None and "inventory" in settings:
        raise _consent_error(option_location(project, "inventory"), project.root / settings["inventory"], None)
    if path is None and project.untrusted_parent:
        _refuse_parents_inventory(project.untrusted_parent)
    if limit is None and "limit" in settings:
        limit, limit_by = settings["limit"], option_location(project, "limit")
    return InventoryChoice(path=path, limit=limit, path_by=path_by, limit_by=limit_by)


def read_chosen(chosen: InventoryChoice) -> Inventory:
    """Read the hosts that were chosen; raises InventoryError if the file is missing or wrong, or has no such hosts."""
    with _naming_source(chosen.path_by):
        loaded = load(chosen.path, chosen.writers) if chosen.path else built_in()
    with _naming_source(chosen.limit_by):
        return loaded.limit(chosen.limit) if chosen.limit else loaded


def _choose_remembered(project: Project, limit: str | None, limit_by: str) -> InventoryChoice:
    """Return the inventory that `up` remembered, if this user consented to it; raises InventoryError."""
    remembered, unproved = project.remembered, project.unproved
    if remembered.inventory is None:
        raise _consent_error(str(project.folder / "project.json"), unproved.inventory, unproved.limit)
    if not os.path.exists(remembered.inventory):  # noqa: PTH110 - Path's raises where it may not look
        remedy = "`clusterddp up FILE` remembers another"
        raise InventoryError("the remembered inventory is gone", where=str(remembered.inventory), remedy=remedy)
    if limit is None and remembered.limit:
        limit, limit_by = remembered.limit, "remembered by up"
    return InventoryChoice(path=remembered.inventory, limit=limit, writers=remembered.writers, limit_by=limit_by)


def _refuse_parents_inventory(folder: Path) -> None:
    """Refuse the inventory that another user's project in a parent folder names; an unreadable one is ignored."""
    try:
        parent = foreign_project(folder)
        unproved, inventory = parent.unproved, parent.options.get("inventory")
    except UsageError:
        return
    if unproved.inventory:
        raise _consent_error(str(parent.folder / "project.json"), unproved.inventory, unproved.limit)
    if isinstance(inventory, str):
        raise _consent_error(option_location(parent, "inventory"), parent.root / inventory, None)


def _consent_error(where: str, path: Path | None, limit: str | None) -> InventoryError:
    """Return the error for an inventory named without the user's consent, with the command that gives it."""
    if path is None or not os.path.exists(path):  # noqa: PTH110 - Path's raises where it may not look
        remedy = "`clusterddp up FILE` remembers another"
        return InventoryError("there is no such inventory file", where=f"{where}: {path}", remedy=remedy)
    file = short_path(path)
    words = ["clusterddp", "up", f"./{file}" if file.startswith("-") else file]
    line = shlex.join([*words, *(["--limit", limit] if limit else [])])
    remedy = f"if you trust it: `{line}`"
    return InventoryError(f"the inventory {file} is not read without your consent", where=where, remedy=remedy)


def _environment_variable(name: str) -> str:
    """Return the environment variable that set an option of this command, if one did."""
    context = click.get_current_context(silent=True)
    given = context and context.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT
    return f"CLUSTERDDP_{name.upper()}" if given else ""


@contextlib.contextmanager
def _naming_source(source: str) -> Iterator[None]:
    """Begin the block's InventoryError with ``source``: who named the inventory or limit; empty: nothing."""
    try:
        yield
    except InventoryError as error:
        error.message = f"{source}: {error.message}" if source else error.message
        raise
