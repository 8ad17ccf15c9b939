"""Checks of MTU, packet loss and latency between the hosts, on connections that are known to work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog.network import CATEGORY, culprits, is_loopback, listed
from clusterddp.checks.model import Check, Finding, unknown, warn
from clusterddp.checks.needs import DIALLED, FACTS, HEALTH, looked_up
from clusterddp.facts.dials import BLACK_HOLE
from clusterddp.facts.network import OK
from clusterddp.text.folding import few, folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterddp.checks.evidence import Evidence, Seen
    from clusterddp.facts.dials import Pair

_LEAST_RESENT, _LOSSY = 5, 0.01  # a host's retransmitted segments, and their share of all, from which on it is a fault
_MANY = 12  # from so many hosts on, the median host shows what a busy network loses anyway
_BEYOND = 3  # times that median is a host's own fault
_NEAR = 2.0  # ms; a host within this round trip is never called far
_FAR = 10.0  # ms; no local network takes so long
_TIMES = 5  # this many times the usual round trip is an outlier


def _black_hole(evidence: Evidence) -> Iterable[Finding]:
    yield from _not_measured(evidence, lambda one: one.bulk is not None)
    judged = {seen.name for seen in evidence.hosts}
    network = evidence.network
    found = [
        one
        for one in (network.failures if network else ())
        if one.word == BLACK_HOLE and one.source in judged and one.target in judged
    ]
    if not network or not found:
        return
    cards = sorted({f"{network.where[host].name} {network.where[host].mtu}" for host in culprits(found)})
    message = f"{listed(found)}: small packets pass, large ones vanish (MTU set here: {', '.join(cards)})"
    yield Finding(verdict="fail", hosts=culprits(found), message=message)


def _pairs(evidence: Evidence) -> list[Pair]:
    judged = {seen.name for seen in evidence.hosts}
    pairs = evidence.network.pairs if evidence.network else ()
    return [one for one in pairs if one.source in judged and one.target in judged]


def _not_measured(evidence: Evidence, measured: Callable[[Pair], bool]) -> Iterable[Finding]:
    """Hosts without a single measured connection: skipped if they could not listen or dial, else unknown."""
    deaf = evidence.network.deaf if evidence.network else {}
    for seen in evidence.hosts:
        own = [one for one in _pairs(evidence) if seen.name in (one.source, one.target) and one.word == OK]
        if seen.name in deaf:
            yield Finding(verdict="skipped", hosts=(seen.name,), message="because of ports")
        elif own and not any(measured(one) for one in own):
            yield unknown(seen.name, "could not look: its kernel is too old, or it was too busy to be measured")


def _loss(evidence: Evidence) -> Iterable[Finding]:
    """Report hosts whose connections retransmit too much, worst first."""
    yield from _not_measured(evidence, lambda one: one.sent > 0)
    left = _pairs(evidence)
    shares = sorted(_shares(left).values())
    least = max(_LOSSY, _BEYOND * shares[len(shares) // 2]) if len(shares) >= _MANY else _LOSSY
    while (host := _lossiest(left, least)) is not None:
        own = [one for one in left if host in (one.source, one.target)]
        peers = {other for one in own if one.resent for other in (one.source, one.target)} - {host}
        hosts = (host, *peers) if len(peers) == 1 else (host,)  # with one bad peer either end may be at fault
        sent, resent = sum(one.sent for one in own), sum(one.resent for one in own)
        between = f"to and from {folded_names(sorted(peers))}"
        yield Finding(
            verdict="warn", hosts=hosts, message=f"{resent} of {sent} TCP segments {between} had to be sent again"
        )
        left = [one for one in left if host not in (one.source, one.target)]


def _lossiest(pairs: Sequence[Pair], least: float) -> str | None:
    """The host with the largest share of retransmitted segments, if it is at least ``least``; else None.

    Hosts with fewer than ``_LEAST_RESENT`` retransmitted segments are passed over: that may be chance.
    """
    shares = {
        host: share
        for host, share in _shares(pairs).items()
        if share >= least and sum(one.resent for one in pairs if host in (one.source, one.target)) >= _LEAST_RESENT
    }
    return max(shares, key=lambda host: shares[host], default=None)


def _shares(pairs: Sequence[Pair]) -> dict[str, float]:
    """For each host, the share of TCP segments on its connections that were retransmitted."""
    sent: dict[str, int] = {}
    resent: dict[str, int] = {}
    for one in pairs:
        for host in (one.source, one.target):
            sent[host] = sent.get(host, 0) + one.sent
            resent[host] = resent.get(host, 0) + one.resent
    return {host: count / sent[host] if sent[host] else 0.0 for host, count in resent.items()}


def _latency(evidence: Evidence) -> Iterable[Finding]:
    yield from _not_measured(evidence, lambda one: one.rtt_ms is not None)
    rtts = {(one.source, one.target): one.rtt_ms for one in _pairs(evidence) if one.rtt_ms is not None}
    if not rtts:
        return
    usual = sorted(rtts.values())[len(rtts) // 4]  # of three hosts, four of six directions involve a far one
    if usual > _FAR:
        hosts = tuple(seen.name for seen in evidence.hosts)
        yield Finding(verdict="warn", hosts=hosts, message=f"{usual:.0f} ms from host to host and back")
        return
    limit = max(_NEAR, _TIMES * usual)
    while (host := _farthest(rtts, limit)) is not None:
        yield warn(host, f"{_middle(rtts, host):.1f} ms to the others and back, {usual:.2f} ms is usual here")
        rtts = {pair: rtt for pair, rtt in rtts.items() if host not in pair}
    for (source, target), rtt in rtts.items():
        if rtt > limit:
            message = f"{source} → {target}: {rtt:.1f} ms there and back, {usual:.2f} ms is usual here"
            yield Finding(verdict="warn", hosts=(source, target), message=message)


def _farthest(rtts: Mapping[tuple[str, str], float], limit: float) -> str | None:
    """The host with the largest median round trip, if that exceeds the limit; else None."""
    middles = {host: _middle(rtts, host) for host in dict.fromkeys(host for pair in rtts for host in pair)}
    found = max(middles, key=lambda host: middles[host], default="")
    return found if found and middles[found] > limit else None


def _middle(rtts: Mapping[tuple[str, str], float], host: str) -> float:
    own = sorted(rtt for pair, rtt in rtts.items() if host in pair)
    return own[(len(own) - 1) // 2]


def _name_addresses(evidence: Evidence) -> Iterable[Finding]:
    """Warn of names that also resolve to an unreachable address: a program that takes it waits for a timeout."""
    for seen in evidence.hosts:
        dead = [
            f"{other.facts.hostname} → {address} ({why})"
            for other in evidence.hosts
            if other.facts and seen.facts and other.facts.boot != seen.facts.boot
            for address, why in _dead(evidence, seen, other)
        ]
        if dead:
            yield warn(seen.name, f"names that also have a dead address there: {few(dead, 3)}")


def _dead(evidence: Evidence, seen: Seen, other: Seen) -> Iterable[tuple[str, str]]:
    own = {one.address for one in other.facts.addresses if not one.loopback} if other.facts else set()
    own_name = looked_up(seen, other.facts.hostname) if other.facts else None
    addresses = own_name.addresses if own_name else ()
    if not own & set(addresses):
        return  # the check `names` reports it
    unreached = evidence.network.unreached if evidence.network else {}
    for address in addresses:
        if address not in own:
            yield address, "loopback" if is_loopback(address) else "on none of its cards"
        elif (seen.name, address) in unreached:
            yield address, unreached[seen.name, address]


CHECKS = (
    Check(
        name="black-hole",
        category=CATEGORY,
        title="packets of full size pass between all hosts",
        judge=_black_hole,
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
        judge=_loss,
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
