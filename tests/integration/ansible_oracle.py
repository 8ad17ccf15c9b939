"""What ansible-core makes of an inventory: a program that answers one JSON line for each JSON line it reads.

Asked: ``{"path": …, "patterns": […]}``. Answered: ``{"order": […], "vars": {host: {…}}, "groups": {host: […]},
"selected": {pattern: [host, …] or null}, "limited": {pattern: [host, …] or null}}``.
It takes the steps of ``ansible-inventory --list``, without paying its start for every inventory.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ansible.cli.inventory import InventoryCLI  # type: ignore[import-untyped]
from ansible.errors import AnsibleError  # type: ignore[import-untyped]
from ansible.inventory.manager import InventoryManager  # type: ignore[import-untyped]
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.vars.manager import VariableManager  # type: ignore[import-untyped]


def _answer(path: str, patterns: list[str]) -> dict[str, Any]:
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[path])
    variables = VariableManager(loader=loader, inventory=inventory)
    hosts = inventory.get_hosts("all")
    return {
        "order": [host.name for host in hosts],
        "vars": {
            host.name: InventoryCLI._remove_internal(
                dict(variables.get_vars(host=host, include_hostvars=False, stage="all"))
            )
            for host in hosts
        },
        "groups": {host.name: host.get_magic_vars()["group_names"] for host in hosts},
        "selected": {pattern: _selected(inventory, pattern) for pattern in patterns},
        "limited": {pattern: _limited(inventory, pattern) for pattern in patterns},
    }


def _selected(inventory: InventoryManager, pattern: str) -> list[str] | None:
    try:
        return [host.name for host in inventory.get_hosts(pattern)]
    except (AnsibleError, IndexError):  # the latter for a lone ! or &
        return None


def _limited(inventory: InventoryManager, pattern: str) -> list[str] | None:
    try:
        inventory.subset(pattern)
        return [host.name for host in inventory.get_hosts("all")]
    except (AnsibleError, IndexError):  # the latter for a lone ! or &
        return None
    finally:
        inventory.subset(None)


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        answer = _answer(asked["path"], asked["patterns"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
