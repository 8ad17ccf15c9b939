"""Get from open hosts to a launch plan: facts, network, the same code on every host, one node each."""

from __future__ import annotations

import logging
import os
import secrets as random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.crash import hide
from clusterddp.environments import install
from clusterddp.errors import UsageError
from clusterddp.facts import workers
from clusterddp.launch import preflight
from clusterddp.launch.code_on_hosts import code_of, kept_code
from clusterddp.launch.make_plan import LaunchOptions, check_restarts, make_plan
from clusterddp.launch.make_record import run_record
from clusterddp.launch.script import check_synced, script_of
from clusterddp.launch.threads import with_threads
from clusterddp.probe.gather import survey_network
from clusterddp.remote.shared.run.node_env import Node
from clusterddp.remote.shared.run.unplaced_plan import choose_backend
from clusterddp.remote.shared.text.counted import counted
from clusterddp.remote.shared.workdir.workdir_names import FRESH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterddp.checks.model import Check
    from clusterddp.facts import Facts
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import Inventory
    from clusterddp.launch.make_plan import LaunchPlan
    from clusterddp.launch.options import RunOptions
    from clusterddp.launch.overlap import Early
    from clusterddp.project import Project

_log = logging.getLogger("clusterddp")
_RUN_ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 characters that are not easily confused
LEASE_TIME = 60.0  # seconds without an operator after which a run with --on-disconnect stop ends
_RUN_ID_LENGTH = 10  # 50 random bits


def prepare(
    hosts: Sequence[Host],
    spares: Sequence[Host],
    project: Project,
    inventory: Inventory,
    options: RunOptions,
    notify: Callable[[str], None],
    progress: Callable[[str], None],
    early: Early,
    *,
    dry: bool = False,
) -> tuple[LaunchPlan, list[Host]]:
    """Get facts, run the preflight, sync the code; return the plan and its hosts, ordered by member index.

    ``early``: the work begun while the hosts were connecting. ``dry``: sync nothing.

    Raises:
        ClusterddpError: A host cannot take part, the script is missing, or the code cannot be synced.
    """
    checks = preflight.chosen(options)
    wanted = launch_options(options, project)
    installed = install.ensure([*hosts, *spares], project, notify, progress, build=not dry, spread=options.spread)
    progress(f"checking {counted(len(hosts) + len(spares), 'host')}")
    told = early.facts([*hosts, *spares])
    hosts, facts, devices = _take_part(hosts, spares, told, options, checks, notify)
    tree = early.tree()
    check_synced(wanted.script, options, project, tree)
    with ThreadPoolExecutor(1) as pool:
        networking = pool.submit(survey_network, hosts, facts, growing=options.elastic, measured=False)
        progress("looking at the code there" if options.no_sync else "syncing")
        run = new_run_id()
        name = run if options.workdir == FRESH else options.workdir or ""
        there = code_of(hosts, project, tree, options, name, notify, progress, dry=dry)
        seen = networking.result()
    network = preflight.admit_network(hosts, told, options, checks, notify, seen)
    if not dry:
        notify(started_with(kept_code(project, tree, there.digest), installed))
    nodes = _nodes(hosts, facts, network, devices, there.workdirs, project, options, run)
    wanted = replace(wanted, rdzv_backend=backend_for(options.rdzv_backend, hosts, facts, options.max_restarts))
    nodes = with_threads(nodes, facts, options.env)
    taking, waiting = nodes[: len(nodes) - len(spares)], nodes[len(nodes) - len(spares) :]
    record = run_record(run, project, inventory, options, tree, there.digest, hosts, taking, facts)
    record = record._replace(
        environment=install.digest_of(installed),
        workdir=name or None,
        workdirs={node.host: node.workdir for node in nodes},
        own_data=there.standing,
    )
    plan = make_plan(run=run, nodes=taking, spares=waiting, options=wanted, record=record)
    for notice in early.repeat.check(plan.record) if early.repeat else ():
        notify(notice)
    return plan, hosts


