"""The results of ``doctor --bench``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.facts.bench_results import Measured

if TYPE_CHECKING:
    from clusterddp.facts.speeds import Speed


@dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """The result of the benchmark run over all hosts."""

    hosts: tuple[str, ...]
    backend: str  # ``nccl`` or ``gloo``
    measured: Measured  # what the workers reported before its end
    error: str = ""  # why it failed; empty if it completed
    blamed: tuple[str, ...] = ()  # the hosts that failed first; empty if that is not known
    remedy: str = ""
    at_fault: tuple[str, ...] = ()  # hosts whose smaller groups all failed too, while groups without them did not
    reduced: bool = True  # whether all-reduces were asked for, so that the check ``allreduce`` reports the error


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """All results of a benchmark."""

    refused: bool = False  # nothing was measured because something else computes on the hosts
    label: str = ""  # the network that was measured
    speeds: tuple[Speed, ...] = ()  # the throughput between every two hosts, in each direction
    alone: str = ""  # why no pair was measured
    together: Together | None = None  # the run over all hosts; None if there was none

    def to_json(self) -> dict[str, Any]:
        """The field ``bench`` of ``doctor --bench --json``."""
        measured = self.together.measured if self.together else Measured()
        return {
            "network": self.label or None,
            "pairs": [speed.to_json() for speed in self.speeds],
            "backend": self.together.backend if self.together else None,
            "gemm": [gemm.to_json() for gemm in measured.gemms],
            "allreduce": [reduce.to_json() for reduce in measured.reduces],
            "ranks": [rank.to_json() for rank in measured.lateness],
        }
