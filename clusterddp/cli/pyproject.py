"""``[tool.clusterddp]`` of pyproject.toml: a project's defaults, below the command line and CLUSTERDDP_*.

Options that an inventory can set for a host (``gpus``, ``nproc-per-node``) become part of it, below its own.
``inventory`` and ``limit`` count only where ``up`` has remembered none. The others are click's defaults.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from clusterddp.cli.project_options import COMMAND_OPTIONS, current_project, option_location, project_settings
from clusterddp.errors import UsageError
from clusterddp.launch.options import option_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.inventory import Inventory
    from clusterddp.project.project import Project


class Defaults(Mapping[str, str]):
    """Click's ``default_map`` of one command; pyproject.toml is read when an option first asks for it."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._settings: dict[str, str] | None = None

    def __getitem__(self, name: str) -> str:
        return self._values()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def _values(self) -> dict[str, str]:
        context = click.get_current_context(silent=True)
        if context and context.resilient_parsing:  # for a page of help, which shows no defaults, or for Tab
            return {}
        if self._settings is None:
            names = COMMAND_OPTIONS | ({"limit"} if self._command == "up" else set())
            names -= {"nnodes"} if self._command == "doctor" else set()  # its option is of Slurm alone
            self._settings = {}
            with contextlib.suppress(UsageError):  # every command's session reports it; --help must still work
                found = project_settings(current_project())
                self._settings = {name: text for name, text in found.items() if name in names}
        return self._settings


def setting_location(name: str) -> str:
    """Return ``file:key`` of an option that the current project's pyproject.toml sets."""
    return option_location(current_project(), name)


def with_defaults(inventory: Inventory, project: Project) -> Inventory:
    """Return the inventory with the project's defaults for hosts that set nothing themselves; raises UsageError."""
    settings = project_settings(project)
    hosts = inventory.hosts
    if named := settings.get("nproc_per_node"):
        nproc = _parse_nproc(named, project)
        hosts = tuple(host if "clusterddp_nproc" in host.vars else replace(host, nproc=nproc) for host in hosts)
    if named := settings.get("gpus"):
        gpus = _parse_gpus(named, project)
        hosts = tuple(host if "clusterddp_gpus" in host.vars else replace(host, gpus=gpus) for host in hosts)
    return replace(inventory, hosts=hosts)


def _parse_nproc(text: str, project: Project) -> int | None:
    """Return the workers per node; None for ``auto``. An error names the line of pyproject.toml."""
    try:
        return option_values.number(1, auto=True)(text)
    except UsageError as error:
        raise UsageError(f"{option_location(project, 'nproc_per_node')}: {error}") from None


def _parse_gpus(text: str, project: Project) -> tuple[str, ...] | None:
    """Return the names of the GPUs; None for all. An error names the line of pyproject.toml."""
    from clusterddp.facts.gpu_assignment import GpuPolicy  # noqa: PLC0415 - few projects name GPUs

    where = option_location(project, "gpus")
    try:
        option_values.gpus(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    policy = GpuPolicy.parse(text)
    if policy.free:
        raise UsageError(f"{where}: {text} is chosen from run to run", remedy="give it on the line of `run`")
    return policy.names or None
