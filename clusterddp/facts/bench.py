"""The results of ``doctor --bench``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.facts.bench_results import Measured

if TYPE_CHECKING:
    from clusterddp.facts.speeds import Speed


@dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """The result of the benchmark run over all hosts.

    Attributes:
        hosts: The hosts that took part.
        backend: ``nccl`` or ``gloo``.
        measured: What the workers reported before its end.
        error: Why it failed; empty if it completed.
        blamed: The hosts that failed first; empty if that is not known.
        at_fault: Hosts whose smaller groups all failed too, while groups without them did not.
        reduced: Whether all-reduces were asked for, so that the check ``allreduce`` reports the error.
    """

    hosts: tuple[str, ...]
    backend: str
    measured: Measured
    error: str = ""
    blamed: tuple[str, ...] = ()
    remedy: str = ""
    at_fault: tuple[str, ...] = ()
    reduced: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """All results of a benchmark.

    Attributes:
        refused: Nothing was measured because something else computes on the hosts.
        label: The network that was measured.
        speeds: The throughput between every two hosts, in each direction.
        alone: Why no pair was measured.
        together: The run over all hosts; None if there was none.
    """

    refused: bool = False
    label: str = ""
    speeds: tuple[Speed, ...] = ()
    alone: str = ""
    together: Together | None = None

    def to_json(self) -> dict[str, Any]:
        """The field ``bench`` of ``doctor --bench --json``."""
        measured = self.together.measured if self.together else Measured()
        return {
            "network": self.label or None,
            "pairs": [one.to_json() for one in self.speeds],
            "backend": self.together.backend if self.together else None,
            "gemm": [one.to_json() for one in measured.gemms],
            "allreduce": [one.to_json() for one in measured.reduces],
            "ranks": [one.to_json() for one in measured.lateness],
        }
