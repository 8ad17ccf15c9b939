"""What ``up`` shows of the hosts, once they have passed what a run would refuse them by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.facts import workers
from clusterddp.launch import preflight
from clusterddp.launch.make_plan import predicted_ranks
from clusterddp.launch.options import RunOptions
from clusterddp.launch.prepare import backend_for, node_of
from clusterddp.probe.dial_hosts import probe
from clusterddp.probe.gather import survey_network

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.facts import Facts
    from clusterddp.hosts.client import Host


@dataclass(frozen=True, kw_only=True, slots=True)
class HostReport:
    """A node as ``up`` shows it; ``ranks`` is the first and the last it would hold, None for a spare."""

    host: str
    facts: Facts
    interface: str
    address: str
    nproc: int
    ranks: tuple[int, int] | None


def report(
    hosts: Sequence[Host], *, fresh: bool, skip: tuple[str, ...], notify: Callable[[str], None]
) -> list[HostReport]:
    """What each node is, and what it would hold; refused is what would refuse a run, but for what passes by itself.

    Raises:
        HostsError, PlanError: hosts cannot be asked, or cannot train; names each.
    """
    options = RunOptions(script="", skip=skip)
    checks = preflight.chosen(options)
    told = {outcome.name: outcome for outcome in probe(hosts, fresh=fresh)}
    facts, devices = preflight.admit_hosts(hosts, told, options, checks, notify, busy=False)
    seen = survey_network(hosts, facts, measured=False)
    network = preflight.admit_network(hosts, told, options, checks, notify, seen)
    counts = {host.name: workers(host.entry, facts[host.name], devices[host.name]) for host in hosts}
    nodes = [node_of(host, facts[host.name], network[host.name], counts[host.name], None, "", "", "") for host in hosts]
    taking = [node for host, node in zip(hosts, nodes, strict=True) if host.entry.role == "node"]
    ranks = predicted_ranks(taking, backend_for("auto", hosts, facts))
    return [
        HostReport(
            host=host.name,
            facts=facts[host.name],
            interface=network[host.name][0],
            address=network[host.name][1],
            nproc=counts[host.name],
            ranks=ranks.get(host.name),
        )
        for host in hosts
    ]
