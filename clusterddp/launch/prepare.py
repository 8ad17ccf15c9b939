"""Make a launch plan for open hosts: get their facts, choose the network, bring the same code to every host."""

from __future__ import annotations

import logging
import secrets as random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterddp.environments import install
from clusterddp.facts.gpu_assignment import worker_count
from clusterddp.launch import preflight
from clusterddp.launch.code_on_hosts import provide_code, save_code
from clusterddp.launch.make_plan import check_restarts, host_settings, make_plan, run_settings
from clusterddp.launch.make_record import run_record
from clusterddp.launch.script import check_synced
from clusterddp.launch.stall_limit import blind_notice, with_stall
from clusterddp.probe.gather import survey_network
from clusterddp.remote.shared.run.node_env import THREADS, Node
from clusterddp.remote.shared.run.unplaced_plan import choose_backend
from clusterddp.remote.shared.text.counted import counted
from clusterddp.remote.shared.workdir.workdir_names import FRESH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterddp.checks.evidence import NetworkEvidence
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
    from clusterddp.runs.run_on_hosts import Site
    from clusterddp.sync.project_files.project_tree import Tree

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
    settings: RunSettings = field(init=False)
    installed: Sequence[install.Installed] = field(init=False)
    answers: Mapping[str, Outcome[Facts]] = field(init=False)
    facts: Mapping[str, Facts] = field(init=False)
    devices: Mapping[str, tuple[str, ...] | None] = field(init=False)
    tree: Tree = field(init=False)
    run: str = field(init=False)
    code: CodeOnHosts = field(init=False)
    tried: NetworkEvidence | None = field(init=False, default=None)  # a survey of ``hosts`` made to choose them
    survey: NetworkEvidence = field(init=False)
    network: Mapping[str, tuple[str, str]] = field(init=False)
    nodes: Sequence[Node] = field(init=False)
    record: RunRecord = field(init=False)
    plan: LaunchPlan = field(init=False)

    @property
    def workdir(self) -> str:
        """Return the name of the run's own workdir; empty for the project's."""
        return self.run if self.options.workdir == FRESH else self.options.workdir or ""

    @property
    def participants(self) -> Sequence[Node]:
        """Return the nodes that take part from the start."""
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
    prep = Preparation(
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
        step(prep)
    return prep.plan, prep.hosts


def read_options(prep: Preparation) -> None:
    """Choose checks and stall guard: what may be wrong in them is found before any host is asked."""
    prep.options = with_stall(prep.options, [host.entry for host in prep.hosts])
    prep.checks = preflight.choose_checks(prep.options)


def install_environments(prep: Preparation) -> None:
    """Install the environment of the project's lock file on the hosts that are to have it."""
    build, spread = not prep.dry, prep.options.spread
    prep.installed = install.ensure(prep.hosts, prep.project, prep.notify, prep.progress, build=build, spread=spread)


def ask_facts(prep: Preparation) -> None:
    """Get each host's facts, or the error why there are none."""
    prep.progress(f"checking {counted(len(prep.hosts), 'host')}")
    prep.answers = prep.early.facts(prep.hosts)


def choose_hosts(prep: Preparation) -> None:
    """Check each host alone; with ``nnodes``, leave out those that fail. Choose each one's GPUs."""
    outcomes, options, checks = prep.answers, prep.options, prep.checks
    if options.nnodes is not None:
        first = len(prep.hosts) - prep.spares
        fitting, tried = preflight.fitting_hosts(prep.hosts[:first], outcomes, options, checks, prep.notify)
        prep.hosts = [*fitting, *prep.hosts[first:]]
        prep.tried = None if prep.spares else tried
    prep.facts, prep.devices = preflight.admit_hosts(prep.hosts, outcomes, options, checks, prep.notify)


def scan_code(prep: Preparation) -> None:
    """Get the project's files, and check that the script is among them."""
    prep.tree = prep.early.tree()
    check_synced(prep.options, prep.project, prep.tree)


def bring_code(prep: Preparation) -> None:
    """Bring the code to every host; meanwhile find out which networks connect them, if that is not known yet."""
    with ThreadPoolExecutor(1) as pool:
        surveying = pool.submit(_survey, prep)
        prep.progress("looking at the code there" if prep.options.no_sync else "syncing")
        prep.run = new_run_id()
        callbacks = (prep.notify, prep.progress)
        prep.code = provide_code(
            prep.hosts, prep.project, prep.tree, prep.options, prep.workdir, *callbacks, dry=prep.dry
        )
        prep.survey = surveying.result()


def _survey(prep: Preparation) -> NetworkEvidence:
    return prep.tried or survey_network(prep.hosts, prep.facts, growing=prep.options.elastic, measured=False)


def choose_network(prep: Preparation) -> None:
    """Check the network between the hosts; choose each one's interface and address."""
    more = (prep.options, prep.checks, prep.notify, prep.survey)
    prep.network = preflight.admit_network(prep.hosts, prep.answers, *more)


def show_code(prep: Preparation) -> None:
    """Show which code and which environment the run has; keep a copy of the code in the project."""
    if not prep.dry:
        prep.notify(describe_code(save_code(prep.project, prep.tree, prep.code.digest), prep.installed))


def make_nodes(prep: Preparation) -> None:
    """Build each host's node, and choose the rendezvous that all of them support."""
    nodes = [_make_node(prep, host) for host in prep.hosts]
    backend = backend_for(prep.options.rdzv_backend, prep.hosts, prep.facts, prep.options.max_restarts)
    notice = blind_notice(prep.options, torch_versions(prep.hosts, prep.facts))
    if notice:
        prep.notify(notice)
    prep.settings = run_settings(prep.options, backend)
    prep.nodes = with_threads(nodes, prep.facts, prep.options.env)


def _make_node(prep: Preparation, host: Host) -> Node:
    """Return a host's node, with its number of workers, folders and settings."""
    facts, devices, network = prep.facts[host.name], prep.devices[host.name], prep.network[host.name]
    count = prep.options.nproc_per_node or worker_count(host.entry, facts, devices)
    workdir = prep.code.workdirs[host.name]
    cwd = f"{workdir}/{prep.project.subfolder}" if prep.project.subfolder else workdir
    _log.debug("%s: workers: %d; between the hosts: %s (%s); workdir %s", host.name, count, *network, workdir)
    node = node_of(host, facts, network, count, devices, workdir, cwd, prep.run)
    node = started_plainly(node) if prep.options.no_fork_server else node
    return install.with_source(node, host, prep.project)


def started_plainly(node: Node) -> Node:
    """Return the node with its fork server switched off, as ``--no-fork-server`` asks."""
    return node._replace(settings=node.settings._replace(fork_server=False))


def make_record(prep: Preparation) -> None:
    """Make the record that identifies the run and suffices to repeat it."""
    arguments = (prep.run, prep.project, prep.inventory, prep.options, prep.tree, prep.code.digest)
    prep.record = run_record(*arguments, prep.hosts, prep.participants, prep.facts)._replace(
        environment=install.digest_of(prep.installed),
        workdir=prep.workdir or None,
        workdirs={node.host: node.workdir for node in prep.nodes},
        own_data=prep.code.own_data,
    )


def complete_plan(prep: Preparation) -> None:
    """Make the plan; if it repeats a run, refuse a difference that the job would notice."""
    waiting = prep.nodes[len(prep.participants) :]
    prep.plan = make_plan(
        run=prep.run,
        nodes=prep.participants,
        spares=waiting,
        options=prep.options,
        settings=prep.settings,
        record=prep.record,
    )
    for notice in prep.early.repeat.check(prep.plan.record) if prep.early.repeat else ():
        prep.notify(notice)


STEPS = (
    read_options,
    install_environments,
    ask_facts,
    choose_hosts,
    scan_code,
    bring_code,
    choose_network,
    show_code,
    make_nodes,
    make_record,
    complete_plan,
)


def use_environments(hosts: Sequence[Host], site: Site) -> None:
    """Use the interpreters of the hosts' environments as a run would, built or not; nothing is built.

    No step of a run: the doctor does it in place of ``install_environments``.
    """
    install.adopt(hosts, site.project, site.progress)


def describe_code(code: str, installed: Sequence[install.Installed]) -> str:
    """Describe code and environment: ``code 3f9a2c (2 files changed), environment 4be1``."""
    digest = install.digest_of(installed)
    return f"{code}, environment {digest[: install.SHOWN_DIGITS]}" if digest else code


def new_run_id() -> str:
    """Return a random, unique run id."""
    return "".join(random.choice(_RUN_ID_ALPHABET) for _ in range(_RUN_ID_LENGTH))


def backend_for(requested: str, hosts: Sequence[Host], facts: Mapping[str, Facts], max_restarts: int = 0) -> str:
    """Choose the rendezvous backend that these hosts support; raises PlanError."""
    versions = torch_versions(hosts, facts)
    backend = choose_backend(requested, list(versions.values()), [host.hello.state for host in hosts])
    check_restarts(max_restarts, backend, versions)
    why = "asked for" if requested != "auto" else f"torch of the hosts: {', '.join(sorted(set(versions.values())))}"
    _log.debug("rendezvous %s (%s)", backend, why)
    return backend


def torch_versions(hosts: Sequence[Host], facts: Mapping[str, Facts]) -> dict[str, str]:
    """Return the version of each host's torch; empty where it is not known."""
    torches = {host.name: facts[host.name].torch for host in hosts}
    return {name: torch.version if torch else "" for name, torch in torches.items()}


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


def with_threads(nodes: Sequence[Node], facts: Mapping[str, Facts], env: Mapping[str, str]) -> list[Node]:
    """Set each node's threads per worker to its share of the cores, at least 1; nodes on one machine share its cores.

    torchrun sets 1 on a host with several workers, with a warning on every host, and nothing on a host with one. A
    value set by the user, the inventory, the host or a setup line is kept: the plan passes it on.

    ``facts`` are by host name; ``env`` are the variables that the user sets for all hosts.
    """
    workers: dict[str, int] = {}
    for node in nodes:
        boot = facts[node.host].boot
        workers[boot] = workers.get(boot, 0) + node.nproc
    return [_with_share(node, facts[node.host], workers[facts[node.host].boot], env) for node in nodes]


def _with_share(node: Node, facts: Facts, workers: int, env: Mapping[str, str]) -> Node:
    """Set a node's threads; ``workers`` is the number on its machine. Log where the value comes from."""
    share = max(1, facts.usable_cores // workers)
    if THREADS in env:
        why, value = "by the command", env[THREADS]
    elif facts.omp_num_threads is not None:
        why, value = "by clusterddp_env, a setup line or the host", facts.omp_num_threads
    else:
        why, value = f"cores that may be used: {facts.usable_cores}; workers there: {workers}", str(share)
    _log.debug("%s: %s=%s (%s)", node.host, THREADS, value, why)
    return node._replace(threads=share)
