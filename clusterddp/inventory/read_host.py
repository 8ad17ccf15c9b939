"""Reads a host's variables into a :class:`HostEntry`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.errors import InventoryError
from clusterddp.inventory import ansible_names, env, variable_names
from clusterddp.inventory.reader import VariableReader
from clusterddp.inventory.variables import VARIABLES, HostEntry
from clusterddp.inventory.yamlfile import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterddp.inventory.group_vars import Layer


def host_entry(name: str, where: str, groups: Sequence[str], layers: Sequence[Layer]) -> tuple[HostEntry, list[str]]:
    """Read one host from its variables' layers, weakest first; returns the entry, and notices.

    A host whose role is ``none`` is never touched, so an invalid value there is only a notice. Else it is an
    ``InventoryError``. ``where`` is ``file:line`` of the host's first mention.
    """
    merged = {
        key: setting for layer in layers for key, setting in layer.items() if key not in variable_names.ANSIBLE_OWNS
    }
    reader = VariableReader(merged)
    known: dict[str, Any] = {
        "name": name,
        "groups": tuple(sorted(groups)),
        "vars": {key: plain(setting.value) for key, setting in merged.items()},
        "where": where,
        **_values(reader, ["role"]),
    }
    try:
        read = {"address": name, **_values(reader, VARIABLES), **env.read_env(layers)}
    except InventoryError as error:
        if known.get("role") != "none":
            raise
        return HostEntry(address=name, **known), [f"{error} (passed over: {name} has the role none)"]
    if read.get("connection") == "local":
        read.setdefault("warm", 0.0)  # nothing is left running on the operator's own machine
    return HostEntry(**{**known, **read}), _not_read(merged)


def _values(reader: VariableReader, names: Iterable[str]) -> dict[str, Any]:
    """The values of the fields that a variable sets."""
    found = {name: VARIABLES[name] for name in names}
    return {name: one.read(reader) for name, one in found.items() if one.read and reader.get(*one.names)}


def _not_read(merged: Layer) -> list[str]:
    said = [
        f"{setting.where}: no variable of Ansible's, so it does nothing here; did you mean {meant}?"
        for name, setting in merged.items()
        if (meant := variable_names.misspelled(name))
    ]
    unread = merged.get(ansible_names.NOT_READ)
    if unread is not None:
        said.append(f"{unread.where}: not read; what the connection needs belongs into {ansible_names.COMMON_ARGS[0]}")
    return said