def _nodes(
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    network: Mapping[str, tuple[str, str]],
    devices: Mapping[str, tuple[str, ...] | None],
    workdirs: Mapping[str, str],
    project: Project,
    options: RunOptions,
    run: str,
) -> list[Node]:
    """Return each host's node for the plan, in order."""
    nodes = []
    for host in hosts:
        count = options.nproc_per_node or workers(host.entry, facts[host.name], devices[host.name])
        workdir = workdirs[host.name]
        cwd = f"{workdir}/{project.subfolder}" if project.subfolder else workdir
        place = network[host.name]
        _log.debug("%s: workers: %d; between the hosts: %s (%s); workdir %s", host.name, count, *place, workdir)
        node = node_of(host, facts[host.name], place, count, devices[host.name], workdir, cwd, run)
        node = node._replace(fork_server=node.fork_server and not options.no_fork_server)
        nodes.append(install.with_source(node, host, project))
    return nodes


def started_with(code: str, installed: Sequence[install.Installed]) -> str:
    """Describe code and environment: ``code 3f9a2c (2 files changed), environment 4be1``."""
    environment = install.digest_of(installed)
    return f"{code}, environment {environment[: install.SHOWN]}" if environment else code


def launch_options(options: RunOptions, project: Project) -> LaunchOptions:
    """Convert a run's options to those of its plan."""
    return LaunchOptions(
        script=script_of(options, project),
        args=options.args,
        module=options.module,
        name=options.name,
        env=options.env,
        secrets=options.secret,
        max_restarts=options.max_restarts,
        elastic=options.nnodes if options.elastic else None,
        torchrun_args=options.torchrun_arg,
        pass_local_rank=options.pass_local_rank,
        debug_comm=options.debug_comm,
        grace=options.grace,
        time_limit=options.time_limit,
        relaunch=options.relaunch,
        lease=LEASE_TIME if options.on_disconnect == "stop" else None,
        log_limit=options.log_limit,
    )


def _take_part(
    hosts: Sequence[Host],
    spares: Sequence[Host],
    told: Mapping[str, Outcome[Facts]],
    options: RunOptions,
    checks: Sequence[Check],
    notify: Callable[[str], None],
) -> tuple[list[Host], dict[str, Facts], dict[str, tuple[str, ...] | None]]:
    """Return the hosts of the run ordered by member index, their facts, and their GPUs."""
    if options.nnodes is not None:
        hosts = preflight.fitting(hosts, told, options, checks, notify)
    hosts = [*hosts, *spares]
    return hosts, *preflight.admit_hosts(hosts, told, options, checks, notify)


def new_run_id() -> str:
    """Return a random, unique run id."""
    return "".join(random.choice(_RUN_ID_ALPHABET) for _ in range(_RUN_ID_LENGTH))


def secret_values(names: Iterable[str]) -> dict[str, str]:
    """Return the values of secrets from this process's environment, and hide them in crash files.

    Raises:
        UsageError: One is not set.
    """
    wanted = sorted(set(names))
    for name in wanted:
        if name not in os.environ:
            raise UsageError(f"--secret {name}: it is not set in this environment", remedy=f"export {name} first")
    found = {name: os.environ[name] for name in wanted}
    hide(found.values())
    return found


def backend_for(wanted: str, hosts: Sequence[Host], facts: Mapping[str, Facts], max_restarts: int = 0) -> str:
    """Choose the rendezvous backend that these hosts support.

    Raises:
        PlanError: The backend cannot do what was requested.
    """
    torches = {host.name: facts[host.name].torch for host in hosts}
    versions = {name: torch.version if torch else "" for name, torch in torches.items()}
    backend = choose_backend(wanted, list(versions.values()), [str(host.hello["state"]) for host in hosts])
    check_restarts(max_restarts, backend, versions)
    why = "asked for" if wanted != "auto" else f"torch of the hosts: {', '.join(sorted(set(versions.values())))}"
    _log.debug("rendezvous %s (%s)", backend, why)
    return backend


def node_of(
    host: Host,
    facts: Facts,
    network: tuple[str, str],
    nproc: int,
    devices: tuple[str, ...] | None,
    workdir: str,
    cwd: str,
    run: str,
) -> Node:
    """Build a host's node for the plan."""
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
        fork_server=host.entry.fork_server,
        carry=host.entry.carry,
        warm=host.entry.warm,
        preload=host.entry.preload,
    )
