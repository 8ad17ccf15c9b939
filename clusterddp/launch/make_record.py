"""Make the record that a run keeps of itself: enough to tell it from others, and to start it again unchanged."""

from __future__ import annotations

import getpass
import os
import socket
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import clusterddp
from clusterddp.launch.options import RunOptions
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.text.redaction import HIDDEN
from clusterddp.remote.shared.text.secret_names import is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.facts.host import Facts
    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry, Inventory
    from clusterddp.project.project import Project
    from clusterddp.remote.shared.run.node_env import Node
    from clusterddp.sync.project_files.project_tree import Tree

# Options that a record holds in fields of their own; ``take`` is a choice for one start, and is not kept.
RECORD_FIELDS = frozenset({"script", "args", "module", "name", "limit", "again", "take"})
_MAX_VALUE = 2000  # characters of a value


def operator() -> str:
    """Return the operator's name as runs record it: user@machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have a number alone
        user = f"uid{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def run_record(
    run: str,
    project: Project,
    inventory: Inventory,
    options: RunOptions,
    tree: Tree,
    code: str,
    hosts: Sequence[Host],
    nodes: Sequence[Node],
    facts: Mapping[str, Facts],
) -> RunRecord:
    """Return the record of a run on ``hosts``, of which ``nodes`` take part from the start and the rest are spares."""
    first = facts[nodes[0].host]
    record = record_without_hosts(run, project, inventory, options, tree, code)
    return record._replace(
        hosts=tuple(node.host for node in nodes),
        spares=tuple(host.name for host in hosts[len(nodes) :]),
        gpus={node.host: tuple(gpu.name for gpu in facts[node.host].gpus) for node in nodes},
        versions={
            **record.versions,
            "python": first.python_version,
            "torch": first.torch.version if first.torch else None,
            "nccl": first.torch.nccl if first.torch else None,
            "driver": _driver_versions([facts[node.host] for node in nodes]),
        },
        env=tuple(sorted({*options.env, *(name for node in nodes for name in node.env)})),
        variables=variables_of([host.entry for host in hosts], options.env),
        secrets=tuple(sorted({*options.secret, *(name for node in nodes for name in node.secrets)})),
    )


def record_without_hosts(
    run: str, project: Project, inventory: Inventory, options: RunOptions, tree: Tree, code: str
) -> RunRecord:
    """Return the part of a run's record that is known before its hosts are.

    Its inventory and limit find the run's hosts again from any folder, whoever chose them: an option, or `up`.
    """
    return RunRecord(
        hosts=(),
        run=run,
        name=options.name,
        script=options.script,
        module=options.module,
        argv=options.args,
        code=code,
        git=tree.git,
        operator=operator(),
        inventory=str(inventory.path.absolute()) if inventory.path else None,
        limit=options.limit or inventory.pattern or None,
        project=project.id,
        label=project.label,
        subfolder=project.subfolder,
        versions={"clusterddp": clusterddp.__version__},
        env=tuple(sorted(options.env)),
        secrets=tuple(sorted(options.secret)),
        options=options_record(options),
        max_restarts=options.max_restarts,
        relaunch=options.relaunch,
        nproc=options.nproc_per_node,
        on_disconnect=options.on_disconnect,
        started=time.time_ns(),
    )


def options_record(options: RunOptions) -> dict[str, Any]:
    """Return the non-default options as JSON; a variable that looks like a secret is recorded by name only."""
    chosen = {}
    for option in fields(RunOptions):
        value = getattr(options, option.name)
        default = {} if option.name == "env" else option.default
        if option.name not in RECORD_FIELDS and value != default:
            chosen[option.name] = list(value) if isinstance(value, tuple) else value
    if "nnodes" in chosen:
        chosen["nnodes"] = options.size
    if "env" in chosen:
        chosen["env"] = {name: None if is_secret(name, value) else value for name, value in options.env.items()}
    return chosen


def _driver_versions(facts: Sequence[Facts]) -> str | None:
    return ", ".join(sorted({gpu.driver for host_facts in facts for gpu in host_facts.gpus})) or None


def variables_of(hosts: Sequence[HostEntry], given: Mapping[str, str]) -> dict[str, str]:
    """Return the workers' variables set by user and inventory; if hosts differ, one text lists each host's value."""
    variables = {}
    names = {*given, *(name for host in hosts for name in host.env)} - {"VIRTUAL_ENV"}  # the environment's folder
    for name in sorted(names):
        values = {host.name: given.get(name, host.env.get(name, "")) for host in hosts}
        different = set(values.values())
        text = different.pop() if len(different) == 1 else " ".join(f"{host}={value}" for host, value in values.items())
        variables[name] = HIDDEN if is_secret(name, text) else text[:_MAX_VALUE]
    return variables
