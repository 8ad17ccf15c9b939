"""An inventory as an immutable value, independent of YAML and files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterddp.errors import InventoryError
from clusterddp.inventory.launchers import chooses_hosts
from clusterddp.inventory.patterns import select
from clusterddp.inventory.redact import redacted
from clusterddp.text.folding import few, folded_words

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from clusterddp.inventory.variables.variable_table import HostEntry
    from clusterddp.project.consent import Writers

_MAX_NAMED = 8  # names listed in one error


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Hosts and groups."""

    path: Path | None  # the file it was read from; None for the built-in one
    # all hosts in inventory order (as ``ansible all --list-hosts``): those directly under ``all``, those of no group,
    # then group after group as written, outer groups before the groups inside them
    hosts: tuple[HostEntry, ...]
    # each group's hosts in order, with those of the groups below it; ``all`` and ``ungrouped`` are among them
    groups: Mapping[str, tuple[str, ...]]
    notices: tuple[str, ...] = ()  # warnings for the user that are no reason to stop
    pattern: str = ""  # the host pattern that selected its hosts; empty if all of the file's are in it
    writers: Writers | None = None  # who may write the file; None if there is no file

    @property
    def nodes(self) -> tuple[HostEntry, ...]:
        """The hosts that run jobs, in inventory order."""
        return tuple(host for host in self.hosts if host.role == "node")

    @property
    def run_hosts(self) -> tuple[HostEntry, ...]:
        """The hosts on which runs may be: nodes and spares."""
        return self.nodes + self.spares

    @property
    def spares(self) -> tuple[HostEntry, ...]:
        """The hosts that can replace a lost node."""
        return tuple(host for host in self.hosts if host.role == "spare")

    @property
    def logins(self) -> tuple[HostEntry, ...]:
        """The hosts from which jobs are submitted."""
        return tuple(host for host in self.hosts if host.role == "login")

    @property
    def submitting(self) -> tuple[HostEntry, ...]:
        """The login hosts that submit to a workload manager."""
        return tuple(host for host in self.logins if chooses_hosts(host.launcher))

    @property
    def managed(self) -> bool:
        """Whether all hosts belong to a workload manager such as Slurm: then only login hosts are connected to."""
        return bool(self.hosts) and all(chooses_hosts(host.launcher) for host in self.hosts if host.role != "none")

    def limit(self, pattern: str) -> Inventory:
        """The part of it that a host pattern selects (``gpu:!gpu03``, ``gpu[0:3]``), still in inventory order."""
        selection = select(pattern, [host.name for host in self.hosts], self.groups)
        chosen = set(selection.hosts)
        if not chosen:
            raise self._nothing_selected(pattern)
        return replace(
            self,
            hosts=tuple(host for host in self.hosts if host.name in chosen),
            groups={name: tuple(h for h in hosts if h in chosen) for name, hosts in self.groups.items()},
            notices=self.notices + selection.notices,
            pattern=pattern,
        )

    def matching(self, pattern: str, option: str) -> list[str]:
        """The names of the hosts that an option's pattern selects; an ``InventoryError`` names the option."""
        try:
            return [host.name for host in self.limit(pattern).hosts]
        except InventoryError as error:
            error.message = f"{option}: {error.message.removeprefix('limit ')}"
            raise

    def pattern_without(self, names: Collection[str]) -> str:
        """Return a host pattern for all hosts of this inventory except ``names``; empty if no node would be left."""
        left = [host.name for host in self.hosts if host.name not in names]
        if not any(host.name in left for host in self.nodes):
            return ""
        base = self.pattern or "all"
        without = [f"!{part}" for part in self._fold_names(names)]
        # A colon separates parts too, so names that contain one (IPv6 addresses) need commas or a plain list.
        if "," in base or (base == "all" and any(":" in name for name in names)):
            return ",".join([base, *without])
        if any(":" in name for name in names):
            return ",".join(left)
        return ":".join([base, *without])

    def _fold_names(self, names: Collection[str]) -> list[str]:
        """Shorten names to ranges (``gpu[00:07]``), unless a group has a range's name: ``gpu[0:7]`` are its members."""
        named = [host.name for host in self.hosts if host.name in names]
        patterns = folded_words(named)
        ranges = [pattern for pattern in patterns if pattern not in named]
        unambiguous = all("[" in pattern and pattern.partition("[")[0] not in self.groups for pattern in ranges)
        return patterns if unambiguous else named

    def to_json(self) -> list[dict[str, Any]]:
        """The data of ``hosts --json``: ``name, address, port, user, groups, vars`` of each host.

        ``groups`` and ``vars`` are what Ansible's ``group_names`` and ``ansible-inventory --list`` show, except that
        the values of secrets are replaced by ``********`` (redact.py defines which those are).
        """
        return [
            {
                "name": host.name,
                "address": host.address,
                "port": host.port,
                "user": host.user,
                "groups": list(host.groups),
                "vars": redacted(host.vars),
            }
            for host in self.hosts
        ]

    def _nothing_selected(self, pattern: str) -> InventoryError:
        if pattern in self.groups:
            return InventoryError(f"group {pattern!r} has no hosts", remedy="put hosts into it, or limit to another")
        groups = ", ".join(list(self.groups)[:_MAX_NAMED])
        hosts = few(folded_words([host.name for host in self.hosts]), _MAX_NAMED)
        remedy = f"groups are {groups}; hosts are {hosts}"
        return InventoryError(f"limit {pattern!r} selects no host", remedy=remedy)
