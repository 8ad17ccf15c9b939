"""An inventory from a list of hosts on the command line: ``alice@gpu01,gpu02:2222,[::1]:22,n[01:04]``."""

from __future__ import annotations

from typing import Any

import yaml

from clusterddp.errors import InventoryError
from clusterddp.inventory import validate
from clusterddp.inventory.ranges import expand, split_port

_HEADER = "# Written by clusterddp up from a host list. An Ansible inventory: edit it as you like.\n"
_REMEDY = "write them as alice@gpu01,gpu02:2222"


def from_host_list(text: str) -> str:
    """The YAML inventory that a host list stands for.

    Args:
        text: ``[user@]host[:port]`` items with commas between; a host may be a range or an IPv6 address, the latter
            in brackets when a port follows.

    Raises:
        InventoryError: An item that is not a host, or a host given twice.
    """
    hosts: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, variables = _item(item)
        twice = seen.intersection(expand(name, item)[0])
        if twice:
            raise InventoryError(f"{min(twice)!r} is given twice", where=f"host list {text!r}", remedy="remove one")
        seen.update(expand(name, item)[0])
        hosts[name] = variables
    if not hosts:
        raise InventoryError(f"host list {text!r} names no host", remedy=_REMEDY)
    return _HEADER + yaml.safe_dump({"all": {"hosts": hosts}}, sort_keys=False, allow_unicode=True)


def _item(item: str) -> tuple[str, dict[str, Any]]:
    where = f"host list item {item!r}"
    user, at, rest = item.rpartition("@")
    bare = rest[1:-1] if rest.startswith("[") and rest.endswith("]") and rest.count(":") > 1 else rest
    found = split_port(bare)
    if found is None:
        raise InventoryError(f"{rest!r} is not a host name or address", where=where, remedy=_REMEDY)
    name, port = found
    for host in expand(name, where)[0]:
        validate.host_name(host, where)
    variables: dict[str, Any] = {}
    if at:
        variables["ansible_user"] = validate.user_name(user, where)
    if port is not None:
        if not 1 <= port <= 65535:
            raise InventoryError(f"port {port} is not from 1 to 65535", where=where, remedy=_REMEDY)
        variables["ansible_port"] = port
    return name, variables
