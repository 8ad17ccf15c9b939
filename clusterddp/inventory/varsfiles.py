"""Reads variables from ``group_vars/`` and ``host_vars/`` beside the inventory file.

Which files count, and their order, are Ansible's: the first of NAME, NAME.yml, NAME.yaml and NAME.json; a folder stands
for all such files in it, sorted.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from clusterddp.errors import InventoryError
from clusterddp.inventory.variables import variable_names
from clusterddp.inventory.variables.reader import ForeignInventory
from clusterddp.inventory.yaml_values import Marked
from clusterddp.inventory.yamlfile import decode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from clusterddp.inventory.trusted import InventorySource
    from clusterddp.inventory.yaml_values import Setting

_EXTENSIONS = (".yml", ".yaml", ".json")


class VarsFiles:
    """The variable files beside one inventory file, each read once; none for the built-in inventory (source None)."""

    def __init__(self, source: InventorySource | None) -> None:
        self._source = source
        self.notices: list[str] = []

    def group(self, name: str) -> dict[str, Setting]:
        """The variables in files for a group."""
        return self._read("group_vars", name)

    def host(self, name: str) -> dict[str, Setting]:
        """The variables in files for a host."""
        return self._read("host_vars", name)

    def contents(self, kind: str, name: str) -> Iterator[tuple[Path, bytes]]:
        """Yield the files for a group (``kind`` is ``group_vars``) or a host (``host_vars``), each with its bytes."""
        if self._source is None:
            return
        folder = self._source.path.parent / kind
        try:
            paths = list(_files(folder, name)) if folder.is_dir() else []
        except OSError as error:
            remedy = "check its permissions"
            raise InventoryError(f"cannot be read: {error.strerror}", where=str(folder), remedy=remedy) from None
        for path in paths:
            yield path, self._source.read_beside(path)

    def _read(self, kind: str, name: str) -> dict[str, Setting]:
        merged: dict[str, Setting] = {}
        for path, data in self.contents(kind, name):
            merged.update(self._read_file(path, data))
        return merged

    def _read_file(self, path: Path, data: bytes) -> dict[str, Setting]:
        """The variables in one file."""
        document = decode(data, str(path))
        if document.encrypted:
            raise encrypted_error(path, self._source.path if self._source else path)
        self.notices.extend(duplicate_notices(document.duplicates))
        if not document.data:
            return {}
        if not isinstance(document.data, Marked):
            raise InventoryError("must hold a mapping of variables", where=f"{path}:1", remedy="write 'name: value'")
        return variable_names.settings(document.data)


def encrypted_error(path: Path, inventory: Path) -> ForeignInventory:
    """The error for a file of an inventory that is encrypted as a whole."""
    remedy = f"`clusterddp up {shlex.quote(str(inventory))}` has ansible-vault decrypt it, and remembers the inventory"
    return ForeignInventory("is encrypted with ansible-vault", where=str(path), remedy=remedy)


def duplicate_notices(duplicates: tuple[tuple[str, object, int], ...]) -> Iterator[str]:
    """Notices about duplicate keys that do not concern variables we use."""
    for where, key, earlier in duplicates:
        yield f"{where}: {key!r} is given twice, first at line {earlier}; the last one counts"


def _files(folder: Path, name: str) -> Iterator[Path]:
    """Yield the files for a group or host: the first that exists, or all in the first folder."""
    for extension in ("", *_EXTENSIONS):
        path = folder / f"{name}{extension}"
        if path.is_dir():
            yield from _files_in(path)
            return
        if path.exists():
            yield path
            return


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield the variable files in a folder and below it, in Ansible's order."""
    for path in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if path.name.startswith(".") or path.name.endswith("~"):
            continue
        if path.is_dir() and not path.suffix:
            yield from _files_in(path)
        elif path.is_file() and path.suffix in {"", *_EXTENSIONS}:
            yield path
