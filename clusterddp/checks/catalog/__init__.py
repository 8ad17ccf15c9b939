"""The doctor's checks, a file a subject; ``TABLE`` is all of them, in the order of the screen.

To add one: an entry in a file of its category, a row in docs/checks.md, a test. What a check names in ``after``
stands before it. What it needs to know of a host and nobody asks yet: a field of an answer that is there
(remote/probes/health.py tells it, facts/health.py reads it), or a need of its own beside the check (checks/needs.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog import (
    collectives,
    connectivity,
    environment,
    gpu_health,
    gpu_links,
    gpu_trial,
    gpus,
    infiniband,
    library_defaults,
    machine,
    network,
    network_quality,
    performance,
    rehearsal,
    slurm,
    software,
    storage,
)

if TYPE_CHECKING:
    from clusterddp.checks.model import Check

TABLE: tuple[Check, ...] = (
    *connectivity.CHECKS,
    *software.CHECKS,
    *environment.CHECKS,
    *gpus.CHECKS,
    *gpu_health.CHECKS,
    *gpu_links.CHECKS,
    *gpu_trial.CHECKS,
    *machine.CHECKS,
    *network.CHECKS,
    *network_quality.CHECKS,
    *infiniband.CHECKS,
    *library_defaults.CHECKS,
    *storage.CHECKS,
    *rehearsal.CHECKS,
    *performance.CHECKS,
    *collectives.CHECKS,
    *slurm.CHECKS,
)
