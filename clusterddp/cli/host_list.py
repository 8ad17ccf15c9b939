"""Write the inventory for a list of hosts given to `up`, without overwriting one that the user has edited.

It is written before any host is reached, so that an `up` that fails leaves a file to edit. While an earlier one is
remembered, the new file has another name until `up` has succeeded.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from clusterddp.cli.output import say
from clusterddp.errors import InventoryError
from clusterddp.inventory import difference, from_host_list, variables_of, was_edited
from clusterddp.project import project_folder
from clusterddp.project.project import short_path

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from clusterddp.project.project import Project

NAMES = ("inventory.yaml", "inventory.new.yaml")  # in .clusterddp/


def write(text: str, words: Iterable[str], project: Project) -> Path:
    """Write the inventory of a host list; return its path.

    ``words``: variables for all of its hosts, as ``NAME=VALUE``. Raises InventoryError if it is not a host list, or an
    edited inventory would be overwritten; UsageError if a word is not a variable.
    """
    wanted = from_host_list(text, variables_of(words))
    remembered = project.unproved.inventory
    for name in NAMES:
        _keep_edited(project.folder / name, wanted)
    name = NAMES[1] if remembered == project.folder / NAMES[0] and remembered.exists() else NAMES[0]
    return project.write(name, wanted.encode())


def settled(path: Path, project: Project) -> Path:
    """Return the inventory of an ``up`` that succeeded; a new list's file replaces the earlier one now."""
    first, second = (project.folder / name for name in NAMES)
    if path != second or _edited(first) or _edited(second):
        return path
    return second.replace(first)


def _keep_edited(path: Path, wanted: str) -> None:
    """Refuse to overwrite what the user has edited; raises InventoryError."""
    there = _edited(path)
    if not there:
        return
    shown = short_path(path)
    say(f"{shown} has been edited; - stands there, + is what the host list says:")
    for line in difference(there, wanted):
        say(line)
    raise InventoryError(
        f"{shown} has been edited and is not overwritten",
        remedy=f"`clusterddp up {shlex.quote(shown)}` takes it as it is; to take the list, move it away first",
    )


def _edited(path: Path) -> str:
    """Return the text of a file that the user has changed since it was written; empty if unchanged."""
    try:
        there = project_folder.read(path).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InventoryError(f"cannot be read: {error.strerror}", where=str(path), remedy="move it away") from None
    return there if was_edited(there) else ""
