"""``[tool.clusterddp]`` of pyproject.toml: a project's own defaults, below the command line and CLUSTERDDP_*.

Options that an inventory can say of a host (``gpus``, ``nproc-per-node``) stand below what it says, so they become
part of the inventory. ``inventory`` and ``limit`` stand below what ``up`` remembers. The rest are click's defaults.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from clusterddp.cli.options import Number
from clusterddp.errors import UsageError
from clusterddp.launch import option_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.inventory import Inventory
    from clusterddp.project import Project

OF_HOSTS = frozenset({"gpus", "nproc_per_node"})
OF_THE_INVENTORY = frozenset({"inventory", "limit"})
OF_COMMANDS = frozenset({
    "debug_comm", "fold", "grace", "launcher", "log_limit", "max_restarts", "nnodes", "no_doctor", "no_fork_server",
    "no_sync", "on_disconnect", "pass_local_rank", "rdzv_backend", "relaunch", "share_gpus", "show", "show_agents",
    "silence", "spread", "sync_limit", "time_limit",
})  # fmt: skip
KEYS = OF_HOSTS | OF_THE_INVENTORY | OF_COMMANDS
_PROJECT = "project"  # project.py reads it


class Defaults(Mapping[str, str]):
    """Click's ``default_map`` of one command; pyproject.toml is read when an option first asks for it."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._found: dict[str, str] | None = None

    def __getitem__(self, name: str) -> str:
        return self._values()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def _values(self) -> dict[str, str]:
        if self._found is None:
            from clusterddp.project import find  # noqa: PLC0415 - start-up

            names = OF_COMMANDS | ({"limit"} if self._command == "up" else set())
            self._found = {}
            with contextlib.suppress(UsageError):  # every command's session says it; --help shall work all the same
                self._found = {name: text for name, text in checked(find()).items() if name in names}
        return self._found


def checked(project: Project) -> dict[str, str]:
    """The project's settings by click's names, as they would be written on the command line.

    Raises:
        UsageError: a key is unknown or its value is no single one.
    """
    found = {}
    for key, value in project.options.items():
        name = key.replace("-", "_")
        if key == _PROJECT:
            continue
        if name not in KEYS:
            raise UsageError(f"{place(project, name)}: no such option", remedy=_suggestion(name))
        if not isinstance(value, str | int | float):
            raise UsageError(f"{place(project, name)}: {value!r} is not one value", remedy="write it as on the line")
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def place(project: Project, name: str) -> str:
    """``file:key``, as the user has spelled the key."""
    spelled = next((key for key in project.options if key.replace("-", "_") == name), name)
    return f"{project.root / 'pyproject.toml'}:tool.clusterddp.{spelled}"


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name, KEYS, 1)
    if near:
        return f"did you mean {near[0].replace('_', '-')}?"
    return "known are " + ", ".join(sorted(key.replace("_", "-") for key in KEYS | {_PROJECT}))


def with_defaults(inventory: Inventory, project: Project) -> Inventory:
    """The inventory with the project's word on hosts that say nothing themselves.

    Raises:
        UsageError: the project's word is none that can be meant.
    """
    own = checked(project)
    hosts = inventory.hosts
    if "nproc_per_node" in own:
        nproc = _nproc(own["nproc_per_node"], project)
        hosts = tuple(host if "clusterddp_nproc" in host.vars else replace(host, nproc=nproc) for host in hosts)
    if "gpus" in own:
        gpus = _gpus(own["gpus"], project)
        hosts = tuple(host if "clusterddp_gpus" in host.vars else replace(host, gpus=gpus) for host in hosts)
    return replace(inventory, hosts=hosts)


def _nproc(text: str, project: Project) -> int | None:
    try:
        return Number(1, auto=True).convert(text, None, None)
    except click.BadParameter as error:
        raise UsageError(f"{place(project, 'nproc_per_node')}: {error.message}") from None


def _gpus(text: str, project: Project) -> tuple[str, ...] | None:
    from clusterddp.facts.gpu_assignment import GpuPolicy  # noqa: PLC0415 - start-up

    where = place(project, "gpus")
    try:
        option_values.gpus(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    policy = GpuPolicy.parse(text)
    if policy.free:
        raise UsageError(f"{where}: {text} is chosen from run to run", remedy="give it on the line of `run`")
    return policy.words or None
