"""What Slurm knows of a run's job beside what the run's nodes report: its state, and its end if they tell of none."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.errors import UnreachableError
from clusterddp.launch.slurm.client.answers import QueuedJob
from clusterddp.launch.slurm.client.never_starts import describe_reason
from clusterddp.launch.slurm.client.states import MANAGER, NO_ANSWER, StateMeaning, meaning
from clusterddp.remote.shared.processes.exit_codes import EXIT_INTERRUPTED
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.slurm.job_record import BY_SCRIPT, NOT_OURS, NOT_SHARED, NOT_WRITTEN, slurm_verdict
from clusterddp.remote.shared.verdict.failures import ended_by_manager
from clusterddp.remote.shared.verdict.judge import CTRL_C, VerdictRecord
from clusterddp.runs.view.managed_job import JobReport, JobStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.launch.slurm.client.login_host import LoginHost
    from clusterddp.remote.shared.slurm.job_record import SubmittedRun
    from clusterddp.remote.shared.verdict.node_report import NodeReport


def has_final_report(run: SubmittedRun) -> bool:
    """Whether the end of the last attempt is recorded, and the cause was not Slurm."""
    return run.end is not None and run.end.attempt >= run.attempt and not _ended_by_slurm([run.end])


def known_jobs(
    login: LoginHost, runs: Sequence[SubmittedRun], nodes: Mapping[str, Sequence[NodeReport]]
) -> dict[str, QueuedJob]:
    """Return Slurm's report on the jobs of runs whose script has recorded no end, by number.

    Where Slurm does not answer, what the nodes of each run report has to do: their jobs are then in state NO_ANSWER.
    Raises UnreachableError if no node of a run's present attempt reports.
    """
    asked = [run for run in runs if run.job and not has_final_report(run)]
    numbers = [run.job for run in asked if run.job]
    try:
        return login.jobs(numbers)
    except UnreachableError:
        if not all(any(node.attempt >= run.attempt for node in nodes[run.run]) for run in asked):
            raise
        return {number: QueuedJob(job=number, state=NO_ANSWER) for number in numbers}


def ended_by_script(run: SubmittedRun) -> bool:
    """Whether the job's script has recorded, without any node, how the last attempt ended."""
    return run.end is not None and run.end.writer == BY_SCRIPT and has_final_report(run)


def job_report(
    run: SubmittedRun, nodes: Sequence[NodeReport], job: QueuedJob | None, login: str, code: str
) -> tuple[JobReport, bool]:
    """Return the report of a run's job, with a verdict if its nodes have none, and whether the nodes' verdicts count.

    ``code``: its exit status in Slurm's words, where nothing else tells of its end.
    """
    last_attempt = max((node.attempt for node in nodes), default=0)
    # Without a job: Slurm has forgotten it, and nothing begins, or Slurm has not taken it yet.
    without = "CANCELLED" if run.stopped and not run.starts else "PENDING" if run.submitting else ""
    means = meaning(job.state if job else without)
    waits = means.state == RunState.QUEUED
    attempt = max(1, run.attempt, last_attempt + 1 if waits else last_attempt)
    end = run.end if run.end and run.end.attempt >= attempt else None
    over = end is not None or means.over
    status = JobStatus(
        number=run.job or "?",
        manager_state=job.state if job else "nothing of it",
        state=end.state if end else means.state,
        ended=over,
        attempt=attempt,
        reason=describe_reason(job) if job else "it is being submitted" if waits else "",
        start=job.start if job and waits else "",
        ends_with_run=not run.inside,
    )
    report = JobReport(run=run.run, record=run.plan.record, job=status)
    copies = [node.verdict for node in nodes if node.verdict and node.attempt == attempt]
    verdicts = [*copies, *([end] if end else [])]
    # where nodes share no folder, its script has more to give
    may_go_on = (run.plan.settings.relaunch > 0 or run.unshared) and end is None
    if job and (_ended_by_slurm(verdicts) or may_go_on) and not means.over:  # Slurm or the script says why in a moment
        return replace(report, job=replace(status, ended=False)), False
    if means.over and (not verdicts or (job and means.outside and _ended_by_slurm(verdicts))):
        by_state = _verdict_by_slurm(run, status, means, nodes, job)
        verdict = by_exit_status(by_state, run, job, login, code) if job and code else by_state
        return replace(report, verdict=verdict), True
    return replace(report, verdict=end), True


