"""Merges variables in the same order as Ansible.

Weakest first: the file's ``all`` vars, its groups' vars, ``group_vars/all``, ``group_vars/`` of the groups, the host's
own, ``host_vars/``. Groups come by depth, then ``ansible_group_priority``, then name. A stronger value replaces the
weaker whole.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.inventory.tree import GroupTree
    from clusterddp.inventory.varsfiles import VarsFiles
    from clusterddp.inventory.yaml_values import Setting

Layer = dict[str, "Setting"]


class VariableMerger:
    """Orders the layers of each host's variables."""

    def __init__(self, tree: GroupTree, files: VarsFiles) -> None:
        self._tree = tree
        self._files = files
        self._depths: dict[str, int] = {}
        self._group_files = {name: files.group(name) for name in tree.groups}

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """Each host's groups from the weakest to the strongest, with their ancestors, without ``all``."""
        found: dict[str, set[str]] = {host: set() for host in self._tree.hosts}
        for group in self._tree.groups.values():
            for host in group.hosts:
                found[host] |= {group.name, *self._ancestors[group.name]}
        return {host: sorted(names - {"all"}, key=self._sort_key) for host, names in found.items()}

    def layers(self, host: str) -> Sequence[Layer]:
        """The host's variables, from the weakest layer to the strongest."""
        groups = self.groups[host]
        inline, files = self._tree.groups, self._group_files
        return (
            inline["all"].settings,
            *(inline[group].settings for group in groups),
            files["all"],
            *(files[group] for group in groups),
            self._tree.hosts[host].settings,
            self._files.host(host),
        )

    @cached_property
    def _ancestors(self) -> dict[str, set[str]]:
        return {name: self._tree.ancestors(name) for name in self._tree.groups}

    def _sort_key(self, group: str) -> tuple[int, int, str]:
        """Sorts groups from the weakest to the strongest."""
        return self._depth(group), self._tree.groups[group].priority, group

    def _depth(self, group: str) -> int:
        """The length of the longest path down from ``all``."""
        if group not in self._depths:
            parents = self._tree.groups[group].parents
            self._depths[group] = max((self._depth(parent) + 1 for parent in parents), default=0)
        return self._depths[group]
