"""Get from open hosts to a launch plan: facts, network, the same code on every host, one node each."""

from __future__ import annotations

import logging
import secrets as random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterddp.environments import install
from clusterddp.facts.gpu_assignment import worker_count
from clusterddp.launch import preflight
from clusterddp.launch.code_on_hosts import code_of, kept_code
from clusterddp.launch.make_plan import check_restarts, host_settings, make_plan, run_settings
from clusterddp.launch.make_record import run_record
from clusterddp.launch.script import check_synced, script_of
from clusterddp.launch.threads import with_threads
from clusterddp.probe.gather import survey_network
from clusterddp.remote.shared.run.node_env import Node
from clusterddp.remote.shared.run.unplaced_plan import choose_backend
from clusterddp.remote.shared.text.counted import counted
from clusterddp.remote.shared.workdir.workdir_names import FRESH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterddp.checks.evidence import NetworkSeen
    from clusterddp.checks.model import Check
    from clusterddp.facts.host import Facts
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import Inventory
    from clusterddp.launch.code_on_hosts import CodeOnHosts
    from clusterddp.launch.make_plan import LaunchPlan
    from clusterddp.launch.options import RunOptions
    from clusterddp.launch.overlap import Early
    from clusterddp.project.project import Project
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.remote.shared.run.run_settings import RunSettings
    from clusterddp.sync.project_files import Tree

_log = logging.getLogger("clusterddp")
_RUN_ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 characters that are not easily confused
_RUN_ID_LENGTH = 10  # 50 random bits


@dataclass(kw_only=True)
class Preparation:
    """A run between the opening of its hosts and its plan; each of ``STEPS`` adds the fields that the next read."""

    hosts: list[Host]  # those of the run, its spares last; from ``choose_hosts`` on ordered by member index
    spares: int  # how many of them are spares
    project: Project
    inventory: Inventory
    options: RunOptions
    notify: Callable[[str], None]
    progress: Callable[[str], None]
    early: Early  # the work begun while the hosts were connecting
    dry: bool  # whether to sync nothing

    checks: Sequence[Check] = field(init=False)
    script: str = field(init=False)
    settings: RunSettings = field(init=False)
    installed: Sequence[install.Installed] = field(init=False)
    answers: Mapping[str, Outcome[Facts]] = field(init=False)
    facts: Mapping[str, Facts] = field(init=False)
    devices: Mapping[str, tuple[str, ...] | None] = field(init=False)
    tree: Tree = field(init=False)
    run: str = field(init=False)
    code: CodeOnHosts = field(init=False)
    seen: NetworkSeen = field(init=False)
    network: Mapping[str, tuple[str, str]] = field(init=False)
    nodes: Sequence[Node] = field(init=False)
    record: RunRecord = field(init=False)
    plan: LaunchPlan = field(init=False)

    @property
    def workdir(self) -> str:
        """The name of the run's own workdir; empty for the project's."""
        return self.run if self.options.workdir == FRESH else self.options.workdir or ""

    @property
    def taking(self) -> Sequence[Node]:
        """The nodes that take part from the start."""
        return self.nodes[: len(self.nodes) - self.spares]


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
    """Take every step of ``STEPS``; return the plan and its hosts, ordered by member index. Raises ClusterddpError."""
    now = Preparation(
        hosts=[*hosts, *spares],
        spares=len(spares),
        project=project,
        inventory=inventory,
        options=options,
        notify=notify,
        progress=progress,
        early=early,
        dry=dry,
    )
    for step in STEPS:
        step(now)
    return now.plan, now.hosts


def read_options(now: Preparation) -> None:
    """Choose the checks, and find the script: what may be wrong in them is found before any host is asked."""
    now.checks = preflight.chosen(now.options)
    now.script = script_of(now.options, now.project)


def install_environments(now: Preparation) -> None:
    """Let the hosts have the environment of the project's lock, if they are to."""
    build, spread = not now.dry, now.options.spread
    now.installed = install.ensure(now.hosts, now.project, now.notify, now.progress, build=build, spread=spread)


def ask_facts(now: Preparation) -> None:
    """Get each host's facts, or why there are none."""
    now.progress(f"checking {counted(len(now.hosts), 'host')}")
    now.answers = now.early.facts(now.hosts)


def choose_hosts(now: Preparation) -> None:
    """Check each host alone; with ``nnodes``, leave out those that fail. Choose each one's GPUs."""
    outcomes, options, checks = now.answers, now.options, now.checks
    if options.nnodes is not None:
        first = len(now.hosts) - now.spares
        fitting = preflight.fitting(now.hosts[:first], outcomes, options, checks, now.notify)
        now.hosts = [*fitting, *now.hosts[first:]]
    now.facts, now.devices = preflight.admit_hosts(now.hosts, outcomes, options, checks, now.notify)


