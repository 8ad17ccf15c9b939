"""Build what ``up`` shows of the hosts, after the checks that could also refuse a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.facts.gpu_assignment import worker_count
from clusterddp.launch import preflight
from clusterddp.launch.make_plan import predicted_ranks
from clusterddp.launch.options import RunOptions
from clusterddp.launch.prepare import backend_for, node_of
from clusterddp.probe.dial_hosts import probe
from clusterddp.probe.gather import survey_network

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.facts.host import Facts
    from clusterddp.hosts.client import Host


@dataclass(frozen=True, kw_only=True, slots=True)
class HostReport:
    """A node as ``up`` shows it; ``ranks`` is the first and the last rank it would have, None for a spare."""

    host: str
    facts: Facts
    interface: str
    address: str
    nproc: int
    ranks: tuple[int, int] | None


def report(
    hosts: Sequence[Host], *, fresh: bool, skip: tuple[str, ...], notify: Callable[[str], None]
) -> list[HostReport]:
    """Return each node's facts and the ranks it would have, after the checks that would refuse a run.

    GPUs in use by others are not refused, because that may pass by itself. Raises HostsError or PlanError if hosts
    cannot be asked, or cannot train.
    """
    options = RunOptions(script="", skip=skip)
    checks = preflight.choose_checks(options)
    outcomes = {outcome.name: outcome for outcome in probe(hosts, fresh=fresh)}
    facts, devices = preflight.admit_hosts(hosts, outcomes, options, checks, notify, busy=False)
    survey = survey_network(hosts, facts, measured=False)
    network = preflight.admit_network(hosts, outcomes, options, checks, notify, survey)
    counts = {host.name: worker_count(host.entry, facts[host.name], devices[host.name]) for host in hosts}
    nodes = [node_of(host, facts[host.name], network[host.name], counts[host.name], None, "", "", "") for host in hosts]
    participants = [node for host, node in zip(hosts, nodes, strict=True) if host.entry.role == "node"]
    ranks = predicted_ranks(participants, backend_for("auto", hosts, facts))
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
