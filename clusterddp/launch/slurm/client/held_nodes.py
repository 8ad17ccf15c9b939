"""Hold nodes by short jobs that do nothing: each node is reached through a further step, and the jobs are cancelled.

If no process is left to cancel a job, its script or its time limit ends it.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.launch.slurm.client.answers import last_error, minutes
from clusterddp.launch.slurm.client.login_host import refusal
from clusterddp.launch.slurm.client.never_starts import why_never
from clusterddp.launch.slurm.client.states import QUERY_INTERVAL, meaning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterddp.checks.evidence import SlurmEvidence
    from clusterddp.hosts.connections import Connections
    from clusterddp.launch.slurm.client.answers import QueuedJob
    from clusterddp.launch.slurm.client.login_host import LoginHost


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeJob:
    """A job that holds nodes, or why there is none."""

    job: str = ""  # Slurm's number; empty if there is none
    nodes: tuple[str, ...] = ()
    refused: tuple[str, str] = ("", "")  # why there is none, and what helps


@contextlib.contextmanager
def held_nodes(
    login: LoginHost,
    option_sets: Sequence[Sequence[str]],
    connections: Connections,
    progress: Callable[[str], None],
    *,
    name: str,
    script: str,
    timeout: float,
) -> Iterator[list[NodeJob]]:
    """Keep jobs while the block runs, one for each set of sbatch options in ``option_sets``; then cancel them.

    All get the same ``name`` and run ``script``. ``timeout``: the seconds for all to begin; ``progress`` is called
    with why one waits. Connections to their nodes are closed in the end.
    """
    common = ("--export=NONE", "--chdir=/", "--output=/dev/null", f"--job-name={name}", f"--wrap={script}")
    submitted: list[NodeJob] = []
    try:
        for options in option_sets:
            status, out, err = login.command("sbatch", "--parsable", *options, *common)
            refused = refusal(last_error(err)) if status else None
            number = "" if refused else out.strip().partition(";")[0]
            submitted.append(NodeJob(job=number, refused=(refused.message, refused.remedy) if refused else ("", "")))
        started = _wait_for_start(login, submitted, progress, timeout)
        submitted = [
            current if current.job else job for job, current in zip(submitted, started, strict=True)
        ]  # all are cancelled
        yield started
    finally:
        node_names = {node for job in submitted for node in job.nodes}
        for host in [job for job in connections.hosts if job.name in node_names]:
            host.close()
        if numbers := [job.job for job in submitted if job.job]:
            login.command("scancel", *numbers)


def _wait_for_start(
    login: LoginHost, submitted: Sequence[NodeJob], progress: Callable[[str], None], timeout: float
) -> list[NodeJob]:
    """Wait until each job has its nodes, or is known never to get them."""
    deadline, pending = time.monotonic() + timeout, [job for job in submitted if job.job]
    reasons: dict[str, str] = {}
    settled: dict[str, NodeJob] = {}
    while True:
        jobs = login.jobs(job.job for job in pending if job.job not in settled)
        for job in pending:
            if job.job not in settled:
                outcome = _check_job(login, job.job, jobs.get(job.job), reasons, late=time.monotonic() > deadline)
                if outcome:
                    settled[job.job] = outcome
        waiting = [jobs[job.job] for job in pending if job.job not in settled]
        if not waiting:
            return [settled.get(job.job, job) for job in submitted]
        progress(_waiting_message(waiting[0]))
        time.sleep(QUERY_INTERVAL)


def _check_job(
    login: LoginHost, number: str, job: QueuedJob | None, reasons: dict[str, str], *, late: bool
) -> NodeJob | None:
    """Return the job with its nodes, or why it gets none; None while it waits. ``late``: wait no longer."""
    if job is None or meaning(job.state).over:
        return NodeJob(refused=(f"its job {number} is {job.state if job else 'gone'}", ""))
    if job.state == "RUNNING" and job.nodes:
        return NodeJob(job=number, nodes=job.nodes)
    why = why_never(login, job) if job.reason != reasons.get(number, "") else ""
    reasons[number] = job.reason
    if why:
        return NodeJob(refused=(f"Slurm would never start such a job: {why}", ""))
    return NodeJob(refused=(f"{_waiting_message(job)} for too long", "look again when there is room")) if late else None


def _waiting_message(job: QueuedJob) -> str:
    expected = f", expected to start {job.start}" if job.start else ""
    return f"a job waits ({job.reason or job.state}{expected})"


def job_minutes(survey: SlurmEvidence, limit: int) -> int:
    """Return the minutes to ask for: ``limit``, or fewer if all partitions or an account of the user allow fewer."""
    longest = max((_minutes_or(limit, row.get("MaxTime", "")) for row in survey.partitions), default=limit)
    walls = [_minutes_or(limit, row.get("MaxWall", "")) for row in survey.associations or ()]
    return max(1, min([limit, longest, *walls]))


def _minutes_or(limit: int, text: str) -> int:
    """Return Slurm's time limit in minutes; ``limit`` if there is none."""
    allowed = minutes(text)
    return limit if allowed is None else allowed
