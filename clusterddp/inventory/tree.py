"""The groups and hosts of an inventory file in the order of Ansible's YAML plugin, before variables are merged."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from clusterddp.errors import InventoryError
from clusterddp.inventory import validate
from clusterddp.inventory.ansible_names import PRIORITY
from clusterddp.inventory.ranges import expand
from clusterddp.inventory.variables import variable_names
from clusterddp.inventory.yaml_values import Marked, Setting, refuse_duplicates

_SECTIONS = ("hosts", "vars", "children")
_MAX_ANCESTORS = 100  # ancestors of one group


@dataclass(kw_only=True, slots=True)
class GroupNode:
    """A group, with what is directly in it."""

    name: str
    where: str
    hosts: dict[str, None] = field(default_factory=dict)  # an ordered set
    children: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)
    settings: dict[str, Setting] = field(default_factory=dict)
    priority: int = 1


@dataclass(kw_only=True, slots=True)
class HostNode:
    """A host: where it is first named, and its own variables."""

    name: str
    where: str
    settings: dict[str, Setting] = field(default_factory=dict)


class GroupTree:
    """All groups and hosts of one file, in the file's order; ``InventoryError`` if it has another structure."""

    def __init__(self, data: Marked) -> None:
        self.groups = {name: GroupNode(name=name, where=data.file) for name in ("all", "ungrouped")}
        self.hosts: dict[str, HostNode] = {}
        self.notices: list[str] = []
        self._link("all", "ungrouped", data.file)
        refuse_duplicates(data, "group")
        for name in data:
            self._add_group(name, data[name], data.where(name))
        self._reconcile()

    def hosts_of(self, group: str) -> list[str]:
        """All hosts in a group and below it: level by level, each level in the file's order."""
        found: dict[str, None] = {}
        level = [group]
        while level:
            found.update(dict.fromkeys(host for name in level for host in self.groups[name].hosts))
            level = list(dict.fromkeys(child for name in level for child in self.groups[name].children))
        return list(found)

    def ancestors(self, group: str) -> set[str]:
        """All groups above a group."""
        found: set[str] = set()
        waiting = [group]
        while waiting:
            new = set(self.groups[waiting.pop()].parents) - found
            found |= new
            waiting.extend(new)
        return found

    def _add_group(self, name: object, data: Any, where: str) -> str:
        """Add a group's content, a mapping of sections, to the group of that name; return the name, checked."""
        group = validate.group_name(name, where)
        self.groups.setdefault(group, GroupNode(name=group, where=where))
        if data is None:
            return group
        if not isinstance(data, Marked):
            raise _not_a_mapping(f"group {group!r}", data, where)
        refuse_duplicates(data, "section")
        for section in data:
            self._add_section(group, section, data)
        return group

    def _add_section(self, group: str, section: object, data: Marked) -> None:
        content, where = data[section], data.where(section)
        if section not in _SECTIONS:
            close = get_close_matches(str(section), _SECTIONS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "groups inside a group stand under 'children'"
            self.notices.append(f"{where}: passed over in group {group!r}, as Ansible does; {hint}")
            return
        if isinstance(content, str):  # `hosts: gpu01` names one host
            content = _single_host(content, data, section)
        if content is None:
            return
        if not isinstance(content, Marked):
            raise _not_a_mapping(f"{section!r} of group {group!r}", content, where)
        if section == "vars":
            self._set_variables(group, content)
        elif section == "children":
            self._add_children(group, content)
        else:
            self._add_hosts(group, content)

    def _add_children(self, group: str, content: Marked) -> None:
        refuse_duplicates(content, "group")
        for name in content:
            child = self._add_group(name, content[name], content.where(name))
            self._link(group, child, content.where(name))

    def _add_hosts(self, group: str, content: Marked) -> None:
        refuse_duplicates(content, "host")
        for key in content:
            where, variables = content.where(key), content[key]
            if not isinstance(key, str):
                raise InventoryError(f"host {key!r} is not text", where=where, remedy="quote it")
            if variables and not isinstance(variables, Marked):
                raise _not_a_mapping(f"host {key!r}", variables, where)
            hosts, port = expand(key, where)
            for host in hosts:
                self._add_host(validate.host_name(host, where), group, port, content, key)
                if variables:
                    self._set_variables(host, variables)

    def _add_host(self, name: str, group: str, port: int | None, content: Marked, key: str) -> None:
        if name not in self.hosts:
            where = f"{content.file}:{content.lines.get(key, content.line)}"
            host = self.hosts[name] = HostNode(name=name, where=where)
            if port is not None:  # as in Ansible, a port counts only where the host is first named
                line = content.lines.get(key, content.line)
                host.settings["ansible_port"] = Setting(
                    key="ansible_port", value=port, text=None, file=content.file, line=line
                )
            if name in self.groups:
                self._warn_same_name(name, where)
        self.groups[group].hosts[name] = None

    def _warn_same_name(self, name: str, where: str) -> None:
        self.notices.append(
            f"{where}: {name!r} names a group and a host, and variables of the host go to the group, as in Ansible; "
            "rename one of them"
        )

    def _set_variables(self, entity: str, content: Marked) -> None:
        """Give variables to the group of that name, else to the host: Ansible looks among groups first."""
        group = self.groups.get(entity)
        for name, setting in variable_names.settings(content).items():
            if group is None:
                self.hosts[entity].settings[name] = setting
            elif name == PRIORITY:
                group.priority = _priority(setting)
            else:
                group.settings[name] = setting

    def _link(self, parent: str, child: str, where: str) -> None:
        """Make one group the child of another; ``InventoryError`` if that closes a circle."""
        ancestors = self.ancestors(parent)
        if len(ancestors) > _MAX_ANCESTORS:
            raise InventoryError(f"group {child!r} is below more than {_MAX_ANCESTORS} groups", where=where)
        if parent == child or child in ancestors:
            raise InventoryError(
                f"group {child!r} is its own child, through {parent!r}", where=where, remedy="remove one of the two"
            )
        if child not in self.groups[parent].children:
            self.groups[parent].children.append(child)
            self.groups[child].parents.append(parent)

    def _reconcile(self) -> None:
        """Put groups without a parent under ``all``; ``ungrouped`` gets exactly the hosts of no other group."""
        for group in self.groups.values():
            if group.name != "all" and not group.parents:
                self._link("all", group.name, group.where)
        ungrouped = self.groups["ungrouped"]
        others = [group for group in self.groups.values() if group.name not in {"all", "ungrouped"}]
        grouped = {host for group in others for host in group.hosts}
        ungrouped.hosts = {host: None for host in (*ungrouped.hosts, *self.hosts) if host not in grouped}


def _single_host(text: str, data: Marked, section: object) -> Marked:
    """The mapping that a section's plain text stands for: one name without content."""
    mapping = Marked(data.file, data.lines.get(section, data.line))
    mapping[text] = None
    return mapping


def _priority(setting: Setting) -> int:
    try:
        return int(setting.value)
    except (TypeError, ValueError):
        raise InventoryError(
            f"must be a whole number, got {setting.value!r}", where=setting.where, remedy="write it as 10"
        ) from None


def _not_a_mapping(what: str, got: object, where: str) -> InventoryError:
    kind = "a list" if isinstance(got, list) else repr(got)
    return InventoryError(
        f"{what} must be a mapping, got {kind}", where=where, remedy="write 'name:' on a line of its own for each entry"
    )
