"""From open hosts to a launch plan: facts, network, the same code on every host, one node each.

Not here: opening connections (api.py) and starting what was planned (launchers/).
"""

from __future__ import annotations

import getpass
import os
import secrets as random
import shlex
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clusterddp
from clusterddp import sync
from clusterddp.errors import ClusterddpError, HostsError, InventoryError, PlanError, SyncError, UsageError
from clusterddp.facts import assign_gpus, check_gpus, check_torch, workers
from clusterddp.fanout import values
from clusterddp.plan import LaunchOptions, Node, make_plan, predicted_ranks
from clusterddp.probe import probe, probe_network
from clusterddp.tree import scan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterddp.facts import Facts
    from clusterddp.fanout import Host, Outcome
    from clusterddp.inventory import HostEntry, Inventory
    from clusterddp.plan import LaunchPlan
    from clusterddp.project import Project
    from clusterddp.tree import Tree

_RUN_ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 letters that cannot be mistaken for one another
_RUN_ID_LENGTH = 10  # 50 random bits


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """What a user can say about a run.

    Attributes:
        script: Path in the project; with ``module`` a module's name.
        args: The script's arguments, untouched.
        module: Run it as ``python -m``.
        name: The run's name.
        nnodes: Use the first so many nodes that can be reached; None is all, and each must be.
        nproc: Workers a host; None leaves it to the inventory and the GPUs.
        gpus: ``all``, ``free``, ``free:N`` or indices; None leaves it to the inventory.
        share_gpus: Nodes may take the same GPUs.
        env: Variables for all workers; above the inventory's.
        secrets: Names of variables of ours whose values workers get; they are written nowhere else.
        time_limit: Seconds.
        max_restarts: How often torchrun starts failed workers again.
        rdzv_backend: torchrun's.
        torchrun_args: More options for torchrun.
        debug_comm: Let NCCL and torch tell what they do.
        no_doctor: Do not refuse hosts whose GPUs are not what they seem.
        no_sync: Use what is on the hosts.
        sync_limit: Bytes that a sync may hold; None is the default.
        limit: The host pattern that chose the hosts, for the record.
    """

    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    name: str | None = None
    nnodes: int | None = None
    nproc: int | None = None
    gpus: str | None = None
    share_gpus: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    time_limit: float | None = None
    max_restarts: int = 0
    rdzv_backend: str = "c10d"
    torchrun_args: tuple[str, ...] = ()
    debug_comm: bool = False
    no_doctor: bool = False
    no_sync: bool = False
    sync_limit: int | None = None
    limit: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostReport:
    """A node as ``up`` shows it; ``ranks`` is the first and the last it would hold."""

    host: str
    facts: Facts
    interface: str
    address: str
    nproc: int
    ranks: tuple[int, int]


def report(hosts: Sequence[Host], *, fresh: bool) -> list[HostReport]:
    """What each node is, and what it would hold.

    Raises:
        HostsError, PlanError: hosts cannot be asked, or cannot train; names each.
    """
    facts = _facts(hosts, fresh=fresh, stated=False)
    network = probe_network(hosts, facts)
    devices = assign_gpus([(host.entry, facts[host.name]) for host in hosts])
    counts = {host.name: workers(host.entry, facts[host.name], devices[host.name]) for host in hosts}
    nodes = [_node(host, facts[host.name], network[host.name], counts[host.name], None, "", "", "") for host in hosts]
    ranks = predicted_ranks(nodes)
    return [
        HostReport(
            host=host.name,
            facts=facts[host.name],
            interface=network[host.name][0],
            address=network[host.name][1],
            nproc=counts[host.name],
            ranks=ranks[host.name],
        )
        for host in hosts
    ]


def nodes(inventory: Inventory) -> tuple[HostEntry, ...]:
    """The hosts that a run takes.

    Raises:
        InventoryError: there is none.
    """
    if not inventory.nodes:
        message = "no host takes part: each has a clusterddp_role other than node"
        raise InventoryError(message, where=str(inventory.path or ""), remedy="give one clusterddp_role: node")
    return inventory.nodes


