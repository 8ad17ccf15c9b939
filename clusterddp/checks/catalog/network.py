"""Checks of host names, network cards and TCP connections between the hosts.

A pair of hosts that cannot connect on any port is reported once, by the check ``network``; ``ports`` reports only
problems of clusterddp_ports. Loss, latency and MTU: checks/catalog/network_quality.py.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from clusterddp.checks.connections import coverage, culprits, dialled_pairs, list_pairs, on_dialled
from clusterddp.checks.model import Check, Finding, fail, for_facts, missing_data, odd_ones, skipped, unknown, warn
from clusterddp.checks.needs import DIALLED, FACTS, HEALTH, NETWORK, lookup_of
from clusterddp.facts.dial_schedule import ALL_PAIRS_HOSTS, PARTNERS
from clusterddp.facts.library_defaults import GLOO_VARIABLE, NCCL_VARIABLE, matches_setting
from clusterddp.facts.network import QUEUE_FULL, SLOW, TABLE_FULL
from clusterddp.remote.shared.probes.network_records import BLACK_HOLE
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from clusterddp.checks.evidence import Evidence
    from clusterddp.facts.host import Facts
    from clusterddp.facts.network import DialFailure
    from clusterddp.inventory import HostEntry

CATEGORY = "Network"
_TITLE = "all hosts reach each other by TCP, both ways"
_SPARSE_TITLE = "every host reaches others by TCP, both ways"
_FIXES = {  # in place of what helps against a firewall
    QUEUE_FULL: "see the check listen-queue; then look again",
    TABLE_FULL: "see the checks neighbour-table and connection-tracking; then look again",
}
_MIN_FREE_PORTS = 4  # a host needs three for each run: store, run control, MASTER_PORT


def _own_name(evidence: Evidence) -> Iterable[Finding]:
    if len({facts.boot for _, facts in evidence.facts}) < 2:
        return  # nodes on one machine meet on the loopback
    for report in evidence.hosts:
        if report.facts is None:
            continue
        name = report.facts.hostname
        lookup = lookup_of(report, name)
        if lookup is None:
            yield missing_data(report.name, f"nobody asked for {name}")
            continue
        addresses = {interface.address for interface in report.facts.addresses}
        if not lookup.addresses:
            yield warn(report.name, f"its own name {name} has no address there: {lookup.error}")
        elif loops := [address for address in lookup.addresses if is_loopback(address)]:
            if not set(lookup.addresses) & addresses - set(loops):
                yield warn(report.name, f"its own name {name} means {loops[0]} there")
        elif not set(lookup.addresses) & addresses:
            yield warn(report.name, f"its own name {name} means {lookup.addresses[0]}, which is on none of its cards")


def _names(evidence: Evidence) -> Iterable[Finding]:
    """Warn of other hosts' names that a host cannot look up, or that give it an address of another machine."""
    sparse = len(evidence.hosts) > ALL_PAIRS_HOSTS  # then no host looks up all names
    addresses_of = {entry.name: {interface.address for interface in facts.addresses} for entry, facts in evidence.facts}
    for report in evidence.hosts:
        wrong: dict[tuple[str, bool], list[str]] = {}
        health = HEALTH.of(report)
        for other in evidence.hosts:
            if not other.facts or not report.facts or health is None:
                continue
            if other.facts.boot == report.facts.boot:
                continue
            name = other.facts.hostname
            by_hand = name != other.name  # of others hosts.yml writes the inventory's names alone
            lookup = lookup_of(report, name)
            if lookup is None and sparse and health.names:
                continue
            if lookup is None:
                wrong.setdefault(("was not looked up", by_hand), []).append(name)
            elif not lookup.addresses:
                wrong.setdefault((f"cannot be looked up ({lookup.error})", by_hand), []).append(name)
            elif all(map(is_loopback, lookup.addresses)) or not set(lookup.addresses) & addresses_of[other.name]:
                wrong.setdefault(("has an address of another machine", by_hand), []).append(name)
        for (what, by_hand), names in wrong.items():
            verdict = unknown if what == "was not looked up" else warn
            yield verdict(report.name, f"{folded_names(sorted(names))}: the name {what}", by_hand=by_hand)
        if sparse and not wrong:
            message = f"every host knows the names of {PARTNERS} others"
            yield Finding(verdict="pass", hosts=(report.name,), message=message)


