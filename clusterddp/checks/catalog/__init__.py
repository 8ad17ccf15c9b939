"""All checks of `doctor`, one file per subject; ``TABLE`` lists them in the order of the output.

To add a check: an entry in the file of its category, a row in docs/checks.md, a test. A check that is named in
``after`` must stand earlier in the table. If a check needs something that hosts are not asked yet, add a field to an
existing answer (remote/shared/probes/health_records.py declares it, remote/probes/health.py sends it), or a need of its
own in the check's file (examples: checks/needs.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog import (
    collectives,
    connectivity,
    environment,
    gpu_health,
    gpu_links,
    gpu_smoke,
    gpus,
    infiniband,
    kernel_tables,
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
    *gpu_smoke.CHECKS,
    *machine.CHECKS,
    *kernel_tables.CHECKS,
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
