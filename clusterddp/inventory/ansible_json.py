"""Converts an inventory that ansible-inventory prints as JSON to YAML."""

from __future__ import annotations

import json
from typing import Any

import yaml


class _Encrypted(str):
    """An individually encrypted value."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Writes encrypted values as ``!vault``."""


_Dumper.add_representer(_Encrypted, lambda dumper, text: dumper.represent_scalar("!vault", str(text), style="|"))


def to_yaml(printed: bytes) -> bytes:
    """Convert what `ansible-inventory --list --export` prints to YAML.

    Its own YAML has hosts and groups by name; here they keep their order, which is that of the nodes.
    """
    groups = json.loads(printed, object_hook=_value)
    own = groups.pop("_meta", {}).get("hostvars", {})

    def group(name: str) -> dict[str, Any]:
        """A group with what stands below it; each group's and each host's own contents once."""
        found = groups.pop(name, {})
        parts = {
            "hosts": {host: own.pop(host, {}) for host in found.get("hosts", ())},
            "children": {child: group(child) for child in found.get("children", ())},
            "vars": found.get("vars", {}),
        }
        return {part: content for part, content in parts.items() if content}

    return yaml.dump({"all": group("all")}, Dumper=_Dumper, sort_keys=False, allow_unicode=True).encode()


def _value(mapping: dict[str, Any]) -> Any:
    """A mapping of ansible-inventory's JSON, or the text that it stands for."""
    if "__ansible_vault" in mapping:
        return _Encrypted(mapping["__ansible_vault"])
    return mapping.get("__ansible_unsafe", mapping)