def is_loopback(address: str) -> bool:
    """Whether a text is an address that only reaches its own machine."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _interface(entry: HostEntry, facts: Facts) -> Finding | None:
    names = list(dict.fromkeys(interface.name for interface in facts.addresses))
    for name, exact in ((NCCL_VARIABLE, False), (GLOO_VARIABLE, True)):
        variable = facts.environment.get(name)
        if variable and not any(matches_setting(interface, variable, exact=exact) for interface in names):
            return fail(entry.name, f"{name}={variable}, and it has {', '.join(names) or 'no card with an address'}")
    return None


def _network(evidence: Evidence) -> Iterable[Finding]:
    network = evidence.network
    if network is None:
        return
    if network.error:
        yield Finding(verdict="fail", hosts=evidence.names, message=network.error, fix=network.remedy)
        return
    for report in evidence.hosts:
        if report.name in network.deaf:
            yield skipped(report.name, "because of ports")
    shut = [failure for failure in network.failures if not failure.ranged and failure.word != BLACK_HOLE]
    found = list(_connection_findings(evidence, shut, network.failures, {}))
    # A host that answers too late on one port is too busy on the other too: this is said once, here.
    found += _slow_findings(evidence, {host for finding in found for host in finding.hosts})
    yield from found
    if network.where and not all(interface.loopback for interface in network.where.values()):
        named = {host for finding in found for host in finding.hosts} | set(network.deaf)
        well = tuple(name for name in evidence.names if name not in named)
        if well:
            tried = f"{_SPARSE_TITLE}: {coverage(network)}" if coverage(network) else _TITLE
            yield Finding(verdict="pass", hosts=well, message=f"{tried}; a job needs {_job_ports(evidence)} open")


def _ports(evidence: Evidence) -> Iterable[Finding]:
    """Fail hosts that could not listen in clusterddp_ports, and pairs that connect on other ports only."""
    network = evidence.network
    if network is None:
        return
    judged = set(evidence.names)
    ranges = {report.name: "{}-{}".format(*report.entry.ports) for report in evidence.hosts}
    for host, why in network.deaf.items():
        if host in judged:
            yield fail(host, why, symptom="Address already in use, or a rendezvous that hangs silently")
    shut = {(failure.source, failure.target) for failure in network.failures if not failure.ranged}
    ranged = [failure for failure in network.failures if failure.ranged]
    range_only = [failure for failure in ranged if (failure.source, failure.target) not in shut]
    yield from _connection_findings(evidence, range_only, (), ranges)


def _connection_findings(
    evidence: Evidence, failures: Sequence[DialFailure], all_failures: Sequence[DialFailure], ranges: Mapping[str, str]
) -> Iterable[Finding]:
    """Turn failed connections into findings, one per port range and error, blaming the hosts common to its pairs."""
    judged = set(evidence.names)
    ranged = {(failure.source, failure.target) for failure in all_failures if failure.ranged}
    groups: dict[tuple[str, str], list[DialFailure]] = {}
    for failure in failures:
        if failure.source in judged and failure.target in judged and failure.word != SLOW:
            shut = "every port" if (failure.source, failure.target) in ranged else "ephemeral ports"
            groups.setdefault((ranges.get(failure.target) or shut, failure.meaning), []).append(failure)
    rule = "" if ranges else _firewall_advice(evidence)
    dialled = dialled_pairs(evidence.network, judged) if evidence.network else set()
    for (ports, meaning), group in groups.items():
        message = f"{list_pairs(group)} on {ports}: {meaning}"
        fix = _FIXES.get(group[0].word, rule)
        yield Finding(verdict="fail", hosts=culprits(group, dialled), message=message, fix=fix)


def _slow_findings(evidence: Evidence, named: Container[str]) -> Iterable[Finding]:
    """Hosts whose connections were made, and answered too late: that proves no fault of the network, nor that it works.

    Those that are ``named`` already are left out.
    """
    slow = [failure for failure in evidence.network.failures if failure.word == SLOW] if evidence.network else []
    for report in evidence.hosts:
        own = [failure for failure in slow if failure.target == report.name]
        if own and evidence.network and report.name not in named:
            late = evidence.network.heard[report.name].late_ms / 1000 if report.name in evidence.network.heard else 0
            held = f" (our process there was held up for {late:.1f} s)" if late else ""
            yield missing_data(report.name, f"{list_pairs(own)}: {own[0].meaning}{held}")


def _firewall_advice(evidence: Evidence) -> str:
    """The advice which ports a firewall must let through."""
    ports = _job_ports(evidence)
    return f"let TCP through between the hosts on {ports}, or set clusterddp_interface to a network that does"


def _job_ports(evidence: Evidence) -> str:
    """The TCP ports that a job uses between hosts: clusterddp_ports, and the ephemeral ones that gloo and NCCL get."""
    wanted = {entry.ports for entry, _ in evidence.facts} | {facts.ephemeral_range for _, facts in evidence.facts}
    return ", ".join("{}-{}".format(*one) for one in sorted(wanted))


def _ports_taken(evidence: Evidence) -> Iterable[Finding]:
    for entry, health in HEALTH.each(evidence):
        first, last = entry.ports
        free = last - first + 1 - len(health.taken)
        if free < _MIN_FREE_PORTS:
            message = f"{max(0, free)} of the ports {first}-{last} are free"
            yield (warn if free > 0 else fail)(entry.name, message)


def _compare_interfaces(evidence: Evidence, field: str, what: str, unit: str) -> Iterable[Finding]:
    """Warn of hosts whose interface has another value of ``field`` than most; ``what`` and ``unit`` name it."""
    where = evidence.where
    judged = set(evidence.names)
    values = {host: getattr(interface, field) for host, interface in where.items() if host in judged}
    by_host = {host: str(value) for host, value in values.items() if value is not None}
    usual, odd = odd_ones(by_host)
    for host, value in odd.items():
        yield warn(host, f"{where[host].name} has {what} {value}{unit}, most have {usual}{unit}")


CHECKS = (
    Check(
        name="own-name",
        category=CATEGORY,
        title="every host's own name means an address of its own",
        judge=_own_name,
        needs=(FACTS, HEALTH),
        symptom="connectFullMesh failed: Connection refused, remote=[127.0.1.1]; torchrun by hand fails after 140 s",
        fix="give the name its real address in /etc/hosts (runs of clusterddp use addresses and cards, not names)",
        playbook="hosts.yml",
    ),
    Check(
        name="names",
        category=CATEGORY,
        title="every host knows every host's name",
        judge=_names,
        needs=(FACTS, HEALTH),
        symptom="Name or service not known, or a first step that takes ten seconds longer",
        fix="put the hosts into /etc/hosts there, or mend the name server in /etc/resolv.conf",
        playbook="hosts.yml",
    ),
    Check(
        name="interface",
        category=CATEGORY,
        title="NCCL and gloo are told cards that are there",
        judge=for_facts(_interface),
        needs=(FACTS,),
        symptom="Unable to find address for: eno1, or Bootstrap : no socket interface found",
        fix="unset it, and a run sets it to the right card; or name one that is there (`ip -br addr` lists them)",
    ),
    Check(
        name="network",
        category=CATEGORY,
        title=_TITLE,
        judge=_network,
        needs=(FACTS, NETWORK),
        after=("neighbour-table", "connection-tracking"),
        symptom="The client socket has timed out, No route to host, or a hang: workers use ephemeral ports",
    ),
    Check(
        name="ports",
        category=CATEGORY,
        title="clusterddp_ports are open between all hosts",
        judge=on_dialled(_ports, "clusterddp_ports are open"),
        needs=(FACTS, DIALLED),
        after=("neighbour-table", "connection-tracking"),
        symptom="RendezvousTimeoutError, or RendezvousConnectionError: The client socket has timed out",
        fix="let TCP to clusterddp_ports through between the hosts; where firewall.yml has closed them, run it again",
    ),
    Check(
        name="ports-free",
        category=CATEGORY,
        title="there are free ports in clusterddp_ports",
        judge=_ports_taken,
        needs=(HEALTH,),
        symptom="Address already in use",
        fix="see who listens (`ss -ltnp`), or set clusterddp_ports to another range",
    ),
    Check(
        name="mtu-equal",
        category=CATEGORY,
        title="one MTU on the cards used",
        judge=lambda evidence: _compare_interfaces(evidence, "mtu", "an MTU of", ""),
        needs=(FACTS, DIALLED),
        symptom="RDMA over Ethernet breaks; TCP only slows down",
        fix="set the same MTU on all cards of the network",
    ),
    Check(
        name="speed-equal",
        category=CATEGORY,
        title="one link speed on the cards used",
        judge=lambda evidence: _compare_interfaces(evidence, "speed_mbit", "a link of", " Mbit/s"),
        needs=(FACTS, DIALLED),
        symptom="every step takes as long as on the slowest link",
        fix="look at cable and switch port (`ethtool CARD`)",
    ),
)
