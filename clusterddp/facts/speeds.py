"""Finds the slow hosts, and slow directions between hosts, from the measured speed of pairs.

The reference is the median over the hosts of what each reaches with its best partner: so one slow host, which is part
of most pairs of a small cluster, does not lower it. A direction is slow if it is NOTABLE_SHARE below the median of the
healthy ones and more than MAX_DEVIATIONS away; if fewer than MIN_DIRECTIONS are healthy, their scatter says little, and
it must also be below LOW_SHARE of the reference.
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
    low = {(one.source, one.target) for one in measured if one.mbit < _limit_mbit(measured, usual)}
    hosts: list[SlowHost] = []
    while (worst := _slowest_host(measured, low)) is not None:
        hosts.append(worst)
        measured = [one for one in measured if worst.name not in (one.source, one.target)]
    ways = tuple(one for one in measured if (one.source, one.target) in low)
    return Slowness(usual=usual, hosts=tuple(hosts), ways=ways)


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
    middle = median(healthy)
    deviation = MAD_TO_SIGMA * median(abs(value - middle) for value in healthy)
    notable = min((1 - NOTABLE_SHARE) * middle, middle - MAX_DEVIATIONS * deviation)
    return max(0.0, notable if len(healthy) >= MIN_DIRECTIONS else min(LOW_SHARE * usual, notable))


def _slowest_host(measured: Sequence[Speed], low: set[tuple[str, str]]) -> SlowHost | None:
    """The host with the most slow directions, among those with most of their sends or receives slow."""
    candidates: list[tuple[int, SlowHost]] = []
    for name in dict.fromkeys(host for one in measured for host in (one.source, one.target)):
        sent = [one for one in measured if one.source == name]
        received = [one for one in measured if one.target == name]
        sends, receives = _mostly_slow(sent, low), _mostly_slow(received, low)
        if sends or receives:
            bad = [*(sent if sends else ()), *(received if receives else ())]
            count = sum((one.source, one.target) in low for one in bad)
            mbit = median(one.mbit for one in bad)
            candidates.append((count, SlowHost(name=name, sends=sends, receives=receives, mbit=mbit)))
    return max(candidates, key=lambda one: one[0], default=(0, None))[1]


def _mostly_slow(directions: Sequence[Speed], low: set[tuple[str, str]]) -> bool:
    """Whether most directions of a host are slow; a single one does not count."""
    return len(directions) > 1 and sum((one.source, one.target) in low for one in directions) >= SLOW_HOST_SHARE * len(
        directions
    )
