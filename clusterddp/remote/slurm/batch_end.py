"""The end of a job's batch script: decides how the run ended, from its nodes' spools, and the exit code for that."""

import os
import re
import subprocess
import sys
import time
from typing import Optional

from ..shared.processes.exit_codes import (
    EXIT_INTERRUPTED,
    EXIT_KILLED,
    EXIT_NOT_THE_SCRIPT,
    EXIT_STOPPED,
    EXIT_TIME_LIMIT,
)
from ..shared.run.run_state import RunState
from ..shared.slurm.job_record import BY_SCRIPT, NOT_SHARED, job_number, slurm_verdict
from ..shared.verdict.failures import ended_by_manager
from ..shared.verdict.judge import CTRL_C, VerdictRecord, best_verdict
from .job_folder import JobFolder

NO_FOLDER = "not all of the job's nodes have"  # begins a verdict's line
SEARCHED_BYTES = 1 << 16  # at the end of the job's output, which are searched for Slurm's reason for killing a step
_MEMORY_EXCEEDED = re.compile(rb"(?im)^(?:slurmstepd|srun)\S*: .*(?:exceeded memory limit|oom.kill|Out Of Memory)")
_MISSING_FOLDER = re.compile(rb"(?m)^(?:clusterddp: \S+: no folder (/.*) here$|.*: can't open file '(/[^']*\.pyz)')")
# What Slurm writes into the output when it ends the job, before the signal, with the cause if there is one.
_JOB_ENDED = re.compile(rb"\*\*\* JOB [0-9]+ ON \S+ CANCELLED AT ([^*\n]*)\*\*\*")
REQUEUE_TIMEOUT = 120.0  # seconds for Slurm's controller to answer, then to end this script
REQUEUE_INTERVAL = 3.0  # seconds between two attempts to requeue the job while the controller is away
# What Slurm answers by itself, which is the same later; all else is told of a controller that is away.
_FINAL_REFUSAL = re.compile("(?i)disabled|invalid job id|denied|not supported|no such file")
COLLECTION_TIMEOUT = 60.0  # seconds for the files to be fetched
COLLECTION_CHECK_INTERVAL = 0.1  # seconds
CLIENT_CHECK_INTERVAL = 2.0  # seconds between two checks whether a client is attached
STEP = re.compile(r"[0-9_]+\.[0-9]+")  # a step's id: neither the script's own step nor Slurm's external one


def end(folder: JobFolder, start: str, status: int) -> int:
    """Print how the run ended and record it, or requeue the job for another attempt; returns the exit code.

    ``start`` is the name of this start of the job, ``status`` srun's exit status.
    """
    verdict = verdict_of(folder, start, status)
    job = folder.job()
    plan = job.plan
    by_manager = verdict.line.endswith(ended_by_manager(plan.manager))
    if job.sent_code:
        folder.write_awaits_collection(start)
    if should_requeue(folder, start, verdict, by_manager=by_manager):
        folder.write_requeued(start, requeued=True)
        if job.sent_code:
            wait_for_collection(folder, start)
            folder.remove_secrets()  # the next start may be on other nodes
        _print_line(
            folder, "%s; attempt %d comes when Slurm starts the job again" % (verdict.line, verdict.attempt + 1)
        )
        why = "the job is not requeued: %s" % requeue(job_number(os.environ))
        _print_line(folder, why)
        folder.write_requeued(start, requeued=False)
        verdict = _unless_unfinished(folder, start, verdict, why, by_manager=by_manager)
        folder.write_final_verdict(verdict)
    elif not (by_manager and plan.settings.relaunch):  # else only Slurm knows whether it starts again
        if plan.settings.relaunch:
            why = "all %d relaunches are used" % plan.settings.relaunch
            verdict = _unless_unfinished(folder, start, verdict, why)
        folder.write_final_verdict(verdict)
        if job.sent_code:
            wait_for_collection(folder, start)
    _print_line(folder, verdict.line)
    return NOT_SHARED if verdict.line.startswith(NO_FOLDER) else verdict.exit_code  # nobody else may see what we wrote


def should_requeue(folder: JobFolder, start: str, verdict: VerdictRecord, *, by_manager: bool) -> bool:
    """Whether to requeue the job for another attempt.

    Not if no attempts are left, there is an order to stop, or the run is inside an existing allocation. Otherwise after
    a notice, or if nodes are missing from a run that did not succeed.
    """
    job = folder.job()
    is_last = folder.relaunches(start, verdict.attempt) >= job.plan.settings.relaunch
    if is_last or folder.stop_order() or job.inside:
        return False
    if _ended_after_notice(folder, start, by_manager=by_manager):
        return True
    return bool(verdict.missing) and verdict.state != RunState.SUCCEEDED


def _ended_after_notice(folder: JobFolder, start: str, *, by_manager: bool) -> bool:
    """Return whether a start ended because its time was nearly over: workers handled the notice, or Slurm ended it."""
    return folder.notice(start) and (by_manager or folder.notice_handled(start))


