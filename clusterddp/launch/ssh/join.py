"""Let hosts join a running elastic run: give them the run's code, plan and key, then start a supervisor on each.

The supervisors of the run learn of it from the joining host itself (remote/control/membership.py).
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterddp.environments import install
from clusterddp.errors import ClusterddpError, HostError, PlanError, RunError, SyncError
from clusterddp.facts.gpu_assignment import worker_count
from clusterddp.hosts.ask import ask, reading_answer
from clusterddp.launch import preflight
from clusterddp.launch.make_plan import LOOPBACK
from clusterddp.launch.options import RunOptions, option_values
from clusterddp.launch.prepare import node_of, started_plainly, with_threads
from clusterddp.launch.ssh.over_ssh import NAME, start_node
from clusterddp.probe.dial_hosts import probe
from clusterddp.probe.gather import survey_network
from clusterddp.remote.shared.run.plan import Peer, joined_plan, with_peer
from clusterddp.remote.shared.run.spool_records import Ready
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.schema.record import record_in, to_fields
from clusterddp.remote.shared.supervisor.start_records import (
    Claimed,
    ClaimRequest,
    CommitRequest,
    Invitation,
    InviteRequest,
)
from clusterddp.remote.shared.text.counted import counted
from clusterddp.sync import send_code
from clusterddp.sync.project_files.project_tree import scan
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterddp.facts.host import Facts
    from clusterddp.hosts.client import Host
    from clusterddp.project.project import Project
    from clusterddp.remote.shared.run.plan import NodePlan
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.runs.run import Run
    from clusterddp.runs.run_on_hosts import Site


_MAX_SECRETS = 10_000
# What a run tells of its nodes is by their hosts' names, so no name may be in it twice.
_LOST_STAYS_OUT = "one that was lost from it does not come back, but leaves its place to another host"


def invitation(guide: Host, spool: str) -> Invitation:
    """Ask a host of the run, whose ``spool`` is there, for what a joining host needs."""
    answer = guide.call("invite", to_fields(InviteRequest(spool)))
    with reading_answer(guide.name):
        return read_invitation(answer)


def read_invitation(answer: Any) -> Invitation:
    """Decode an invitation; ``ValueError`` if it is damaged."""
    return record_in(Fields(answer, most=_MAX_SECRETS), Invitation)


TURN_TIMEOUT = 60.0  # seconds to wait while other hosts join
_CHECK_OPTIONS = ("gpus", "share_gpus", "skip", "no_doctor")  # options of the run that apply to joining hosts too
RETRY_INTERVAL = 0.5  # seconds


class _OthersJoinError(PlanError):
    def __init__(self, run: str) -> None:
        super().__init__(f"another host joins run {run} at this moment", remedy="join again when it has")


def refuse_other_launchers(record: RunRecord) -> None:
    """Refuse hosts for a run whose hosts a workload manager chooses."""
    if record.launcher not in {None, NAME}:
        raise PlanError(
            f"run {record.run} has the nodes of its job, and no host can join it",
            remedy="start a new run with more nodes: --nnodes N",
        )


def join_from_inventory(
    site: Site, run: Run, names: str | Iterable[str] | None, skip: str | Iterable[str]
) -> list[str]:
    """Let nodes of the inventory join a run: those named, or all that answer and are not in it; return them."""
    refuse_other_launchers(run.record)
    known = {*run.spools}.union(*run.attempts.values())
    if names is None:
        hosts = _open_free_nodes(site, known)
    else:
        chosen = option_values.read("names", option_values.names, names)
        again = folded_names([name for name in chosen if name in known])
        if again:
            raise RunError(f"{again} cannot join run {run.id} again; {_LOST_STAYS_OUT}")
        hosts = [site.host(name) for name in chosen]
    if not hosts:
        raise RunError(f"no host can join run {run.id}: all that answer are or were in it; {_LOST_STAYS_OUT}")
    guide, spool = _find_guide(site, run)
    skip = option_values.read("skip", option_values.checks, skip)
    install.ensure([guide, *hosts], site.project, site.notify, site.progress)
    return list(join(guide, spool, hosts, site.project, site.notify, skip=skip))


def _find_guide(site: Site, run: Run) -> tuple[Host, str]:
    """Return the host that lets others in, and its spool: the leader, so that two who join get two places.

    Where it is not known or does not answer, it is the first that does.
    """
    name, spool = next(((name, spool) for name, spool in run.spools.items() if spool), ("", ""))
    if not name:
        raise RunError(f"no host of run {run.id} answers, and one of them lets the others in", remedy="ask again later")
    leader = invitation(site.host(name), spool).leader or name
    if leader not in {entry.name for entry in site.inventory.run_hosts}:
        raise RunError(
            f"{leader} leads run {run.id}, and lets others in; it is not among the hosts chosen",
            remedy="choose it too, by --limit",
        )
    if run.spools.get(leader):
        name, spool = leader, run.spools[leader]
    return site.host(name), spool


def _open_free_nodes(site: Site, known: set[str]) -> list[Host]:
    """Return the nodes that answer and never were in the run; report those that do not answer."""
    free = [entry for entry in site.inventory.nodes if entry.name not in known]
    outcomes = site.connections.open_all(free, site.progress, writes=True)
    for outcome in outcomes:
        if outcome.error:
            site.notify(f"left out: {outcome.error}")
    return [outcome.value for outcome in outcomes if outcome.value]


def join(
    guide: Host,
    spool: str,
    hosts: Sequence[Host],
    project: Project,
    notify: Callable[[str], None],
    *,
    skip: Sequence[str] = (),
) -> dict[str, str]:
    """Let ``hosts`` join the run that ``guide``, a host of it, has in ``spool``; their own spools, by host name.

    While other hosts join, these wait for their turn. ``skip`` adds checks whose failure refuses no host to those that
    the run was started with. Raises ``PlanError`` if the run has a fixed size, is full, others have been joining for a
    minute, or a check refuses; ``SyncError`` if the project's code is no longer the run's; ``HostError`` if a host
    could not start.
    """
    deadline = time.monotonic() + TURN_TIMEOUT
    spools: dict[str, str] = {}
    shown: set[str] = set()

    def tell(line: str) -> None:
        if line not in shown:  # an earlier try may have shown it
            shown.add(line)
            notify(line)

    while True:
        left = [host for host in hosts if host.name not in spools]
        try:
            _try_join(guide, spool, left, project, spools, tell, skip)
        except _OthersJoinError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_INTERVAL)
        else:
            return spools


def _try_join(
    guide: Host,
    spool: str,
    hosts: Sequence[Host],
    project: Project,
    spools: dict[str, str],
    notify: Callable[[str], None],
    skip: Sequence[str],
) -> None:
    """Let hosts join one after the other; each that starts is added to ``spools``.

    Raises _OthersJoinError if another host is joining: its member index is not known yet, or it has taken the next one.
    """
    invited = invitation(guide, spool)
    plan, addresses = invited.plan, invited.ready.peers
    record = plan.record
    if len(addresses) != len(plan.peers):
        raise _OthersJoinError(plan.run)
    _check_room(plan, invited.lost, hosts)
    facts, devices, network = _check_hosts(guide, hosts, record, notify, skip)
    _check_addresses(plan, network)
    workdirs = _sync_same_code(hosts, project, record)
    for host in hosts:
        workdir = workdirs[host.name]
        cwd = f"{workdir}/{project.subfolder}" if project.subfolder else workdir
        count = record.nproc or worker_count(host.entry, facts[host.name], devices[host.name])
        run = plan.run
        node = node_of(host, facts[host.name], network[host.name], count, devices[host.name], workdir, cwd, run)
        node = started_plainly(node) if (record.options or {}).get("no_fork_server") else node
        (node,) = with_threads([install.with_source(node, host, project)], facts, plan.settings.env)
        claim = ClaimRequest(spool=spool, member=len(plan.peers))
        if not ask(guide, "claim", claim, Claimed).claimed:
            raise _OthersJoinError(plan.run)
        ready = invited.ready._replace(peers=addresses)
        try:
            spools[host.name], control = _start_and_commit(host, joined_plan(plan, node), invited, ready)
        except (ClusterddpError, KeyboardInterrupt):
            with contextlib.suppress(HostError):  # the claim lapses
                ask(guide, "claim", claim._replace(release=True), Claimed)
            raise
        addresses = (*addresses, (node.address, control))
        plan = with_peer(plan, Peer.of(node))


def _check_hosts(
    guide: Host, hosts: Sequence[Host], record: RunRecord, notify: Callable[[str], None], skip: Sequence[str]
) -> tuple[dict[str, Facts], dict[str, tuple[str, ...] | None], dict[str, tuple[str, str]]]:
    """Check the joining hosts as `run` does, with the run's options: facts, GPUs and network, by host."""
    check_options = {name: value for name, value in (record.options or {}).items() if name in _CHECK_OPTIONS}
    options = RunOptions(script="", nproc_per_node=record.nproc, **check_options)
    options = replace(options, skip=(*options.skip, *skip))
    checks, all_hosts = preflight.choose_checks(options), [guide, *hosts]
    outcomes = {outcome.name: outcome for outcome in probe(all_hosts, fresh=False)}
    facts, devices = preflight.admit_hosts(all_hosts, outcomes, options, checks, notify, taking=hosts)
    seen = survey_network(all_hosts, facts, measured=False)
    return facts, devices, preflight.admit_network(all_hosts, outcomes, options, checks, notify, seen)