def take(outcomes: Sequence[Outcome[Host]], options: RunOptions, notify: Callable[[str], None]) -> list[Host]:
    """The hosts that take part: all, or with ``nnodes`` the first so many that answer.

    Raises:
        PlanError: fewer answer than are wanted.
        HostError, HostsError: a host does not answer; the remedy says how to go on without it.
    """
    failed = [outcome for outcome in outcomes if outcome.error]
    answering = [outcome.get() for outcome in outcomes if not outcome.error]
    slurm = next(
        (outcome.name for outcome in outcomes if outcome.value and outcome.value.entry.launcher == "slurm"), None
    )
    if slurm:
        raise UsageError(f"{slurm}: clusterddp_launcher: slurm is not there yet", remedy="leave it out: ssh serves")
    if options.nnodes is None:
        if failed:
            raise _without(failed)
        return answering
    if options.nnodes > len(outcomes):
        raise UsageError(f"--nnodes {options.nnodes}: the inventory has {len(outcomes)} nodes", remedy="ask for fewer")
    if len(answering) < options.nnodes:
        raise PlanError(f"{len(answering)} of {options.nnodes} nodes answer: {failed[0].error}")
    for outcome in failed:
        notify(f"left out: {outcome.error}")
    spare = [host.name for host in answering[options.nnodes :]]
    if spare:
        notify(f"not used: {', '.join(spare)}")
    return answering[: options.nnodes]


def _without(failed: Sequence[Outcome[Host]]) -> ClusterddpError:
    pattern = "all" + "".join(f":!{outcome.name}" for outcome in failed)
    errors = [outcome.error for outcome in failed if outcome.error]
    for error in errors:
        error.remedy = f"{error.remedy + '; or ' if error.remedy else ''}go on without: --limit {shlex.quote(pattern)}"
    return errors[0] if len(errors) == 1 else HostsError(errors)


def prepare(
    hosts: Sequence[Host],
    project: Project,
    inventory: Inventory,
    options: RunOptions,
    notify: Callable[[str], None],
    progress: Callable[[str], None],
    *,
    dry: bool = False,
) -> LaunchPlan:
    """Facts, network and code, then the plan. A ``dry`` one syncs nothing.

    Raises:
        ClusterddpError: a host cannot take part, the script is not there, or the code cannot be synced.
    """
    wanted = LaunchOptions(
        script=_script(options, project),
        args=options.args,
        module=options.module,
        name=options.name,
        env=options.env,
        secrets=options.secrets,
        max_restarts=options.max_restarts,
        rdzv_backend=options.rdzv_backend,
        torchrun_args=options.torchrun_args,
        debug_comm=options.debug_comm,
        time_limit=options.time_limit,
    )
    progress(f"checking {len(hosts)} hosts")
    with ThreadPoolExecutor(2) as pool:
        scanning = pool.submit(scan, project, options.sync_limit)
        facts = _facts(hosts, fresh=False, stated=options.nproc is not None or options.no_doctor)
        tree = scanning.result()
        _check_in_tree(wanted, options, project, tree)
        networking = pool.submit(probe_network, hosts, facts)
        progress("looking at the code there" if options.no_sync else "syncing")
        workdirs, code = _code(hosts, project, tree, options, notify, dry=dry)
        network = networking.result()
    devices = assign_gpus([(h.entry, facts[h.name]) for h in hosts], options.gpus, share=options.share_gpus)
    run = new_run_id()
    nodes = []
    for host in hosts:
        count = options.nproc or workers(host.entry, facts[host.name], devices[host.name])
        workdir = workdirs[host.name]
        cwd = f"{workdir}/{project.subfolder}" if project.subfolder else workdir
        place = network[host.name]
        nodes.append(_node(host, facts[host.name], place, count, devices[host.name], workdir, cwd, run))
    record = _record(run, project, inventory, options, tree, code, nodes, facts)
    return make_plan(run=run, attempt=1, nodes=nodes, options=wanted, record=record)


def new_run_id() -> str:
    """A run id that nobody else has."""
    return "".join(random.choice(_RUN_ID_ALPHABET) for _ in range(_RUN_ID_LENGTH))


def secret_values(plan: LaunchPlan) -> dict[str, str]:
    """The values of the secrets that the plan names, from this process's environment.

    Raises:
        UsageError: one is not set.
    """
    names = {*plan.options.secrets, *(name for node in plan.nodes for name in node.secrets)}
    for name in sorted(names):
        if name not in os.environ:
            raise UsageError(f"--secret {name}: it is not set in this environment", remedy=f"export {name} first")
    return {name: os.environ[name] for name in names}


def _facts(hosts: Sequence[Host], *, fresh: bool, stated: bool) -> dict[str, Facts]:
    found = {host.name: facts for host, facts in zip(hosts, values(probe(hosts, fresh=fresh)), strict=True)}
    pairs = [(host.entry, found[host.name]) for host in hosts]
    wrong = check_torch(pairs) or check_gpus(pairs, stated=stated)
    if len(wrong) == 1:
        raise PlanError(wrong[0])
    if wrong:
        raise HostsError([PlanError(line) for line in wrong])
    return found