def scan_code(now: Preparation) -> None:
    """Get the code that is to run, and see that the script is in it."""
    now.tree = now.early.tree()
    check_synced(now.script, now.options, now.project, now.tree)


def bring_code(now: Preparation) -> None:
    """Bring the code to every host; meanwhile find out which networks connect them."""
    with ThreadPoolExecutor(1) as pool:
        surveying = pool.submit(survey_network, now.hosts, now.facts, growing=now.options.elastic, measured=False)
        now.progress("looking at the code there" if now.options.no_sync else "syncing")
        now.run = new_run_id()
        callbacks = (now.notify, now.progress)
        now.code = code_of(now.hosts, now.project, now.tree, now.options, now.workdir, *callbacks, dry=now.dry)
        now.seen = surveying.result()


def choose_network(now: Preparation) -> None:
    """Check the network between the hosts; choose each one's interface and address."""
    more = (now.options, now.checks, now.notify, now.seen)
    now.network = preflight.admit_network(now.hosts, now.answers, *more)


def name_code(now: Preparation) -> None:
    """Show which code and which environment the run has; keep a copy of the code in the project."""
    if not now.dry:
        now.notify(started_with(kept_code(now.project, now.tree, now.code.digest), now.installed))


def make_nodes(now: Preparation) -> None:
    """Build each host's node, and choose the rendezvous that all of them support."""
    nodes = [_node(now, host) for host in now.hosts]
    backend = backend_for(now.options.rdzv_backend, now.hosts, now.facts, now.options.max_restarts)
    now.settings = run_settings(now.options, backend)
    now.nodes = with_threads(nodes, now.facts, now.options.env)


def _node(now: Preparation, host: Host) -> Node:
    facts, devices, network = now.facts[host.name], now.devices[host.name], now.network[host.name]
    count = now.options.nproc_per_node or worker_count(host.entry, facts, devices)
    workdir = now.code.workdirs[host.name]
    cwd = f"{workdir}/{now.project.subfolder}" if now.project.subfolder else workdir
    _log.debug("%s: workers: %d; between the hosts: %s (%s); workdir %s", host.name, count, *network, workdir)
    node = node_of(host, facts, network, count, devices, workdir, cwd, now.run)
    settings = node.settings._replace(fork_server=node.settings.fork_server and not now.options.no_fork_server)
    node = node._replace(settings=settings)
    return install.with_source(node, host, now.project)


def make_record(now: Preparation) -> None:
    """Write down what tells the run from others, and what it takes to repeat it."""
    about = (now.run, now.project, now.inventory, now.options, now.tree, now.code.digest)
    now.record = run_record(*about, now.hosts, now.taking, now.facts)._replace(
        environment=install.digest_of(now.installed),
        workdir=now.workdir or None,
        workdirs={node.host: node.workdir for node in now.nodes},
        own_data=now.code.standing,
    )


def complete_plan(now: Preparation) -> None:
    """Put all together; if it repeats a run, refuse it where the job would notice a difference."""
    waiting = now.nodes[len(now.taking) :]
    now.plan = make_plan(
        run=now.run,
        nodes=now.taking,
        spares=waiting,
        options=now.options,
        settings=now.settings,
        script=now.script,
        record=now.record,
    )
    for notice in now.early.repeat.check(now.plan.record) if now.early.repeat else ():
        now.notify(notice)


STEPS = (
    read_options,
    install_environments,
    ask_facts,
    choose_hosts,
    scan_code,
    bring_code,
    choose_network,
    name_code,
    make_nodes,
    make_record,
    complete_plan,
)


def started_with(code: str, installed: Sequence[install.Installed]) -> str:
    """Describe code and environment: ``code 3f9a2c (2 files changed), environment 4be1``."""
    environment = install.digest_of(installed)
    return f"{code}, environment {environment[: install.SHOWN]}" if environment else code


def new_run_id() -> str:
    """Return a random, unique run id."""
    return "".join(random.choice(_RUN_ID_ALPHABET) for _ in range(_RUN_ID_LENGTH))


def backend_for(wanted: str, hosts: Sequence[Host], facts: Mapping[str, Facts], max_restarts: int = 0) -> str:
    """Choose the rendezvous backend that these hosts support; raises PlanError."""
    torches = {host.name: facts[host.name].torch for host in hosts}
    versions = {name: torch.version if torch else "" for name, torch in torches.items()}
    backend = choose_backend(wanted, list(versions.values()), [host.hello.state for host in hosts])
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
        env=host.entry.env,
        secrets=host.entry.secrets,
        settings=host_settings(host.entry),
        workdir=workdir,
        cwd=cwd,
        run_dir=f"{host.hello.state}/rundirs/{run}-{host.name}",
        clock_offset_ns=facts.clock_offset_ns,
        clock_error_ns=facts.clock_error_ns,
        devices=None if devices is None else ",".join(devices),
    )
