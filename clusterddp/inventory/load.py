"""Reads an inventory: from a file, or the built-in one of two nodes on this machine."""

from __future__ import annotations

import re
import shlex
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterddp.errors import InventoryError
from clusterddp.inventory.group_vars import VariableMerger
from clusterddp.inventory.hostlist import means_file
from clusterddp.inventory.local_python import with_python
from clusterddp.inventory.origins import host_file_kind
from clusterddp.inventory.read_host import host_entry
from clusterddp.inventory.tree import GroupTree
from clusterddp.inventory.trusted import open_inventory
from clusterddp.inventory.values import Inventory
from clusterddp.inventory.variables.reader import ForeignInventory
from clusterddp.inventory.varsfiles import VarsFiles, duplicate_notices, encrypted_error
from clusterddp.inventory.vaulted import is_encrypted
from clusterddp.inventory.yaml_values import Marked
from clusterddp.inventory.yamlfile import decode, parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.inventory.trusted import InventorySource
    from clusterddp.inventory.yamlfile import Document
    from clusterddp.project.consent import Writers

YAML_SUFFIXES = frozenset({".yaml", ".yml", ".json", ""})
_ANSIBLE_SUFFIXES = frozenset({".ini", ".cfg", ".toml", ".hosts", ".inventory"})
_INI_LINE = re.compile(r"^\[[\w.:-]+\]\s*$|^[^\s#;]+[ \t](?:[^#\n]*[ \t])?ansible_\w+=", re.MULTILINE)
_INI_WORD = re.compile(r"[\w.:@[\]-]+|\w+=\S+")
_PACKAGE = Path(__file__).parent.parent
# A wheel has the file inside the package; a source tree (or editable install) has it in its inventories folder.
_LOCAL_PATHS = (_PACKAGE / "local.yaml", _PACKAGE.parent / "inventories" / "local.yaml")
_LOCAL_NAME = "built-in inventory"


def load(path: str | Path, remembered: Writers | None = None) -> Inventory:
    """Read an inventory file of Ansible's YAML format, with ``group_vars/`` and ``host_vars/`` beside it.

    ``remembered`` says who could write the file when `up` was given it; None if the user names it now. Raises
    ``InventoryError`` if it is missing, not a YAML inventory, holds no host or something we cannot use, or if somebody
    else could have written it or a file that is read beside it.
    """
    path = Path(path)
    try:
        with open_inventory(path, remembered) as source:
            return _read_source(source)
    except FileNotFoundError:
        is_list = "," in path.name and not means_file(str(path))
        remedy = f"`clusterddp up {shlex.quote(str(path))}` takes a list of hosts" if is_list else "check the path"
        raise InventoryError("there is no such inventory file", where=str(path), remedy=remedy) from None


def is_inventory(path: Path) -> bool:
    """Whether a file is an inventory in YAML, or one in Ansible's INI that says so by a section or a variable."""
    try:
        return bool(load(path).hosts)
    except ForeignInventory:
        return is_ini(path.read_text(encoding="utf-8-sig", errors="replace"))
    except InventoryError:
        return False


def files_of(path: Path, decrypt: Callable[[bytes], bytes]) -> dict[str, bytes]:
    """The bytes of an inventory's file, and of each file of variables beside it, by their paths from its folder.

    An inventory that is encrypted as a whole is decrypted to know them. Raises what ``load`` raises, but that variables
    may be encrypted.
    """
    with open_inventory(path) as opened:
        source = replace(opened, data=decrypt(opened.data)) if is_encrypted(opened.data) else opened
        tree, files = _group_tree(_document(source).data, str(path), source), VarsFiles(source)
        found = {path.name: source.data}
        for kind, names in (("group_vars", tree.groups), ("host_vars", tree.hosts)):
            for file, data in (one for name in names for one in files.contents(kind, name)):
                decode(data, str(file))  # raises for what is no YAML
                found[str(file.relative_to(path.parent))] = data
        return found


def _read_source(source: InventorySource) -> Inventory:
    """Parse and read an open inventory."""
    document = _document(source)
    return _build_inventory(document.data, str(source.path), source, duplicates=document.duplicates)


def _document(source: InventorySource) -> Document:
    """Parse an open inventory."""
    path = source.path
    _refuse_other_kinds(source)
    try:
        document = decode(source.data, str(path))
    except InventoryError:
        _refuse_lines(source)
        raise
    if document.encrypted:
        raise encrypted_error(path, path)
    if not isinstance(document.data, Marked):
        _refuse_lines(source)
        if _looks_like_ini(document.data):
            raise _conversion_error(path, "an INI inventory")
    if isinstance(document.data, str):
        remedy = "begin with 'all:', 'hosts:' and a host"
        raise InventoryError("is text, no inventory", where=f"{path}:1", remedy=remedy)
    return document


def built_in() -> Inventory:
    """The inventory used if there is none: two nodes on this machine, without SSH."""
    document = parse(built_in_path().read_text(encoding="utf-8"), _LOCAL_NAME)
    return _build_inventory(document.data, _LOCAL_NAME, None)


