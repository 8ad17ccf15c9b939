"""Finds the slow hosts, and slow directions between hosts, from the measured speed of pairs.

The reference is the median over the hosts of what each reaches with its best partner: so one slow host, which is part
of most pairs of a small cluster, does not lower it. A direction is slow if it is NOTABLE_SHARE below the median of the
healthy ones and more than MAX_DEVIATIONS away; if fewer than MIN_DIRECTIONS are healthy, their scatter says little, and
a direction is slow below LOW_SHARE of the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.shared.probes.network_records import Throughput

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LOW_SHARE = 0.4  # share of what healthy hosts reach: four test hosts on two busy cores scatter down to half of it
NOTABLE_SHARE = 0.05  # this share below the median
MIN_DIRECTIONS = 12  # directions from which scatter can be estimated
MAX_DEVIATIONS = 3.5  # standard deviations, estimated from the median absolute deviation
MAD_TO_SIGMA = 1.4826  # factor from a median absolute deviation to a standard deviation
SLOW_HOST_SHARE = 0.75  # with this share of its directions slow, the host is called slow instead of them


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """The TCP throughput in one direction between two hosts, or why it could not be measured."""

    source: str
    target: str
    size: int = 0  # bytes
    ns: int = 0
    error: str = ""

    @property
    def mbit(self) -> float:
        """Mbit/s; 0 where nothing could be measured."""
        return self.size * 8e3 / self.ns if self.ns else 0.0

    @classmethod
    def from_json(cls, source: str, target: str, data: Any) -> Speed:
        """Read the result of a host's ``pour`` operation; ``HelperError`` if it is damaged."""
        answer = read_answer(Throughput, source, data)
        if answer.counted is None:
            return cls(source=source, target=target, error=(answer.error or "nothing was counted")[:200])
        return cls(source=source, target=target, size=answer.counted.bytes, ns=answer.counted.ns)

    def to_json(self) -> dict[str, Any]:
        """As ``doctor --bench --json`` prints it."""
        mbit = None if self.error else round(self.mbit, 1)
        return {"source": self.source, "target": self.target, "mbit": mbit, "error": self.error or None}


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowHost:
    """A host that is slow with most others: when it ``sends``, when it ``receives``, or both."""

    name: str
    sends: bool
    receives: bool
    mbit: float  # the median of its slow directions


@dataclass(frozen=True, kw_only=True, slots=True)
class Slowness:
    """The slow hosts, the slow directions between other hosts, and the usual speed."""

    usual: float  # Mbit/s
    hosts: tuple[SlowHost, ...] = ()
    ways: tuple[Speed, ...] = ()  # the slow directions


def median(values: Iterable[float]) -> float:
    """The median; 0 for no values."""
    ranked = sorted(values)
    half = len(ranked) // 2
    if not ranked:
        return 0.0
    return ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2


def find_slow_hosts(speeds: Sequence[Speed]) -> Slowness:
    """Find the slow hosts, and the slow directions that no slow host explains."""
    measured = [one for one in speeds if not one.error]
    usual = _usual_mbit(measured)
    limit = _limit_mbit(measured, usual)
    low = {(one.source, one.target) for one in measured if one.mbit < limit}
    directions = _Directions(measured, low)
    hosts: list[SlowHost] = []
    while (worst := directions.slowest_host()) is not None:
        hosts.append(worst)
        directions.remove(worst.name)
    found = {one.name for one in hosts}
    ways = [one for one in measured if (one.source, one.target) in low and not found & {one.source, one.target}]
    return Slowness(usual=usual, hosts=tuple(hosts), ways=tuple(ways))


def slow_pairs(speeds: Sequence[Speed]) -> list[tuple[str, str]]:
    """All slow directions, including those of slow hosts."""
    measured = [one for one in speeds if not one.error]
    limit = _limit_mbit(measured, _usual_mbit(measured))
    return [(one.source, one.target) for one in measured if one.mbit < limit]


def _usual_mbit(measured: Sequence[Speed]) -> float:
    """The median over the hosts of what each reaches with its best partner."""
    best: dict[str, float] = {}
    for one in measured:
        for host in (one.source, one.target):
            best[host] = max(best.get(host, 0.0), one.mbit)
    return median(best.values())


def _limit_mbit(measured: Sequence[Speed], usual: float) -> float:
    """The speed in Mbit/s below which a direction counts as slow."""
    healthy = [one.mbit for one in measured if one.mbit >= LOW_SHARE * usual]
    if len(healthy) < MIN_DIRECTIONS:
        return LOW_SHARE * usual
    middle = median(healthy)
    deviation = MAD_TO_SIGMA * median(abs(value - middle) for value in healthy)
    return max(0.0, min((1 - NOTABLE_SHARE) * middle, middle - MAX_DEVIATIONS * deviation))


class _Side:
    """What one host sends to the others, or receives from them."""

    def __init__(self) -> None:
        self.speeds: dict[str, float] = {}  # Mbit/s by the other host's name
        self.low: set[str] = set()  # those of them with which it is slow

    @property
    def mostly_slow(self) -> bool:
        """Whether most directions are slow; a single one does not count."""
        return len(self.speeds) > 1 and len(self.low) >= SLOW_HOST_SHARE * len(self.speeds)

    def add(self, other: str, mbit: float, *, low: bool) -> None:
        self.speeds[other] = mbit
        self.low |= {other} if low else set()

    def remove(self, other: str) -> None:
        self.speeds.pop(other, None)
        self.low.discard(other)


class _Directions:
    """The measured directions by their hosts; each is looked at as often, however many hosts are slow."""

    def __init__(self, measured: Sequence[Speed], low: set[tuple[str, str]]) -> None:
        names = dict.fromkeys(host for one in measured for host in (one.source, one.target))
        self._sent = {name: _Side() for name in names}
        self._received = {name: _Side() for name in names}
        for one in measured:
            is_low = (one.source, one.target) in low
            self._sent[one.source].add(one.target, one.mbit, low=is_low)
            self._received[one.target].add(one.source, one.mbit, low=is_low)

    def slowest_host(self) -> SlowHost | None:
        """The host with the most slow directions, among those with most of their sends or receives slow."""
        bad = {name: sides for name in self._sent if (sides := self._slow_sides(name))}
        if not bad:
            return None
        name = max(bad, key=lambda one: sum(len(side.low) for side in bad[one]))
        return SlowHost(
            name=name,
            sends=self._sent[name] in bad[name],
            receives=self._received[name] in bad[name],
            mbit=median(mbit for side in bad[name] for mbit in side.speeds.values()),
        )

    def remove(self, name: str) -> None:
        """Look at none of a host's directions any more."""
        for other in self._sent.pop(name).speeds:
            self._received[other].remove(name)
        for other in self._received.pop(name).speeds:
            self._sent[other].remove(name)

    def _slow_sides(self, name: str) -> list[_Side]:
        return [side for side in (self._sent[name], self._received[name]) if side.mostly_slow]
