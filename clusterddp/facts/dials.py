"""Results of TCP connections tried between pairs of hosts, and the matrix that `doctor` draws of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from clusterddp.facts.network import LOST, SLOW, DialFailure
from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.shared.probes.network_records import OK, TIMEOUT, DialResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterddp.facts.dial_schedule import Schedule
    from clusterddp.facts.host import Interface

# A pair of hosts loses packets if at least so many TCP segments, and this share of them, were retransmitted: fewer may
# be chance, and of few packets a busy machine alone makes some be retransmitted.
MIN_RESENT, LOSSY_SHARE = 5, 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class DialAttempt:
    """One TCP connection tried from ``source`` to an address of ``target``, and what was measured on it."""

    source: str
    target: str
    address: str
    port: int
    ranged: bool  # the port belongs to clusterddp_ports; else the kernel chose it
    word: str  # ``ok``, or why it failed
    # the shortest round trip of its packets, by the kernel's own measurement; None if unknown
    rtt_us: int | None = None
    bulk: bool | None = None  # whether packets of full size passed; None if not tried, or unknown
    sent: int = 0  # TCP segments sent
    resent: int = 0  # how many of them were retransmitted

    @classmethod
    def from_json(cls, source: str, target: str, address: str, port: int, data: Any, *, ranged: bool) -> DialAttempt:
        """Read one answer of ``source`` to its ``dial`` operation; ``HelperError`` if it is damaged."""
        result = read_answer(DialResult, source, data)
        measured = result._replace(word=result.word[:80])._asdict()
        return cls(source=source, target=target, address=address, port=port, ranged=ranged, **measured)

    @property
    def failure(self) -> DialFailure | None:
        """The failed connection; None if it succeeded."""
        if self.word == OK:
            return None
        return DialFailure(
            source=self.source,
            target=self.target,
            address=self.address,
            port=self.port,
            ranged=self.ranged,
            word=self.word,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """The connections in one direction between two hosts, on the chosen network."""

    source: str
    target: str
    # ``pass``; ``warn``: it loses packets; ``fail``: a connection failed; ``unknown``: none was tried, or was answered
    # in time by a host that was too busy
    verdict: Literal["pass", "warn", "fail", "unknown"]
    # ``ok``, ``timeout``, ``lost`` (no answer, and other connections lose packets), ``refused``, ``no route``, ``wrong
    # nonce``, ``no data`` (it connects, nothing comes after), ``black hole`` (small packets pass, large ones do not),
    # ``slow``, ``queue full``, ``table full`` (facts/network.py), ``not dialled``, or the operating system's message
    word: str
    ports: str = ""  # the ports on which it failed: ``all``, ``clusterddp_ports``, ``ephemeral``; empty: none
    rtt_ms: float | None = None  # the shortest round trip; None if unknown
    bulk: bool | None = None  # whether packets of full size pass; None if not tried
    sent: int = 0
    resent: int = 0

    @property
    def loss(self) -> float:
        """The share of TCP segments that were retransmitted, 0 to 1."""
        return min(1.0, self.resent / self.sent) if self.sent else 0.0

    def to_json(self) -> dict[str, Any]:
        """As ``doctor --json`` prints it."""
        return {
            "source": self.source,
            "target": self.target,
            "verdict": self.verdict,
            "word": self.word,
            "ports": self.ports,
            "rtt_ms": self.rtt_ms,
            "bulk": self.bulk,
            "loss": round(self.loss, 4),
        }


def mark_lost(dialled: Iterable[DialAttempt]) -> list[DialAttempt]:
    """Change the word ``timeout`` to ``lost`` between hosts whose other connections lose packets.

    There the lost packets explain the timeout; elsewhere a firewall is the likely cause.
    """
    dialled = list(dialled)
    by_hosts: dict[frozenset[str], list[DialAttempt]] = {}
    for one in dialled:
        by_hosts.setdefault(frozenset((one.source, one.target)), []).append(one)
    lossy = {hosts for hosts, between in by_hosts.items() if _lossy(between)}
    return [
        replace(one, word=LOST) if one.word == TIMEOUT and frozenset((one.source, one.target)) in lossy else one
        for one in dialled
    ]


def matrix(interfaces: Mapping[str, Interface], dialled: Iterable[DialAttempt], schedule: Schedule) -> tuple[Pair, ...]:
    """The result for every ordered pair of hosts that was to be dialled, row by row, on the chosen network.

    ``interfaces`` is each host's interface there; connections to other addresses are ignored.
    """
    by_direction: dict[tuple[str, str], list[DialAttempt]] = {}
    for one in dialled:
        if one.target in interfaces and interfaces[one.target].address == one.address:
            by_direction.setdefault((one.source, one.target), []).append(one)
    return tuple(
        _pair(source, target, by_direction.get((source, target), ()))
        for source in interfaces
        for target in schedule[source]
    )


def _pair(source: str, target: str, dialled: Sequence[DialAttempt]) -> Pair:
    """Summarise the connections tried from one host to another."""
    if not dialled:
        return Pair(source=source, target=target, verdict="unknown", word="not dialled")
    broken = [one for one in dialled if one.word != OK]
    rtts = [one.rtt_us for one in dialled if one.rtt_us is not None]
    bulks = [one.bulk for one in dialled if one.bulk is not None]
    sent, resent = sum(one.sent for one in dialled), sum(one.resent for one in dialled)
    broken.sort(key=lambda one: one.word == SLOW)  # what is certain comes first
    ports = "" if not broken else "all" if len(broken) == len(dialled) else _port_kind(broken[0])
    failed: Literal["fail", "unknown"] = "unknown" if broken and broken[0].word == SLOW else "fail"
    return Pair(
        source=source,
        target=target,
        verdict=failed if broken else "warn" if _lossy(dialled) else "pass",
        word=broken[0].word if broken else OK,
        ports=ports,
        rtt_ms=min(rtts) / 1000 if rtts else None,
        bulk=all(bulks) if bulks else None,
        sent=sent,
        resent=resent,
    )


def _lossy(dialled: Iterable[DialAttempt]) -> bool:
    """Whether these connections together lost packets."""
    sent, resent = 0, 0
    for one in dialled:
        sent, resent = sent + one.sent, resent + one.resent
    return resent >= MIN_RESENT and resent >= LOSSY_SHARE * sent


def _port_kind(dial: DialAttempt) -> str:
    return "clusterddp_ports" if dial.ranged else "ephemeral"
