"""Open the cluster that a command's options name: find its project and inventory, and print which they are."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.api.cluster import Cluster
from clusterddp.api.cluster_hosts import CONNECT_TIMEOUT
from clusterddp.cli.command_lines import remember_cluster
from clusterddp.cli.inventory_choice import InventoryChoice, choose, read_chosen
from clusterddp.cli.output import say
from clusterddp.cli.project_options import option_location, project_settings
from clusterddp.cli.prompt import prompt_function
from clusterddp.cli.pyproject import with_defaults
from clusterddp.inventory.local_python import find_python, unused_venv, with_python
from clusterddp.project import project_folder
from clusterddp.project.project import find, short_path
from clusterddp.remote.shared.text.counted import counted

if TYPE_CHECKING:
    from clusterddp.inventory import Inventory
    from clusterddp.project.project import Project

_log = logging.getLogger("clusterddp")


def open_cluster(
    inventory: Path | None,
    limit: str | None,
    *,
    quiet: bool = False,
    accept: bool = False,
    starts: bool = False,
    connect_timeout: float = CONNECT_TIMEOUT,
    keep: float | None = None,
    built_in: bool = False,
) -> Cluster:
    """Return the cluster a command works on: that of ``-i``, else what ``up`` remembered, else the built-in one.

    The built-in one is two nodes on this machine.

    ``quiet``: do not print which it is. ``accept``: record unknown host keys. ``starts``: the user's programs will be
    started, so a Python for the built-in nodes is looked for. ``connect_timeout``: in seconds. ``keep``: connections
    are kept for later commands, for so many seconds after their last use. ``built_in``: the built-in one in any case.
    Raises InventoryError or UsageError if a file
    or that Python is wrong, or the user has not agreed to that Python.
    """
    project = find()
    project_folder.clear_unfinished(project.folder)
    if line := project.update_location():
        say(line)
    chosen = InventoryChoice(path=None, limit=limit) if built_in else choose(project, inventory, limit)
    if chosen.path:
        remember_cluster(short_path(chosen.path), chosen.limit if chosen.limit_by else None)
    loaded = with_defaults(read_chosen(chosen), project)
    source = chosen.path_by or ("-i" if inventory else "remembered by up" if chosen.path else "nothing is remembered")
    limit_text = f" ({chosen.limit_by or '--limit'})" if chosen.limit else ""
    _log.debug("project %s, inventory %s (%s), limit %s%s", project.root, chosen.path, source, chosen.limit, limit_text)
    python, venv = "", ""
    if starts and chosen.path is None:
        loaded, python, venv = _with_local_python(loaded, project)
    if not quiet:
        say(f"cluster: {_describe(loaded, chosen)}{python}")
    if venv:
        say(venv)
    for notice in loaded.notices:
        say(notice)
    return Cluster(
        loaded,
        project=project,
        accept_new_host_keys=accept,
        notify=say,
        ask=prompt_function(),
        connect_timeout=connect_timeout,
        keep=keep,
    )


def _with_local_python(inventory: Inventory, project: Project) -> tuple[Inventory, str, str]:
    """Return the built-in nodes with the Python they train with, its description, and a notice (or an empty text)."""
    named = project_settings(project).get("python")
    found = find_python(project.root, (named, option_location(project, "python")) if named else None, os.environ)
    python = f", {short_path(Path(found.path))} ({found.by})"
    return with_python(inventory, found.path), python, unused_venv(project.root, found, os.environ)


def _describe(inventory: Inventory, chosen: InventoryChoice) -> str:
    """Describe the number of hosts and their origin; a limit that was not just typed is shown with its source."""
    count = len(inventory.nodes) + len(inventory.spares)
    limit = f", limit {chosen.limit} ({chosen.limit_by})" if chosen.limit_by else ""
    if chosen.path is None:
        return f"none configured, {counted(count, 'node')} on this machine{limit}"
    logins = [entry.name for entry in inventory.hosts if entry.role == "login"]
    hosts = [counted(count, "host")] if count or not logins else []
    return f"{' and '.join([*hosts, *(f'login host {name}' for name in logins)])} from {short_path(chosen.path)}{limit}"
