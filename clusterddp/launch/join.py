"""Let hosts join an elastic run that is under way: the run's code, plan and key, then one supervisor more.

What a host needs it hears from one that is in the run; the supervisors hear of it from the host itself
(remote/control/voice.py). Not here: what torchrun makes of one node more (remote/plugin).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.errors import PlanError, SyncError
from clusterddp.facts import assign_gpus, workers
from clusterddp.launch.plan import LOOPBACK
from clusterddp.launch.prepare import facts_of, node_of
from clusterddp.launch.ssh import start_node
from clusterddp.probe.network import probe_network
from clusterddp.remote.shared.node_env import PROBED, node_environment
from clusterddp.sync import push
from clusterddp.sync.files import scan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.launch.plan import Node
    from clusterddp.project import Project


def join(guide: Host, spool: str, hosts: Sequence[Host], project: Project) -> dict[str, str]:
    """Let ``hosts`` join the run that ``guide`` has in ``spool``; each one's own spool, by host name.

    Raises:
        PlanError: the run is of a fixed size, or full.
        SyncError: the project's code is not the run's any more.
        HostError: a host could not start.
    """
    invitation = guide.call("invite", {"spool": spool})
    plan, record = invitation["plan"], invitation["plan"]["record"]
    addresses = invitation["ready"]["peers"]
    _check_room(plan, len(addresses or plan["peers"]), hosts)
    facts = facts_of([guide, *hosts], fresh=False, nproc=record.get("nproc"))
    network = probe_network([guide, *hosts], facts)
    _check_reach(plan, network)
    workdirs = _same_code(hosts, project, record)
    devices = assign_gpus([(host.entry, facts[host.name]) for host in hosts])
    spools = {}
    for host in hosts:
        workdir = workdirs[host.name]
        cwd = f"{workdir}/{project.subfolder}" if project.subfolder else workdir
        count = record.get("nproc") or workers(host.entry, facts[host.name], devices[host.name])
        run = plan["run"]
        node = node_of(host, facts[host.name], network[host.name], count, devices[host.name], workdir, cwd, run)
        ready = {"store": invitation["ready"]["store"], "peers": addresses}
        spools[host.name], control = _start(host, joined_plan(plan, node, len(addresses)), invitation, ready)
        addresses.append([node.address, control])
        plan["peers"].append(node.peer())
        plan["places"].append(len(plan["peers"]) - 1)
    return spools


def joined_plan(plan: Mapping[str, Any], node: Node, place: int) -> dict[str, Any]:
    """The plan of a node that joins, from another node's."""
    hosts = [*plan["record"]["hosts"], node.host]
    return {
        **plan,
        **node.json(),
        "node": f"{place}-{node.host}",
        "node_rank": place,
        "place": place,
        "places": [*plan["places"], place],
        "peers": [*plan["peers"], node.peer()],
        "joined": True,
        "standby": False,
        "store": None,
        "env": node_environment(plan["policy"], node.facts()),
        "yielding": sorted(PROBED - set(plan["policy"]["env"]) - set(node.env)),
        "record": {**plan["record"], "hosts": hosts},
    }


def _check_room(plan: Mapping[str, Any], there: int, hosts: Sequence[Host]) -> None:
    if not plan["elastic"]:
        raise PlanError(f"run {plan['run']} has a fixed size", remedy="start it with --nnodes MIN:MAX")
    if there + len(hosts) > plan["max_nodes"]:
        room = f"it has {there} of {plan['max_nodes']} nodes"
        names = ", ".join(host.name for host in hosts)
        raise PlanError(f"run {plan['run']} has no room for {names}: {room}", remedy="choose fewer by --limit")


def _check_reach(plan: Mapping[str, Any], network: Mapping[str, tuple[str, str]]) -> None:
    inside = any(peer["address"].startswith(LOOPBACK) for peer in plan["peers"])
    outside = [name for name, (_, address) in network.items() if not address.startswith(LOOPBACK)]
    if inside and outside:
        raise PlanError(
            f"run {plan['run']} meets on the loopback of {plan['peers'][0]['host']}; {outside[-1]} cannot reach it",
            remedy="start the run with hosts of two machines, or with clusterddp_address",
        )


def _same_code(hosts: Sequence[Host], project: Project, record: Mapping[str, Any]) -> dict[str, str]:
    if not record["code"]:  # --no-sync in a folder that no sync has filled
        return {host.name: host.workdir for host in push.look(hosts, workdir=project.workdir)}
    tree = scan(project, None)
    result = push.sync(hosts, tree, workdir=project.workdir, subfolder=project.subfolder)
    if result.digest != record["code"]:
        raise SyncError(
            "the project has changed since the run began", remedy="bring its files back, or start a new run"
        )
    return dict(result.workdirs)


def _start(
    host: Host, plan: Mapping[str, Any], invitation: Mapping[str, Any], ready: Mapping[str, Any]
) -> tuple[str, int]:
    """Start the node and let it begin; its spool, and its port of run control."""
    answer = start_node(host, plan, invitation["secrets"], invitation["key"])
    peers = [*ready["peers"], [plan["peers"][-1]["address"], answer["control"]]]
    host.call("commit", {"spool": answer["spool"], "store": ready["store"], "peers": peers}, timeout=30)
    return str(answer["spool"]), int(answer["control"])
