"""From a command's options to a Cluster: which project, which inventory, and the line that says so."""

from __future__ import annotations

import contextlib
import getpass
import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from clusterddp.cli.output import STANDING, say
from clusterddp.cli.pyproject import checked, place, with_defaults
from clusterddp.errors import InventoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterddp.api import Cluster
    from clusterddp.inventory import Inventory
    from clusterddp.project import Project

_log = logging.getLogger("clusterddp")


def open_cluster(inventory: Path | None, limit: str | None, *, quiet: bool = False, accept: bool = False) -> Cluster:
    """The cluster a command works on: ``-i``, else what ``up`` remembered, else the built-in one.

    Args:
        inventory: ``-i`` or CLUSTERDDP_INVENTORY.
        limit: ``--limit``; without ``-i`` the remembered one stands in.
        quiet: Say nothing about which it is.
        accept: ``--accept-new-host-keys``.

    Raises:
        InventoryError: the file is missing or wrong.
    """
    from clusterddp.api import Cluster  # noqa: PLC0415 - paramiko and yaml only when a command needs them
    from clusterddp.project import find  # noqa: PLC0415

    project = find()
    chosen = _choose(project, inventory, limit)
    loaded = with_defaults(_load(chosen), project)
    by = chosen.path_by or ("-i" if inventory else "remembered by up" if chosen.path else "nothing is remembered")
    limit_by = f" ({chosen.limit_by or '--limit'})" if chosen.limit else ""
    _log.debug("project %s, inventory %s (%s), limit %s%s", project.root, chosen.path, by, chosen.limit, limit_by)
    if not quiet:
        say(f"cluster: {_describe(loaded, chosen)}")
    for notice in loaded.notices:
        say(notice)
    return Cluster(loaded, project=project, accept_new_host_keys=accept, notify=say, ask=asking())


def asking() -> Callable[[str], str] | None:
    """What asks whoever sits at the terminal for something secret; None where nobody does."""
    return _ask if sys.stdin.isatty() and sys.stderr.isatty() else None


def _ask(prompt: str) -> str:
    STANDING.wipe()
    return getpass.getpass(prompt)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """Which inventory and which hosts of it, and whose word that was, for errors; empty: the command line's."""

    path: Path | None
    limit: str | None
    path_by: str = ""
    limit_by: str = ""


def _choose(project: Project, path: Path | None, limit: str | None) -> _Choice:
    """The command line and CLUSTERDDP_*, then what ``up`` remembered, then pyproject.toml."""
    path_by, limit_by = _variable("inventory") if path else "", _variable("limit") if limit else ""
    own, remembered = checked(project), project.remembered
    if path is None and remembered.inventory:
        if not remembered.inventory.exists():
            remedy = "`clusterddp up FILE` remembers another"
            raise InventoryError("the remembered inventory is gone", where=str(remembered.inventory), remedy=remedy)
        if limit is None and remembered.limit:
            limit, limit_by = remembered.limit, "remembered by up"
        return _Choice(path=remembered.inventory, limit=limit, limit_by=limit_by)
    if path is None and "inventory" in own:
        path, path_by = project.root / own["inventory"], place(project, "inventory")
    if limit is None and "limit" in own:
        limit, limit_by = own["limit"], place(project, "limit")
    return _Choice(path=path, limit=limit, path_by=path_by, limit_by=limit_by)


def _variable(name: str) -> str:
    """The environment variable that gave an option of the command being run, if one did."""
    context = click.get_current_context(silent=True)
    given = context and context.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT
    return f"CLUSTERDDP_{name.upper()}" if given else ""


def _load(chosen: _Choice) -> Inventory:
    from clusterddp.inventory import built_in, load  # noqa: PLC0415 - start-up

    with _said_by(chosen.path_by):
        loaded = load(chosen.path) if chosen.path else built_in()
    with _said_by(chosen.limit_by):
        return loaded.limit(chosen.limit) if chosen.limit else loaded


@contextlib.contextmanager
def _said_by(whom: str) -> Iterator[None]:
    try:
        yield
    except InventoryError as error:
        error.message = f"{whom}: {error.message}" if whom else error.message
        raise


def _describe(inventory: Inventory, chosen: _Choice) -> str:
    """How many hosts, where from; a limit that was not typed just now is named with who said it."""
    from clusterddp.project import typed  # noqa: PLC0415 - start-up

    count = len(inventory.nodes) + len(inventory.spares)
    limit = f", limit {chosen.limit} ({chosen.limit_by})" if chosen.limit_by else ""
    if chosen.path is None:
        return f"none configured, {count} node{'' if count == 1 else 's'} on this machine{limit}"
    logins = [entry.name for entry in inventory.hosts if entry.role == "login"]
    hosts = [f"{count} host{'' if count == 1 else 's'}"] if count or not logins else []
    return f"{' and '.join([*hosts, *(f'login host {name}' for name in logins)])} from {typed(chosen.path)}{limit}"