def _node(
    host: Host,
    facts: Facts,
    network: tuple[str, str],
    nproc: int,
    devices: tuple[str, ...] | None,
    workdir: str,
    cwd: str,
    run: str,
) -> Node:
    return Node(
        host=host.name,
        nproc=nproc,
        address=network[1],
        interface=network[0],
        python=facts.python or "",
        setup=host.entry.setup,
        env=host.entry.env,
        secrets=host.entry.secrets,
        ports=host.entry.ports,
        workdir=workdir,
        cwd=cwd,
        run_dir=f"{host.hello['state']}/rundirs/{run}-{host.name}",
        clock_offset_ns=facts.clock_offset_ns,
        clock_error_ns=facts.clock_error_ns,
        devices=None if devices is None else ",".join(devices),
    )


def _script(options: RunOptions, project: Project) -> str:
    """The script as the workers' cwd sees it: the same relative path, never an absolute one of ours.

    Raises:
        UsageError: it is not there, not readable, or outside the project.
    """
    if options.module and (not options.script or "/" in options.script or options.script.endswith(".py")):
        raise UsageError(f"-m {options.script!r} is no module's name", remedy="write it as pkg.train, or leave -m out")
    if options.module or options.no_sync:
        return options.script
    cwd = project.root / project.subfolder
    path = cwd / options.script
    if not path.is_file():
        what = "is a folder" if options.script and path.is_dir() else "is not there"
        raise UsageError(f"script {options.script or repr('')} {what}", remedy=f"paths are relative to {cwd}")
    if not os.access(path, os.R_OK):
        raise UsageError(f"script {options.script} cannot be read", remedy="chmod u+r it")
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - a link stays the name the user gave
    if not absolute.is_relative_to(project.root):
        raise UsageError(
            f"script {options.script} is outside the project {project.root}", remedy="start from the folder it is in"
        )
    return os.path.relpath(absolute, cwd)


def _check_in_tree(wanted: LaunchOptions, options: RunOptions, project: Project, tree: Tree) -> None:
    if wanted.module or options.no_sync:
        return
    inside = os.path.normpath(os.path.join(project.subfolder, wanted.script))  # noqa: PTH118 - a path on hosts
    if not any(entry.path == inside for entry in tree.entries):
        why = next((item.reason for item in tree.skipped if item.path == inside), "git ignores it")
        raise SyncError(f"script {inside} would not be synced: {why}", remedy="take it out of .gitignore")


def _code(
    hosts: Sequence[Host],
    project: Project,
    tree: Tree,
    options: RunOptions,
    notify: Callable[[str], None],
    *,
    dry: bool,
) -> tuple[dict[str, str], str]:
    """Each host's workdir, and the digest of the code there."""
    if options.no_sync or dry:
        found = sync.look(hosts, workdir=project.workdir)
        digests = {host.digest for host in found}
        return {host.name: host.workdir for host in found}, digests.pop() if len(digests) == 1 else ""
    result = sync.sync(hosts, tree, workdir=project.workdir, subfolder=project.subfolder)
    for notice in (*tree.notices, *result.notices):
        notify(notice)
    return dict(result.workdirs), result.digest


def _record(
    run: str,
    project: Project,
    inventory: Inventory,
    options: RunOptions,
    tree: Tree,
    code: str,
    nodes: Sequence[Node],
    facts: Mapping[str, Facts],
) -> dict[str, Any]:
    """What the run writes down of itself; ``runs`` tells runs apart by it. Names of variables, never values."""
    first = facts[nodes[0].host]
    return {
        "run": run,
        "name": options.name,
        "script": options.script,
        "module": options.module,
        "argv": list(options.args),
        "code": code,
        "git": tree.git,
        "operator": f"{getpass.getuser()}@{socket.gethostname()}",
        "inventory": str(inventory.path) if inventory.path else None,
        "limit": options.limit,
        "project": project.id,
        "label": project.label,
        "hosts": [node.host for node in nodes],
        "gpus": {node.host: [gpu.name for gpu in facts[node.host].gpus] for node in nodes},
        "versions": {
            "clusterddp": clusterddp.__version__,
            "python": first.python_version,
            "torch": first.torch.version if first.torch else None,
            "nccl": first.torch.nccl if first.torch else None,
        },
        "env": sorted({*options.env, *(name for node in nodes for name in node.env)}),
        "secrets": sorted({*options.secrets, *(name for node in nodes for name in node.secrets)}),
        "max_restarts": options.max_restarts,
        "started": time.time_ns(),
    }
