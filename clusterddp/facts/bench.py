"""What ``doctor --bench`` has measured, as frozen values.

Not here: measuring (clusterddp/bench.py), judging (clusterddp/checks/performance.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterddp.facts.speeds import Speed


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """All measurements.

    Attributes:
        refused: Something else computes on the hosts: nothing was measured.
        label: The network that was measured.
        speeds: Every way between two hosts.
        alone: Why no pair was measured.
    """

    refused: bool = False
    label: str = ""
    speeds: tuple[Speed, ...] = ()
    alone: str = ""

    def to_json(self) -> dict[str, Any]:
        """The field ``bench`` of ``doctor --bench --json``."""
        return {"network": self.label or None, "pairs": [one.to_json() for one in self.speeds]}
