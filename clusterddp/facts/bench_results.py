"""Results of the benchmark's workers (remote/builtin/bench.py), and which GPUs, ranks and sums stand out.

The columns of an all-reduce are those of nccl-tests: ``busbw``, what a link carries, is algbw · 2(n - 1)/n.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.facts.read_facts import Fields, facts_of, read_as
from clusterddp.facts.speeds import MAD_TO_SIGMA, MAX_DEVIATIONS, NOTABLE_SHARE, median

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LATE_RATIO = 1.6  # a rank is late at this multiple of the others' time: ranks on shared cores differ by up to a third
MIN_ALIKE = 3  # fewer GPUs of one model are not compared


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemm:
    """A rank's median and 95th percentile of time for a matrix product of ``size`` rows.

    ``wrong`` is how many elements differed when it was repeated.
    """

    host: str
    rank: int
    device: str  # a GPU's name; empty for a CPU
    type: str
    size: int
    ns: int
    p95_ns: int
    wrong: int
    sum: str  # of all elements: the same on equal GPUs

    @property
    def tflops(self) -> float:
        """In 10^12 operations per second."""
        return 2 * self.size**3 / self.ns / 1e3 if self.ns else 0.0

    def to_json(self) -> dict[str, Any]:
        """As ``doctor --bench --json`` prints it."""
        return {
            "host": self.host,
            "rank": self.rank,
            "device": self.device or None,
            "type": self.type,
            "size": self.size,
            "time_us": round(self.ns / 1e3, 1),
            "time_p95_us": round(self.p95_ns / 1e3, 1),
            "tflops": round(self.tflops, 3),
            "wrong": self.wrong,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduce:
    """All-reduces of one size, over ``world`` ranks: the median and the 95th percentile of their times."""

    size: int  # bytes
    count: int
    type: str
    redop: str
    world: int
    ns: int
    p95_ns: int
    rounds: int
    wrong: int

    @property
    def algbw(self) -> float:
        """GB/s as the caller sees it."""
        return self.size / self.ns if self.ns else 0.0

    @property
    def busbw(self) -> float:
        """GB/s that a link carries."""
        return self.algbw * 2 * (self.world - 1) / self.world if self.world else 0.0

    def to_json(self) -> dict[str, Any]:
        """As ``doctor --bench --json`` prints it."""
        return {
            "size": self.size,
            "count": self.count,
            "type": self.type,
            "redop": self.redop,
            "time_us": round(self.ns / 1e3, 1),
            "time_p95_us": round(self.p95_ns / 1e3, 1),
            "algbw": round(self.algbw, 3),
            "busbw": round(self.busbw, 3),
            "wrong": self.wrong,
            "rounds": self.rounds,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Lateness:
    """How long a rank computed, and then waited for the others at the barrier, in each block of work."""

    host: str
    rank: int
    worked: tuple[int, ...]  # ns, one number per block
    waited: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """As ``doctor --bench --json`` prints it."""
        worked, waited = median(self.worked), median(self.waited)
        return {
            "host": self.host,
            "rank": self.rank,
            "worked_ms": round(worked / 1e6, 1),
            "waited_ms": round(waited / 1e6, 1),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """All results that the workers of one run reported."""

    gemms: tuple[Gemm, ...] = ()
    reduces: tuple[AllReduce, ...] = ()
    lateness: tuple[Lateness, ...] = ()

    @classmethod
    def from_lines(cls, lines: Iterable[tuple[str, int, Mapping[str, Any]]]) -> Measured:
        """Read the results from lines of JSON, each with its host and rank; ``HelperError`` for a damaged one."""
        gemms, reduces, lateness = [], [], []
        for host, rank, line in sorted(lines, key=lambda one: one[1]):
            fields = facts_of(host, line)
            if line.get("what") == "gemm":
                gemms.append(_gemm(host, rank, fields))
            elif line.get("what") == "allreduce":
                reduces.append(_allreduce(fields))
            elif line.get("what") == "late":
                lateness.append(read_as(Lateness, fields, host=host, rank=rank))
        return cls(gemms=tuple(gemms), reduces=tuple(reduces), lateness=tuple(lateness))


def _gemm(host: str, rank: int, fields: Fields) -> Gemm:
    return Gemm(
        host=host,
        rank=rank,
        device=fields.text("device")[:100],
        type=fields.text("type")[:20],
        size=fields.number("size"),
        ns=fields.number("ns"),
        p95_ns=fields.number("p95_ns"),
        wrong=fields.number("wrong"),
        sum=fields.text("sum")[:40],
    )


def _allreduce(fields: Fields) -> AllReduce:
    return AllReduce(
        size=fields.number("size"),
        count=fields.number("count"),
        type=fields.text("type")[:20],
        redop=fields.text("redop")[:20],
        world=fields.number("world"),
        ns=fields.number("ns"),
        p95_ns=fields.number("p95_ns"),
        rounds=fields.number("rounds"),
        wrong=fields.number("wrong"),
    )


def late_ranks(lateness: Sequence[Lateness]) -> list[tuple[Lateness, float]]:
    """Ranks whose time for equal work is ``LATE_RATIO`` times that of the others or more, with that multiple.

    Each block is compared with the median of the other ranks in the same block, so a slowdown of all counts for none.
    """
    found = []
    for rank in lateness:
        others = [other for other in lateness if other is not rank and len(other.worked) == len(rank.worked)]
        usual_times = [median(other.worked[block] for other in others) for block in range(len(rank.worked))]
        ratio = median(worked / usual for worked, usual in zip(rank.worked, usual_times, strict=True) if usual)
        if ratio >= LATE_RATIO:
            found.append((rank, ratio))
    return found


def slow_gpus(gemms: Sequence[Gemm]) -> list[tuple[Gemm, float]]:
    """GPUs clearly slower than most of their model, each with the median of the model (TFLOP/s).

    The thresholds are those for slow network directions (speeds.py).
    """
    found = []
    for alike in _by_device(gemms).values():
        middle = median(gemm.tflops for gemm in alike)
        deviation = MAD_TO_SIGMA * median(abs(gemm.tflops - middle) for gemm in alike)
        limit = min((1 - NOTABLE_SHARE) * middle, middle - MAX_DEVIATIONS * deviation)
        found += [(gemm, middle) for gemm in alike if len(alike) >= MIN_ALIKE and gemm.tflops < limit]
    return found


def odd_sums(gemms: Sequence[Gemm]) -> list[Gemm]:
    """GPUs whose matrix product differs from that of most GPUs of their model."""
    found: list[Gemm] = []
    for alike in _by_device(gemms).values():
        sums = [gemm.sum for gemm in alike]
        usual = max(sums, key=sums.count)
        if len(alike) >= MIN_ALIKE and sums.count(usual) > len(sums) / 2:
            found += [gemm for gemm in alike if gemm.sum != usual]
    return found


def _by_device(gemms: Iterable[Gemm]) -> dict[tuple[str, int, str], list[Gemm]]:
    """Group the results of GPUs that can be compared: of one model, matrix size and number type."""
    found: dict[tuple[str, int, str], list[Gemm]] = {}
    for gemm in gemms:
        if gemm.device:
            found.setdefault((gemm.device, gemm.size, gemm.type), []).append(gemm)
    return found


# Name of the model with NVSwitch, number of GPUs, busbw in GB/s of an all-reduce within one such machine, source.
# Azure's health checks (azurehpc-health-checks) demand at least these for 16 GB.
EXPECTED_BUSBW = (
    (r"NVIDIA H100 \d+GB HBM3", 8, 460.0, "the least that Azure's health checks take"),
    (r"NVIDIA H200", 8, 431.0, "the least that Azure's health checks take"),
    (r"NVIDIA A100-SXM4-\d+GB", 8, 228.0, "the least that Azure's health checks take"),
)
FAR_LOWER_SHARE = 0.5  # share of such a figure below which a machine is called far too slow


def expected_busbw(gemms: Sequence[Gemm]) -> tuple[float, str] | None:
    """The expected bus bandwidth and its source, if known: all GPUs of one machine, of one model in the table."""
    names = {gemm.device for gemm in gemms}
    if len({gemm.host for gemm in gemms}) != 1 or len(names) != 1:
        return None
    rows = (row for row in EXPECTED_BUSBW if re.fullmatch(row[0], min(names)) and row[1] == len(gemms))
    return next(((busbw, source) for _, _, busbw, source in rows), None)
