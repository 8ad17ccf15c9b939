"""Run inside an existing Slurm job: that of a shell started by salloc, or by srun in a job."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.remote.shared.text.counted import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.launch.options import RunOptions
    from clusterddp.launch.slurm.client.login_host import LoginHost
    from clusterddp.runs.run_on_hosts import Site

ALLOCATION = "SLURM_JOB_ID"


def current_allocation(log_in: Callable[[], LoginHost], site: Site, options: RunOptions) -> tuple[str, RunOptions]:
    """Return the job that this shell is in, and the options with its number of nodes; without a job, them unchanged."""
    number = os.environ.get(ALLOCATION, "")
    if not number:
        return "", options
    if options.array:
        raise UsageError(
            f"--array: this shell is in Slurm's job {number}, which is one",
            remedy=f"`unset {ALLOCATION}` submits an array",
        )
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        raise UsageError(
            f"this shell is in a task of Slurm's array {array}, and a run inside a job takes one that is no array",
            remedy=f"`unset {ALLOCATION}` lets a job of its own be submitted",
        )
    job = log_in().jobs([number]).get(number)
    if job is None or not job.nodes:
        raise UsageError(
            f"{ALLOCATION} is {number}, and Slurm knows of no such job that has nodes",
            remedy=f"`unset {ALLOCATION}` lets a job of its own be submitted",
        )
    count = len(job.nodes)
    least, most = options.nnodes or (count, count)
    if least > count:
        raise UsageError(
            f"--nnodes {options.size}: Slurm's job {number}, which this shell is in, has {count}",
            remedy=f"ask for fewer, or `unset {ALLOCATION}` for a job of its own",
        )
    most = min(most, count)
    site.notify(f"in Slurm's job {number}: {most} of its {counted(count, 'node')}")
    return number, replace(options, nnodes=(most, most))
