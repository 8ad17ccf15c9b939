"""Hold nodes by short jobs that do nothing: each node is reached through a further step, and the jobs are cancelled.

If no process is left to cancel a job, its script or its time limit ends it.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.launch.slurm.client.answers import last_error
from clusterddp.launch.slurm.client.login_host import refusal
from clusterddp.launch.slurm.client.never_starts import minutes, why_never
from clusterddp.launch.slurm.client.states import meaning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterddp.checks.evidence import SlurmSeen
    from clusterddp.hosts.connections import Connections
    from clusterddp.launch.slurm.client.answers import QueuedJob
    from clusterddp.launch.slurm.client.login_host import LoginHost

LOOK = 0.5  # seconds between queries of the queue


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A job that holds nodes, or why there is none."""

    job: str = ""  # Slurm's number; empty where there is none
    nodes: tuple[str, ...] = ()
    refused: tuple[str, str] = ("", "")  # why there is none, and what helps


@contextlib.contextmanager
def held_nodes(
    login: LoginHost,
    asked: Sequence[Sequence[str]],
    connections: Connections,
    progress: Callable[[str], None],
    *,
    name: str,
    script: str,
    patience: float,
) -> Iterator[list[Held]]:
    """Keep jobs while the block runs, one for each set of sbatch options in ``asked``; then cancel them.

    All get the same ``name`` and run ``script``. ``patience`` is the seconds for all to begin; ``progress`` is called
    with why one waits. Connections to their nodes are closed in the end.
    """
    common = ("--export=NONE", "--chdir=/", "--output=/dev/null", f"--job-name={name}", f"--wrap={script}")
    given: list[Held] = []
    try:
        for options in asked:
            status, out, err = login.command("sbatch", "--parsable", *options, *common)
            refused = refusal(last_error(err)) if status else None
            number = "" if refused else out.strip().partition(";")[0]
            given.append(Held(job=number, refused=(refused.message, refused.remedy) if refused else ("", "")))
        begun = _begun(login, given, progress, patience)
        given = [now if now.job else one for one, now in zip(given, begun, strict=True)]  # all are cancelled
        yield begun
    finally:
        theirs = {node for one in given for node in one.nodes}
        for host in [one for one in connections.hosts if one.name in theirs]:
            host.close()
        if numbers := [one.job for one in given if one.job]:
            login.command("scancel", *numbers)


def _begun(login: LoginHost, given: Sequence[Held], progress: Callable[[str], None], patience: float) -> list[Held]:
    """Wait until each job has its nodes, or is known never to get them."""
    deadline, submitted = time.monotonic() + patience, [one for one in given if one.job]
    reasons: dict[str, str] = {}
    found: dict[str, Held] = {}
    while True:
        jobs = login.jobs(one.job for one in submitted if one.job not in found)
        for one in submitted:
            if one.job not in found:
                found_now = _looked_at(login, one.job, jobs.get(one.job), reasons, late=time.monotonic() > deadline)
                if found_now:
                    found[one.job] = found_now
        waiting = [jobs[one.job] for one in submitted if one.job not in found]
        if not waiting:
            return [found.get(one.job, one) for one in given]
        progress(_waits(waiting[0]))
        time.sleep(LOOK)


def _looked_at(
    login: LoginHost, number: str, job: QueuedJob | None, reasons: dict[str, str], *, late: bool
) -> Held | None:
    """Return a job that has its nodes, or never will; None while it waits."""
    if job is None or meaning(job.state).over:
        return Held(refused=(f"its job {number} is {job.state if job else 'gone'}", ""))
    if job.state == "RUNNING" and job.nodes:
        return Held(job=number, nodes=job.nodes)
    why = why_never(login, job) if job.reason != reasons.get(number, "") else ""
    reasons[number] = job.reason
    if why:
        return Held(refused=(f"Slurm would never start such a job: {why}", ""))
    return Held(refused=(f"{_waits(job)} for too long", "look again when there is room")) if late else None


def _waits(job: QueuedJob) -> str:
    expected = f", expected to start {job.start}" if job.start else ""
    return f"a job waits ({job.reason or job.state}{expected})"


def job_minutes(seen: SlurmSeen, most: int) -> int:
    """How long a job may last: no longer than its partition gives, or any account that the user has."""
    limits = [seen.partition.get("MaxTime", ""), *(one.get("MaxWall", "") for one in seen.associations or ())]
    known = [limit for text in limits if (limit := minutes(text)) is not None]
    return max(1, min([most, *known]))
