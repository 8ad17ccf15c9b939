"""The names of the variables that we read, and errors for ``clusterddp_`` names that are none of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from clusterddp.errors import InventoryError
from clusterddp.inventory.redact import json_key
from clusterddp.text.nearest import distance, nearest

if TYPE_CHECKING:
    from clusterddp.inventory.yamlfile import Marked, Setting

PREFIX = "clusterddp_"
# Options of sbatch, with _ instead of -.
SLURM_OPTIONS = (
    "partition", "account", "qos", "constraint", "time", "mem", "cpus_per_task", "gpus_per_node",
)  # fmt: skip
OURS = frozenset(
    PREFIX + name
    for name in (
        *("role", "setup", "python", "nproc", "gpus", "env", "secrets", "address", "interface", "ports"),
        *("workdir", "links", "carry", "state", "transport", "launcher", "environment", "fork_server", "warm"),
        "preload",
        *(f"slurm_{name}" for name in (*SLURM_OPTIONS, "lines", "shared")),
    )
)
RESERVED = frozenset(PREFIX + name for name in ("sync", "requirements", "container"))
PRIORITY = "ansible_group_priority"
# Each variable with its aliases; if several are set the last one wins, as in Ansible's ssh plugin.
HOST = ("ansible_host", "ansible_ssh_host")
PORT = ("ansible_port", "ansible_ssh_port")
USER = ("ansible_user", "ansible_ssh_user")
KEY_FILE = ("ansible_private_key_file", "ansible_ssh_private_key_file")
CONNECTION = "ansible_connection"
PYTHON = "ansible_python_interpreter"
COMMON_ARGS = ("ansible_ssh_common_args", "ssh_common_args")
EXTRA_ARGS = "ansible_ssh_extra_args"
NOT_READ = "ansible_ssh_args"  # replaces default options that Ansible passes to ssh and we do not
USED = OURS | {*HOST, *PORT, *USER, *KEY_FILE, *COMMON_ARGS, CONNECTION, PYTHON, EXTRA_ARGS, PRIORITY}
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
    """The variables of a ``vars`` section, a host or a vars file, each with its place.

    Raises ``InventoryError`` for an unknown or reserved ``clusterddp_`` name, or a variable of ours given twice.
    """
    refuse_duplicates(mapping, "variable", only=USED)
    found: dict[str, Setting] = {}
    for key in mapping:
        name = key if isinstance(key, str) else json_key(key)
        check_name(name, mapping.where(key))
        found[name] = mapping.setting(key)
    return found


def refuse_duplicates(mapping: Marked, kind: str, *, only: frozenset[str] | None = None) -> None:
    """Raise for the first duplicate key (among ``only``), as one of the two values would be lost."""
    for key, line, earlier in mapping.duplicates:
        if only is None or key in only:
            raise InventoryError(
                f"{kind} {key!r} is given twice, first at line {earlier}",
                where=f"{mapping.file}:{line}:{key}",
                remedy="keep one of the two, or join them",
            )


def check_name(name: str, where: str) -> None:
    """Raise for a ``clusterddp_`` name that is unknown, or reserved."""
    prefix, rest = _apart(name)
    if not prefix or name in OURS:
        return
    if name in RESERVED:
        raise InventoryError(f"{name} is reserved for a later version", where=where, remedy="remove it")
    close = rest if PREFIX + rest in OURS else nearest(rest, sorted(known.removeprefix(PREFIX) for known in OURS))
    remedy = f"did you mean {PREFIX}{close}?" if close else f"known are {', '.join(sorted(OURS))}"
    raise InventoryError(f"{name!r} is not a variable of clusterddp", where=where, remedy=remedy)


@functools.lru_cache(maxsize=4096)
def _apart(name: str) -> tuple[str, str]:
    """Split off our prefix as it is written, with at most one letter wrong; an empty prefix if it is not ours."""
    if name.startswith(PREFIX):
        return PREFIX, name[len(PREFIX) :]
    plain = name.lower().replace("-", "_")
    if not plain.startswith(("c", "l")):
        return "", name
    for length in (len(PREFIX), len(PREFIX) - 1, len(PREFIX) + 1):
        if plain[length - 1 : length] == "_" and distance(plain[:length], PREFIX) <= 1:
            return name[:length], plain[length:]
    return "", name


@functools.lru_cache(maxsize=4096)
def misspelled(name: str) -> str:
    """The connection variable of Ansible that differs from a name by one letter; empty if there is none."""
    if not name.startswith("ansible") or name in USED or name in ANSIBLE_OWNS:
        return ""
    near = [known for known in sorted(USED) if abs(len(known) - len(name)) <= 1 and distance(name, known) == 1]
    return near[0] if near and name != f"{near[0]}s" else ""