def _ended_by_slurm(copies: Sequence[VerdictRecord]) -> bool:
    """Whether a verdict says only that Slurm has ended the job."""
    return any(copy.line.endswith(ended_by_manager(MANAGER)) for copy in copies)


def _verdict_by_slurm(
    run: SubmittedRun,
    status: JobStatus,
    means: StateMeaning,
    nodes: Sequence[NodeReport],
    job: QueuedJob | None,
) -> VerdictRecord:
    """Return the verdict on a run whose nodes reported none, from Slurm's state of the job."""
    by = f" by {job.by}" if job and job.by else ""
    state_text = f"Slurm says {status.manager_state}{by}" + (f": {means.explanation}" if means.explanation else "")
    line = state_text if job else "unknown: Slurm knows nothing of its job any more"
    line = f"unknown: {line}" if means.state == RunState.UNKNOWN and job else line
    code = means.exit_code
    if run.stopped and means.state == RunState.STOPPED:
        line, code = f"stopped: {run.stopped}", EXIT_INTERRUPTED if run.stopped == CTRL_C else code
    # A verdict is final: a run that Slurm can tell nothing of any more is lost.
    state = RunState.LOST if means.state == RunState.UNKNOWN else means.state
    verdict = slurm_verdict(status.attempt, state, code, line, tuple(dict.fromkeys(node.host for node in nodes)))
    return verdict._replace(writer="login host")  # the job's script has said nothing


NO_OUTPUT = "0:53"  # its node could not open the file for its output


def by_exit_status(
    by_state: VerdictRecord, run: SubmittedRun, job: QueuedJob, login: str, status: str
) -> VerdictRecord:
    """Return the verdict on a run whose nodes report nothing: ``by_state``, made precise by the exit status."""
    nodes = ", ".join(job.nodes) or "its nodes"
    first = job.nodes[0] if job.nodes else "the job's first node"
    if status == f"{NOT_OURS}:0":
        line = f"{nodes}: another user owns the state folder there, or could put their own in its place"
        return by_state._replace(line=f"{line}: set clusterddp_state to a folder of your own")
    if not run.unshared:
        if status == "0:0":  # the script's last step records how the run ended, in a file
            line = (
                f"its job ended with 0, and nothing that {nodes} wrote is seen on {login}; set clusterddp_slurm_shared"
            )
            return by_state._replace(state=RunState.SUCCEEDED, exit_code=0, line=f"{line}: false")
        if status == f"{NOT_WRITTEN}:0":
            line = f"{first} cannot write in the state folder: make room there, or make it writable"
            return by_state._replace(line=line)
        if status not in {NO_OUTPUT, f"{NOT_SHARED}:0"}:
            return by_state
        line = f"{first} and {login} share no folder: clusterddp_state has to be in one that all nodes see"
        return by_state._replace(line=f"{line}, or clusterddp_slurm_shared false")
    if status == f"{NOT_WRITTEN}:0":
        line = f"{nodes}: the run's code cannot be kept there: clusterddp_state has to be a folder of each node"
        return by_state._replace(line=line)
    match = re.fullmatch(r"([0-9]{1,3}):0", status)
    if not match:
        return by_state
    code = int(match[1])
    line = f"its job ended with {code}; its lines are on {nodes} alone, for nobody followed its end"
    return by_state._replace(state=RunState.FAILED if code else RunState.SUCCEEDED, exit_code=code, line=line)
