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

FILE_NAMES = ("inventory.yaml", "inventory.new.yaml")  # in .clusterddp/; the second until `up` has succeeded


def write(host_list: str, variables: Iterable[str], project: Project) -> Path:
    """Write the inventory of a host list; return its path.

    ``variables``: for all of its hosts, as ``NAME=VALUE``. Raises InventoryError if it is not a host list, or an edited
    inventory would be overwritten; UsageError if a variable is wrong.
    """
    new_text = from_host_list(host_list, variables_of(variables))
    remembered = project.unproved.inventory
    for name in FILE_NAMES:
        _refuse_to_overwrite(project.folder / name, new_text)
    name = FILE_NAMES[1] if remembered == project.folder / FILE_NAMES[0] and remembered.exists() else FILE_NAMES[0]
    return project.write(name, new_text.encode())


def settle(path: Path, project: Project) -> Path:
    """Return the inventory of an ``up`` that succeeded; the second of ``FILE_NAMES`` is renamed to the first now."""
    first, second = (project.folder / name for name in FILE_NAMES)
    if path != second or _edited_text(first) or _edited_text(second):
        return path
    return second.replace(first)


def _refuse_to_overwrite(path: Path, new_text: str) -> None:
    """Refuse to overwrite what the user has edited; raises InventoryError."""
    edited = _edited_text(path)
    if not edited:
        return
    shown = short_path(path)
    say(f"{shown} has been edited; - stands there, + is what the host list says:")
    for line in difference(edited, new_text):
        say(line)
    raise InventoryError(
        f"{shown} has been edited and is not overwritten",
        remedy=f"`clusterddp up {shlex.quote(shown)}` takes it as it is; to take the list, move it away first",
    )


def _edited_text(path: Path) -> str:
    """Return the text of a file that the user has changed since it was written; empty if unchanged."""
    try:
        edited = project_folder.read(path).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InventoryError(f"cannot be read: {error.strerror}", where=str(path), remedy="move it away") from None
    return edited if was_edited(edited) else ""
