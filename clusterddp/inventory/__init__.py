"""Inventories: reads Ansible's YAML format into immutable values.

Entry points are ``load(path)``, ``built_in()`` and ``from_host_list(text)``; the results are :class:`Inventory` and
:class:`HostEntry`. The steps from file to value: yamlfile (with line numbers) → tree (groups, hosts) + varsfiles →
merge → read_host (variables) → values.
"""

from __future__ import annotations

from clusterddp.inventory.ansiblecfg import ansible_cfg_notices
from clusterddp.inventory.hostlist import difference, from_host_list, variables_of, was_edited
from clusterddp.inventory.load import built_in, built_in_path, load, with_own_python
from clusterddp.inventory.read_host import entry_of
from clusterddp.inventory.values import Inventory
from clusterddp.inventory.variables.reader import ForeignInventory
from clusterddp.inventory.variables.variable_table import HostEntry

__all__ = [
    "ForeignInventory",
    "HostEntry",
    "Inventory",
    "ansible_cfg_notices",
    "built_in",
    "built_in_path",
    "difference",
    "entry_of",
    "from_host_list",
    "load",
    "variables_of",
    "was_edited",
    "with_own_python",
]
