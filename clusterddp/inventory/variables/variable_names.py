"""The names of the variables that we read, and errors for ``clusterddp_`` names that are none of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from clusterddp.errors import InventoryError
from clusterddp.inventory.ansible_names import PRIORITY
from clusterddp.inventory.redact import json_key
from clusterddp.inventory.variables.declare import PREFIX
from clusterddp.inventory.variables.variable_table import VARIABLES
from clusterddp.inventory.yaml_values import refuse_duplicates
from clusterddp.text.nearest import edit_distance, nearest

if TYPE_CHECKING:
    from clusterddp.inventory.yaml_values import Marked, Setting

_NAMES = frozenset(name for variable in VARIABLES.values() for name in variable.names)
OURS = frozenset(name for name in _NAMES if name.startswith(PREFIX))
RESERVED = frozenset(PREFIX + name for name in ("sync", "requirements", "container"))
USED = _NAMES | {PRIORITY}  # all that we read
# Names that Ansible sets itself: it ignores an inventory's values for them, and so do we.
# fmt: off
ANSIBLE_OWNS = frozenset((
    "ansible_async_path", "ansible_collection_name", "ansible_config_file", "ansible_dependent_role_names",
    "ansible_diff_mode", "ansible_facts", "ansible_forks", "ansible_inventory_sources", "ansible_limit",
    "ansible_play_batch", "ansible_play_hosts", "ansible_play_hosts_all", "ansible_play_role_names",
    "ansible_playbook_python", "ansible_role_name", "ansible_role_names", "ansible_run_tags",
    "ansible_skip_tags", "ansible_verbosity", "ansible_version", "group_names", "groups", "hostvars",
    "inventory_dir", "inventory_file", "inventory_hostname", "inventory_hostname_short", "play_hosts",
    "playbook_dir", "role_name", "role_names", "role_path", "role_uuid",
))
# fmt: on


def settings(mapping: Marked) -> dict[str, Setting]:
    """The variables of a ``vars`` section, a host or a vars file, each with its place; raises InventoryError."""
    refuse_duplicates(mapping, "variable", only=USED)
    found: dict[str, Setting] = {}
    for key in mapping:
        name = key if isinstance(key, str) else json_key(key)
        check_name(name, mapping.where(key))
        found[name] = mapping.setting(key)
    return found


def check_name(name: str, where: str) -> None:
    """Raise for a ``clusterddp_`` name that is unknown, or reserved."""
    prefix, rest = _split_prefix(name)
    if not prefix or name in OURS:
        return
    if name in RESERVED:
        raise InventoryError(f"{name} is reserved for a later version", where=where, remedy="remove it")
    close = rest if PREFIX + rest in OURS else nearest(rest, sorted(known.removeprefix(PREFIX) for known in OURS))
    remedy = f"did you mean {PREFIX}{close}?" if close else f"known are {', '.join(sorted(OURS))}"
    raise InventoryError(f"{name!r} is not a variable of clusterddp", where=where, remedy=remedy)


@functools.lru_cache(maxsize=4096)
def _split_prefix(name: str) -> tuple[str, str]:
    """Split a name into our prefix, as misspelled by at most one letter, and the rest; else an empty prefix."""
    if name.startswith(PREFIX):
        return PREFIX, name[len(PREFIX) :]
    plain = name.lower().replace("-", "_")
    if not plain.startswith(("c", "l")):
        return "", name
    for length in (len(PREFIX), len(PREFIX) - 1, len(PREFIX) + 1):
        if plain[length - 1 : length] == "_" and edit_distance(plain[:length], PREFIX) <= 1:
            return name[:length], plain[length:]
    return "", name


@functools.lru_cache(maxsize=4096)
def misspelled(name: str) -> str:
    """The connection variable of Ansible that differs from a name by one letter; empty if there is none."""
    if not name.startswith("ansible") or name in USED or name in ANSIBLE_OWNS:
        return ""
    close = [known for known in sorted(USED) if abs(len(known) - len(name)) <= 1 and edit_distance(name, known) == 1]
    return close[0] if close and name != f"{close[0]}s" else ""