def _check_room(plan: NodePlan, lost: Sequence[str], hosts: Sequence[Host]) -> None:
    size = sum(peer.host not in lost for peer in plan.peers)
    if not plan.settings.elastic:
        raise PlanError(f"run {plan.run} has a fixed size", remedy="start it with --nnodes MIN:MAX")
    if size + len(hosts) > plan.settings.max_nodes:
        room = f"it has {size} of {counted(plan.settings.max_nodes, 'node')}"
        names = folded_names([host.name for host in hosts])
        raise PlanError(f"run {plan.run} has no room for {names}: {room}", remedy="choose fewer by --limit")


def _check_addresses(plan: NodePlan, network: Mapping[str, tuple[str, str]]) -> None:
    """Refuse hosts on other machines if the run's nodes communicate over the loopback of one."""
    inside = any(peer.address.startswith(LOOPBACK) for peer in plan.peers)
    outside = [name for name, (_, address) in network.items() if not address.startswith(LOOPBACK)]
    if inside and outside:
        raise PlanError(
            f"run {plan.run} meets on the loopback of {plan.peers[0].host}; {outside[-1]} cannot reach it",
            remedy="start the run with hosts of two machines, or with clusterddp_address",
        )


def _sync_same_code(hosts: Sequence[Host], project: Project, record: RunRecord) -> dict[str, str]:
    """Bring the run's code to the hosts; return their workdirs. Raises SyncError if the project has changed."""
    if not record.code:  # --no-sync in a folder that no sync has filled
        folders = send_code.workdirs_as_they_are(hosts, workdir=project.workdir, name=record.workdir or "")
        return {host.name: host.workdir for host in folders}
    limit = (record.options or {}).get("sync_limit")
    tree = scan(project, limit if isinstance(limit, int) else None)
    name = record.workdir or ""
    result = send_code.sync(hosts, tree, workdir=project.workdir, name=name, subfolder=project.subfolder)
    if result.digest != record.code:
        raise SyncError(
            "the project has changed since the run began", remedy="bring its files back, or start a new run"
        )
    return dict(result.workdirs)


def _start_and_commit(host: Host, plan: NodePlan, invited: Invitation, ready: Ready) -> tuple[str, int]:
    """Start the node's supervisor, then its agent; return its spool and its run control port."""
    started = start_node(host, plan, invited.secrets, invited.key)
    peers = (*ready.peers, (plan.peers[-1].address, started.control))
    request = CommitRequest(spool=started.spool, ready=Ready(store=ready.store, peers=peers))
    host.call("commit", to_fields(request), timeout=30)
    return started.spool, started.control
