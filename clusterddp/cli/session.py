"""From a command's options to a Cluster: which project, which inventory, and the line that says so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from clusterddp.cli.main import say
from clusterddp.errors import InventoryError

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.api import Cluster
    from clusterddp.inventory import Inventory


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
    remembered = project.remembered
    if inventory is None and remembered.inventory:
        inventory, limit = remembered.inventory, limit or remembered.limit
        if not inventory.exists():
            raise InventoryError(
                "the remembered inventory is gone",
                where=str(inventory),
                remedy="`clusterddp up FILE` remembers another",
            )
    loaded = _load(inventory, limit)
    if not quiet:
        say(f"cluster: {_describe(loaded, inventory)}")
    for notice in loaded.notices:
        say(notice)
    return Cluster(loaded, project=project, accept_new_host_keys=accept, notify=say)


def _load(path: Path | None, limit: str | None) -> Inventory:
    from clusterddp.inventory import built_in, load  # noqa: PLC0415

    loaded = load(path) if path else built_in()
    return loaded.limit(limit) if limit else loaded


def _describe(inventory: Inventory, path: Path | None) -> str:
    count = len(inventory.nodes) + len(inventory.spares)
    if path is None:
        return f"none configured, {count} nodes on this machine"
    relative = os.path.relpath(path)
    shown = str(path) if relative.startswith("..") else relative
    return f"{count} host{'' if count == 1 else 's'} from {shown}"