def built_in_path() -> Path:
    """The file of the built-in inventory, which ``-i`` names where another one is remembered."""
    return next(candidate for candidate in _LOCAL_PATHS if candidate.is_file())


def with_own_python(inventory: Inventory) -> Inventory:
    """Let the built-in nodes train with the interpreter that runs clusterddp, unless another was chosen."""
    return inventory if inventory.path else with_python(inventory, sys.executable)


def _build_inventory(
    data: Any,
    shown: str,
    source: InventorySource | None,
    *,
    duplicates: tuple[tuple[str, object, int], ...] = (),
) -> Inventory:
    tree = _group_tree(data, shown, source)
    files = VarsFiles(source)
    merger = VariableMerger(tree, files)
    read_hosts = {
        host.name: host_entry(host.name, host.where, merger.groups[host.name], merger.layers(host.name))
        for host in tree.hosts.values()
    }
    notices = [*duplicate_notices(duplicates), *tree.notices, *files.notices]
    return Inventory(
        path=source.path if source else None,
        writers=source.writers if source else None,
        hosts=tuple(read_hosts[name][0] for name in tree.hosts_of("all")),
        groups={name: tuple(tree.hosts_of(name)) for name in tree.groups},
        notices=tuple(dict.fromkeys([*notices, *(notice for _, of_host in read_hosts.values() for notice in of_host)])),
    )


def _group_tree(data: Any, shown: str, source: InventorySource | None) -> GroupTree:
    """The groups and hosts of an inventory's data."""
    if data is None or data == {}:
        raise InventoryError("is empty", where=f"{shown}:1", remedy="begin with 'all:', 'hosts:' and a host")
    if not isinstance(data, Marked):
        remedy = "begin with 'all:', 'hosts:' and a host"
        raise InventoryError("must be a mapping of groups", where=f"{shown}:1", remedy=remedy)
    if source is not None and data.get("plugin"):
        raise _conversion_error(source.path, "the configuration of an inventory plugin")
    tree = GroupTree(data)
    if not tree.hosts:
        raise _no_hosts_error(shown, tree.notices)
    return tree


def _no_hosts_error(shown: str, notices: list[str]) -> InventoryError:
    hint = f" ({notices[0]})" if notices else ""
    return InventoryError(f"holds no host{hint}", where=f"{shown}:1", remedy="write hosts under 'all:', 'hosts:'")


def _refuse_other_kinds(source: InventorySource) -> None:
    """Raise for what is not a YAML file: a folder, a program, an INI file, a file with another suffix."""
    path = source.path
    if stat.S_ISDIR(source.info.st_mode):
        remedy = f"`clusterddp up {shlex.quote(str(path))}` has Ansible read it; or give one of the files in it"
        raise ForeignInventory("is a folder, not an inventory file", where=str(path), remedy=remedy)
    if not stat.S_ISREG(source.info.st_mode):
        raise InventoryError("is no file", where=str(path), remedy="give the inventory's file")
    if source.data.startswith(b"#!"):
        raise _conversion_error(path, "an executable inventory")
    if path.suffix not in YAML_SUFFIXES:
        if path.suffix != ".md":
            _refuse_lines(source, names=path.suffix == ".txt")
        if path.suffix in _ANSIBLE_SUFFIXES:
            raise _conversion_error(path, f"a {path.suffix} file")
        remedy = "give an inventory in YAML, or hosts as a,b,c"
        raise InventoryError(f"is a {path.suffix} file, no inventory", where=str(path), remedy=remedy)


def _refuse_lines(source: InventorySource, *, names: bool = False) -> None:
    """Raise InventoryError for an INI inventory or a file for `init`; ``names``: also for a file of names alone."""
    text = source.data.decode("utf-8-sig", errors="replace")
    if is_ini(text):
        raise _conversion_error(source.path, "an INI inventory") from None
    if kind := host_file_kind(text, names=names):
        remedy = f"`clusterddp init {shlex.quote(str(source.path))}` makes one of it"
        raise InventoryError(f"is {kind}, no inventory", where=str(source.path), remedy=remedy) from None


def is_ini(text: str) -> bool:
    """Whether a text has a section's name, or a connection variable of Ansible's behind a host."""
    return bool(_INI_LINE.search(text))


def _looks_like_ini(data: object) -> bool:
    """Whether YAML read it as words that could be an INI inventory's hosts and variables."""
    return isinstance(data, str) and all(map(_INI_WORD.fullmatch, data.split()))


def _conversion_error(path: Path, kind: str) -> ForeignInventory:
    """The error for an inventory that only Ansible can read, with the command that converts it to YAML."""
    source, target = shlex.quote(str(path)), shlex.quote(str(path.with_suffix(".yaml")))
    if source == target:
        target = shlex.quote(str(path.with_name(f"{path.stem}-static.yaml")))
    return ForeignInventory(
        f"is {kind}, to be converted to YAML",
        where=str(path),
        remedy=f"`clusterddp up {source}` does so once; or convert it: "
        f"`ansible-inventory -i {source} --list --yaml --output {target}`",
    )
