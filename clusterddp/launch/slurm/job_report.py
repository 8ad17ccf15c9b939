"""What Slurm knows of a run's job beside what the run's nodes report: its state, and its end if they tell of none."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.errors import EXIT_INTERRUPTED
from clusterddp.launch.slurm.client.never_starts import told_reason
from clusterddp.launch.slurm.client.states import MANAGER, StateMeaning, meaning
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.slurm.job_record import NOT_OURS, NOT_SHARED, NOT_UNPACKED
from clusterddp.remote.shared.verdict.failures import ended_by_manager
from clusterddp.remote.shared.verdict.judge import CTRL_C
from clusterddp.remote.shared.verdict.verdict_record import VerdictRecord
from clusterddp.runs.managed_job import JobReport, JobStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.launch.slurm.client.answers import QueuedJob
    from clusterddp.remote.shared.slurm.job_record import SubmittedRun
    from clusterddp.remote.shared.verdict.node_report import NodeReport

PLACE = 1 << 20  # of the writer of a verdict that is Slurm's: behind all nodes


def is_settled(one: SubmittedRun) -> bool:
    """Whether its job has said how it ended, and Slurm knows no better."""
    return one.end is not None and one.end.attempt >= one.attempt and not _by_manager([one.end])


def job_report(
    one: SubmittedRun, nodes: Sequence[NodeReport], job: QueuedJob | None, login: str, code: str
) -> tuple[JobReport, bool]:
    """A run's job beside its nodes: its state, and its verdict where they have none; whether the nodes' verdicts count.

    ``code``: its exit status in Slurm's words, where nothing else tells of its end.
    """
    seen = max((node.attempt for node in nodes), default=0)
    forgotten = "CANCELLED" if one.stopped and not one.starts else ""  # Slurm has forgotten it, and nothing begins
    means = meaning(job.state if job else forgotten)
    waits = means.state == RunState.QUEUED
    attempt = max(1, one.attempt, seen + 1 if waits else seen)
    end = one.end if one.end and one.end.attempt >= attempt else None
    over = end is not None or means.over
    status = JobStatus(
        number=one.job or "?",
        manager_state=job.state if job else "nothing of it",
        state=end.state if end else means.state,
        ended=over,
        attempt=attempt,
        reason=told_reason(job.reason) if job else "",
        start=job.start if job and waits else "",
        ends_with_run=not one.inside,
    )
    report = JobReport(run=one.run, record=one.plan.record, job=status)
    copies = [node.verdict for node in nodes if node.verdict and node.attempt == attempt]
    known = [*copies, *([end] if end else [])]
    # where nodes share no folder, its script has more to give
    may_go_on = (one.plan.settings.relaunch > 0 or one.unshared) and end is None
    if job and (_by_manager(known) or may_go_on) and not means.over:  # Slurm or the script says why in a moment
        return replace(report, job=replace(status, ended=False)), False
    if means.over and (not known or (job and means.outside and _by_manager(known))):
        by_state = _by_slurm(one, status, means, nodes, job)
        verdict = by_exit_status(by_state, one, job, login, code) if job and code else by_state
        return replace(report, verdict=verdict), True
    return replace(report, verdict=end), True


def _by_manager(copies: Sequence[VerdictRecord]) -> bool:
    """Whether all that the nodes know is that Slurm has ended the job."""
    return any(copy.line.endswith(ended_by_manager(MANAGER)) for copy in copies)


def _by_slurm(
    one: SubmittedRun, status: JobStatus, means: StateMeaning, nodes: Sequence[NodeReport], job: QueuedJob | None
) -> VerdictRecord:
    """How a run ended whose nodes did not tell: by Slurm's word."""
    by = f" by {job.by}" if job and job.by else ""
    state_text = f"Slurm says {status.manager_state}{by}" + (f": {means.explanation}" if means.explanation else "")
    line = state_text if job else "unknown: Slurm knows nothing of its job any more"
    line = f"unknown: {line}" if means.state == RunState.UNKNOWN and job else line
    code = means.exit_code
    if one.stopped and means.state == RunState.STOPPED:
        line, code = f"stopped: {one.stopped}", EXIT_INTERRUPTED if one.stopped == CTRL_C else code
    state = RunState.LOST if means.state == RunState.UNKNOWN else means.state
    reporting = (*dict.fromkeys(node.host for node in nodes), "slurm")
    now = time.time_ns()
    attempt = status.attempt
    return VerdictRecord(attempt, state, code, line, "slurm", PLACE, reporting, written=now, ended=now)


NO_OUTPUT = "0:53"  # its node could not open the file for its output


def by_exit_status(
    by_state: VerdictRecord, one: SubmittedRun, job: QueuedJob, login: str, status: str
) -> VerdictRecord:
    """The verdict on a run whose job has ended and whose nodes report nothing."""
    nodes = ", ".join(job.nodes) or "its nodes"
    if status == f"{NOT_OURS}:0":
        line = f"{nodes}: another user owns the state folder there, or could put their own in its place"
        return by_state._replace(line=f"{line}: set clusterddp_state to a folder of your own")
    if not one.unshared:
        if status == "0:0":  # the script's last step records how the run ended, in a file
            line = (
                f"its job ended with 0, and nothing that {nodes} wrote is seen on {login}; set clusterddp_slurm_shared"
            )
            return by_state._replace(state=RunState.SUCCEEDED, exit_code=0, line=f"{line}: false")
        if status not in {NO_OUTPUT, f"{NOT_SHARED}:0"}:
            return by_state
        first = job.nodes[0] if job.nodes else "the job's first node"
        line = f"{first} and {login} share no folder: clusterddp_state has to be in one that all nodes see"
        return by_state._replace(line=f"{line}, or clusterddp_slurm_shared false")
    if status == f"{NOT_UNPACKED}:0":
        line = f"{nodes}: the run's code cannot be kept there: clusterddp_state has to be a folder of each node"
        return by_state._replace(line=line)
    found = re.fullmatch(r"([0-9]{1,3}):0", status)
    if not found:
        return by_state
    code = int(found[1])
    line = f"its job ended with {code}; its lines are on {nodes} alone, for nobody followed its end"
    return by_state._replace(state=RunState.FAILED if code else RunState.SUCCEEDED, exit_code=code, line=line)