def _unless_unfinished(
    folder: JobFolder, start: str, verdict: VerdictRecord, why: str, *, by_manager: bool = False
) -> VerdictRecord:
    """The verdict on a run that is not started again: the nodes', unless they ended before the run was done.

    ``why`` no attempt follows. What failed by itself, or was stopped by an order, keeps the nodes' verdict.
    """
    is_unfinished = _ended_after_notice(folder, start, by_manager=by_manager)
    if not is_unfinished or verdict.state == RunState.FAILED or folder.stop_order():
        return verdict
    return verdict._replace(
        state=RunState.FAILED,
        exit_code=EXIT_TIME_LIMIT,
        line="its time was nearly over, and %s" % why,
        reported=(*verdict.reported, BY_SCRIPT),  # one more than in the nodes' own copies, so that this one counts
    )


def requeue(job: str) -> str:
    """Requeue the job, which ends this script; returns why that is not possible.

    While Slurm's controller is away, it is asked again.
    """
    deadline = time.monotonic() + REQUEUE_TIMEOUT
    while True:
        refusal = _ask_to_requeue(job)
        if not refusal:
            time.sleep(REQUEUE_TIMEOUT)
            return "Slurm has not ended this script"
        if _FINAL_REFUSAL.search(refusal) or time.monotonic() + REQUEUE_INTERVAL > deadline:
            return refusal
        time.sleep(REQUEUE_INTERVAL)


def _ask_to_requeue(job: str) -> str:
    """Ask Slurm once to requeue the job; returns why it did not, empty on success."""
    try:
        done = subprocess.run(["scontrol", "requeue", job], check=False, capture_output=True)
    except OSError as error:
        return str(error)
    return done.stderr.decode(errors="replace").strip() or "scontrol failed" if done.returncode else ""


def _print_line(folder: JobFolder, line: str) -> None:
    sys.stdout.write("clusterddp: run %s: %s\n" % (folder.run, line))
    sys.stdout.flush()


def verdict_of(folder: JobFolder, start: str, status: int) -> VerdictRecord:
    """The verdict of the nodes, else one from why they could not begin, else one from srun's status and output."""
    spools, attempt = folder.spools(), max(1, folder.attempt())
    verdicts = (*(spool.verdict() for spool in spools), *folder.verdicts(start))
    copies = [copy for copy in verdicts if copy and copy.attempt >= attempt]
    verdict: Optional[VerdictRecord] = best_verdict(copies)
    if verdict:
        return verdict
    failures = list(folder.failures())
    order = folder.stop_order() or folder.stop_order(start)
    if order:
        code = EXIT_INTERRUPTED if order.reason == CTRL_C else EXIT_STOPPED
        return slurm_verdict(attempt, RunState.STOPPED, code, "stopped: %s" % order.reason)
    if failures:
        return slurm_verdict(attempt, RunState.FAILED, EXIT_NOT_THE_SCRIPT, failures[0])
    output = _last_output() if status else b""
    if _MEMORY_EXCEEDED.search(output):
        return slurm_verdict(attempt, RunState.FAILED, EXIT_KILLED, "out of memory: Slurm has ended the job's step")
    missing = _MISSING_FOLDER.search(output)
    if missing:
        path = (missing[1] or missing[2]).decode(errors="replace")
        return slurm_verdict(
            attempt, RunState.FAILED, EXIT_NOT_THE_SCRIPT, "%s %s: they share no folder" % (NO_FOLDER, path)
        )
    return slurm_verdict(
        attempt, RunState.FAILED, EXIT_NOT_THE_SCRIPT, "the job's step ended with %d before any node told why" % status
    )


def is_preempted() -> bool:
    """Whether Slurm has just ended the job because another one takes its nodes."""
    causes = _JOB_ENDED.findall(_last_output())  # the output may be that of several starts
    return bool(causes) and b"PREEMPTION" in causes[-1]


def _last_output() -> bytes:
    """The end of what the job has printed on stderr, where Slurm's own processes report errors."""
    try:
        with open("/proc/self/fd/2", "rb") as file:
            if not file.seekable():
                return b""
            file.seek(max(0, file.seek(0, os.SEEK_END) - SEARCHED_BYTES))
            return file.read()
    except OSError:  # the verdict does without it
        return b""


def wait_for_collection(folder: JobFolder, start: str) -> None:
    """Wait until the nodes' files are fetched: at most a minute, and only while a client follows the run."""
    deadline, next_check = time.monotonic() + COLLECTION_TIMEOUT, 0.0
    while not folder.collected(start) and time.monotonic() < deadline:
        if time.monotonic() >= next_check:
            next_check = time.monotonic() + CLIENT_CHECK_INTERVAL
            if not _is_client_attached():
                break
        time.sleep(COLLECTION_CHECK_INTERVAL)
    folder.remove_code()


def _is_client_attached() -> bool:
    """Whether the job has another step: the helper of a client that follows the run."""
    argv = ["squeue", "--steps", "--noheader", "--format=%i", "--jobs", os.environ["SLURM_JOB_ID"]]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    return done.returncode != 0 or any(map(STEP.fullmatch, done.stdout.split()))
