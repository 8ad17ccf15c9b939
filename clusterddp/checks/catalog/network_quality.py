"""Checks of MTU, packet loss and latency between the hosts, on connections that are known to work."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from clusterddp.checks.catalog.network import CATEGORY, is_loopback
from clusterddp.checks.connections import culprits, dialled_pairs, list_pairs, on_dialled
from clusterddp.checks.model import Check, Finding, missing_data, skipped, warn
from clusterddp.checks.needs import DIALLED, FACTS, HEALTH, lookup_of
from clusterddp.remote.shared.probes.network_records import BLACK_HOLE, OK
from clusterddp.text.folding import few, folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterddp.checks.evidence import Evidence, HostEvidence
    from clusterddp.facts.dials import Pair
    from clusterddp.facts.host import Facts

_MIN_RESENT, _MIN_LOSS = 5, 0.01  # a host's retransmitted segments, and their share of all, from which on it is a fault
_MANY_HOSTS = 12  # from so many hosts on, the median host shows what a busy network loses anyway
_TIMES_MEDIAN = 3  # times that median is a host's own fault
_NEVER_FAR = 2.0  # ms; a host within this round trip is never called far
_ALWAYS_FAR = 10.0  # ms; no local network takes so long
_OUTLIER_FACTOR = 5  # this many times the usual round trip is an outlier


def _black_hole(evidence: Evidence) -> Iterable[Finding]:
    """Fail hosts whose small packets arrive while large ones are lost, as with a wrong MTU."""
    yield from _not_measured(evidence, lambda pair: pair.bulk is not None)
    judged = set(evidence.names)
    network = evidence.network
    failures = [
        failure
        for failure in (network.failures if network else ())
        if failure.word == BLACK_HOLE and failure.source in judged and failure.target in judged
    ]
    if not network or not failures:
        return
    hosts = culprits(failures, dialled_pairs(network, judged))
    interfaces = sorted({f"{network.where[host].name} {network.where[host].mtu}" for host in hosts})
    message = f"{list_pairs(failures)}: small packets pass, large ones vanish (MTU set here: {', '.join(interfaces)})"
    yield Finding(verdict="fail", hosts=hosts, message=message)


def _judged_pairs(evidence: Evidence) -> list[Pair]:
    judged = set(evidence.names)
    pairs = evidence.network.pairs if evidence.network else ()
    return [pair for pair in pairs if pair.source in judged and pair.target in judged]


def _not_measured(evidence: Evidence, measured: Callable[[Pair], bool]) -> Iterable[Finding]:
    """Hosts without a single measured connection: skipped if they could not listen or dial, else unknown."""
    deaf = evidence.network.deaf if evidence.network else {}
    measured_by: dict[str, bool] = {}  # a host with a working connection → whether one of them was measured
    for pair in _judged_pairs(evidence):
        for host in (pair.source, pair.target) if pair.word == OK else ():
            measured_by[host] = measured_by.get(host, False) or measured(pair)
    for report in evidence.hosts:
        if report.name in deaf:
            yield skipped(report.name, "because of ports")
        elif not measured_by.get(report.name, True):
            yield missing_data(report.name, "its kernel is too old, or it was too busy to be measured")


def _loss(evidence: Evidence) -> Iterable[Finding]:
    """Report hosts whose connections retransmit too much, worst first."""
    yield from _not_measured(evidence, lambda pair: pair.sent > 0)
    remaining = _judged_pairs(evidence)
    shares = sorted(share for share, _ in _resent(remaining).values())
    threshold = max(_MIN_LOSS, _TIMES_MEDIAN * shares[len(shares) // 2]) if len(shares) >= _MANY_HOSTS else _MIN_LOSS
    while (host := _lossiest(remaining, threshold)) is not None:
        pairs = [pair for pair in remaining if host in (pair.source, pair.target)]
        peers = {other for pair in pairs if pair.resent for other in (pair.source, pair.target)} - {host}
        hosts = (host, *peers) if len(peers) == 1 else (host,)  # with one bad peer either end may be at fault
        sent, resent = sum(pair.sent for pair in pairs), sum(pair.resent for pair in pairs)
        between = f"to and from {folded_names(sorted(peers))}"
        yield Finding(
            verdict="warn", hosts=hosts, message=f"{resent} of {sent} TCP segments {between} had to be sent again"
        )
        remaining = [pair for pair in remaining if host not in (pair.source, pair.target)]


def _lossiest(pairs: Sequence[Pair], least: float) -> str | None:
    """The host with the largest share of retransmitted segments, if it is at least ``least``; else None.

    Hosts with fewer than ``_MIN_RESENT`` retransmitted segments are passed over: that may be chance.
    """
    lossy = {host: share for host, (share, count) in _resent(pairs).items() if share >= least and count >= _MIN_RESENT}
    return max(lossy, key=lambda host: lossy[host], default=None)


def _resent(pairs: Sequence[Pair]) -> dict[str, tuple[float, int]]:
    """For each host, the share of TCP segments on its connections that were retransmitted, and their number."""
    sent, resent = Counter[str](), Counter[str]()
    for pair in pairs:
        for host in (pair.source, pair.target):
            sent[host] += pair.sent
            resent[host] += pair.resent
    return {host: (count / sent[host] if sent[host] else 0.0, count) for host, count in resent.items()}


def _latency(evidence: Evidence) -> Iterable[Finding]:
    yield from _not_measured(evidence, lambda one: one.rtt_ms is not None)
    rtts = {(one.source, one.target): one.rtt_ms for one in _judged_pairs(evidence) if one.rtt_ms is not None}
    if not rtts:
        return
    usual = sorted(rtts.values())[len(rtts) // 4]  # of three hosts, four of six directions involve a far one
    if usual > _ALWAYS_FAR:
        yield Finding(verdict="warn", hosts=evidence.names, message=f"{usual:.0f} ms from host to host and back")
        return
    limit = max(_NEVER_FAR, _OUTLIER_FACTOR * usual)
    while (found := _farthest(rtts, limit)) is not None:
        host, middle = found
        yield warn(host, f"{middle:.1f} ms to the others and back, {usual:.2f} ms is usual here")
        rtts = {pair: rtt for pair, rtt in rtts.items() if host not in pair}
    for (source, target), rtt in rtts.items():
        if rtt > limit:
            message = f"{source} → {target}: {rtt:.1f} ms there and back, {usual:.2f} ms is usual here"
            yield Finding(verdict="warn", hosts=(source, target), message=message)


def _farthest(rtts: Mapping[tuple[str, str], float], limit: float) -> tuple[str, float] | None:
    """The host with the largest median round trip, and that, if it exceeds the limit; else None."""
    by_host: dict[str, list[float]] = {}
    for pair, rtt in rtts.items():
        for host in pair:
            by_host.setdefault(host, []).append(rtt)
    middles = {host: sorted(own)[(len(own) - 1) // 2] for host, own in by_host.items()}
    found = max(middles, key=lambda host: middles[host], default="")
    return (found, middles[found]) if found and middles[found] > limit else None


def _name_addresses(evidence: Evidence) -> Iterable[Finding]:
    """Warn of names that also resolve to an unreachable address: a program that takes it waits for a timeout."""
    for report in evidence.hosts:
        unusable = [
            f"{other.facts.hostname} → {address} ({why})"
            for other in evidence.hosts
            if other.facts and report.facts and other.facts.boot != report.facts.boot
            for address, why in _unusable_addresses(evidence, report, other.facts)
        ]
        if unusable:
            yield warn(report.name, f"names that also have a dead address there: {few(unusable, 3)}")


def _unusable_addresses(evidence: Evidence, report: HostEvidence, other: Facts) -> Iterable[tuple[str, str]]:
    """Addresses that ``report``'s host finds under another host's name, and that do not lead there, each with why."""
    lookup = lookup_of(report, other.hostname)
    addresses = lookup.addresses if lookup else ()
    if not addresses:
        return  # of many hosts, each looks up the names of a few
    own = {one.address for one in other.addresses if not one.loopback}
    if not own & set(addresses):
        return  # the check `names` reports it
    unreached = evidence.network.unreached if evidence.network else {}
    for address in addresses:
        if address not in own:
            yield address, "loopback" if is_loopback(address) else "on none of its cards"
        elif (report.name, address) in unreached:
            yield address, unreached[report.name, address]


CHECKS = (
    Check(
        name="black-hole",
        category=CATEGORY,
        title="packets of full size pass between all hosts",
        judge=on_dialled(_black_hole, "packets of full size pass"),
        needs=(FACTS, DIALLED),
        after=("network",),
        symptom="the group is made, small all-reduces work, and the first large one times out",
        fix="lower the MTU of the cards to what the path carries (`ip link set CARD mtu 1400`), or mend the switch, "
        "tunnel or firewall between them, which must let ICMP 'fragmentation needed' through",
    ),
    Check(
        name="loss",
        category=CATEGORY,
        title="no way between two hosts loses packets",
        judge=on_dialled(_loss, "no packets are lost"),
        needs=(FACTS, DIALLED),
        after=("network", "black-hole"),
        symptom="every step waits for the one host whose packets are sent again and again",
        fix="look at cable, switch port and duplex (`ip -s link`, `ethtool -S CARD`)",
    ),
    Check(
        name="latency",
        category=CATEGORY,
        title="no host is far from the others",
        judge=_latency,
        needs=(FACTS, DIALLED),
        after=("network",),
        symptom="small collectives take milliseconds; steps are slow although the links are fast",
        fix="look at the route between them (`traceroute`): a tunnel, a VPN or another site lies in between",
    ),
    Check(
        name="name-addresses",
        category=CATEGORY,
        title="every address of a host's name leads to it",
        judge=_name_addresses,
        needs=(FACTS, HEALTH, DIALLED),
        after=("network",),
        symptom="a first step that takes minutes longer: a dead address (often IPv6) is tried before the good one",
        fix="take it out of DNS or /etc/hosts, or set NCCL_SOCKET_FAMILY=AF_INET",
    ),
)
