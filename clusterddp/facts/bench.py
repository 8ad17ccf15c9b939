"""What ``doctor --bench`` has measured, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.facts.bench_results import Measured

if TYPE_CHECKING:
    from clusterddp.facts.speeds import Speed


@dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """How the run over all hosts went.

    Attributes:
        hosts: Who took part.
        backend: ``nccl`` or ``gloo``.
        measured: What was told before its end.
        error: Why it failed; empty where it came to its end.
        blamed: The hosts that failed first; empty where nobody knows.
        remedy: What helps, if that is known.
        apart: Hosts with which smaller groups failed too, each time, while others did not.
    """

    hosts: tuple[str, ...]
    backend: str
    measured: Measured
    error: str = ""
    blamed: tuple[str, ...] = ()
    remedy: str = ""
    apart: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """All measurements.

    Attributes:
        refused: Something else computes on the hosts: nothing was measured.
        label: The network that was measured.
        speeds: Every way between two hosts.
        alone: Why no pair was measured.
        together: The run over all hosts; None: there was none.
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
