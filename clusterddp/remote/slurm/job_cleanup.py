"""Remove the files of runs under Slurm from the folder that the login host and all nodes share."""

import os
import shutil
import time
from typing import Any, Dict, Iterator, Optional, Set

from ..cleanup import retention, uninstall
from ..cleanup.helpers import remove_unused_helpers
from ..helper.request import Request
from ..shared.cleanup.cleanup_records import CleanAnswer, CleanRequest
from ..shared.schema.record import to_fields
from ..shared.slurm.job_record import JOB_ID
from ..spool.layout import all_spools
from ..system.bootstrap import Refused
from .job_folder import NAME, JobFolder, run_folders
from .login_operations import run_command, submit

STAMP = "pruned-slurm"  # a file of the state folder: its mtime is when old runs were last removed
SCRIPT_END_TIMEOUT = 20.0  # seconds for a script to finish after its nodes have ended
CHECK_INTERVAL = 0.5  # seconds


def slurm_submit(request: Request) -> Dict[str, Any]:
    """Operation: submit a run (``login_operations.submit``), then remove old runs."""
    answer = submit(request)
    prune_at_submit(request.state)
    return answer


def slurm_clean(request: Request) -> Dict[str, Any]:
    """Operation: like ``clean`` on a host, for the files that all nodes of runs under Slurm share."""
    asked, state, removed = request.read_args(CleanRequest), request.state, retention.RemovalCounts()
    purged = asked.project if asked.purge else None
    if purged:
        _await_stopped(state, purged)
    ended = EndedRuns(state)
    for folder in ended.folders():
        is_of_project = bool(purged) and _project_of(folder) == purged
        if is_of_project or ended.is_old(folder):
            remove_run(folder, removed, run_dirs=is_of_project)
    runs_left = len({spool.run for spool in all_spools(state)}.union(folder.run for folder in run_folders(state)))
    is_last = asked.purge and not runs_left
    helpers = remove_unused_helpers(state, this_version=is_last)
    workdirs = uninstall.unclaimed_workdirs(state)
    if is_last:
        _unlink(os.path.join(state, STAMP))
        retention.remove_empty(os.path.join(state, NAME))
    return to_fields(
        CleanAnswer(
            spools=removed.spools,
            bytes=removed.bytes,
            run_dirs=removed.run_dirs,
            helpers=helpers,
            kept=(),
            workdirs=tuple(workdirs),
            nothing_left=is_last and uninstall.remove_leftovers(state),
            runs_left=runs_left,
            left=removed.left,
        )
    )


def _await_stopped(state: str, project: str) -> None:
    """Wait until the project's stopped runs are over: a script records the end after its nodes have ended."""
    stopped = [folder for folder in run_folders(state) if folder.stop_order() and _project_of(folder) == project]
    deadline = time.monotonic() + SCRIPT_END_TIMEOUT
    while not all(map(EndedRuns(state).has_ended, stopped)) and time.monotonic() < deadline:
        time.sleep(CHECK_INTERVAL)


def prune_at_submit(state: str) -> None:
    """Remove old runs, at most once an hour; errors are ignored, since they do not prevent a submission."""
    try:
        if retention.take_hourly_turn(os.path.join(state, STAMP)):
            ended = EndedRuns(state)
            for folder in ended.folders():
                folder.remove_secrets()
                if ended.is_old(folder):
                    remove_run(folder, retention.RemovalCounts(), run_dirs=False)
    except (OSError, ValueError, Refused):  # the next submission, or `down`, tries again
        pass


class EndedRuns:
    """The runs in a state folder that are over; Slurm is asked at most once, if a script has recorded no end."""

    def __init__(self, state: str) -> None:
        self.state = state
        self._jobs: Optional[Set[str]] = None

    def folders(self) -> Iterator[JobFolder]:
        """Iterate over the folders of runs that are over."""
        return filter(self.has_ended, run_folders(self.state))

    def has_ended(self, folder: JobFolder) -> bool:
        """Whether a run is over."""
        end = folder.final_verdict()
        return end.attempt >= folder.attempt() if end else self._ended_without_record(folder)

    def _ended_without_record(self, folder: JobFolder) -> bool:
        """Whether a run without an end record is over: neither Slurm has its job, nor is a supervisor alive."""
        job = folder.submitted()
        return job is not None and job not in self._live_jobs() and not any(spool.alive() for spool in folder.spools())

    def _live_jobs(self) -> Set[str]:
        """List the jobs that Slurm has; raises Refused if it does not answer."""
        if self._jobs is None:
            answer = run_command(["squeue", "--me", "--all", "--noheader", "--array", "--format=%i"])
            if answer.status != 0:
                raise Refused("squeue does not answer")
            self._jobs = set(filter(JOB_ID.fullmatch, answer.out.split()))
        return self._jobs

    def is_old(self, folder: JobFolder) -> bool:
        """Whether a run ended more than 30 days ago."""
        end = folder.final_verdict()
        ended = (end.ended or end.written) / 1e9 if end else os.stat(folder.path).st_mtime
        return time.time() - ended > retention.MAX_AGE_DAYS * 86400


def remove_run(folder: JobFolder, removed: retention.RemovalCounts, *, run_dirs: bool) -> None:
    """Remove a run's folder, spools and job output, and with ``run_dirs`` also its workers' run directories."""
    for spool in list(all_spools(folder.state, folder.run)):
        removed.remove(folder.state, spool, run_dir=run_dirs)
    if any(all_spools(folder.state, folder.run)):  # with what could not be removed
        return
    job = folder.submitted()
    if job:
        _unlink(os.path.join(folder.state, NAME, "%s.out" % job))
    _unlink(folder.path + ".out")
    shutil.rmtree(folder.path, ignore_errors=True)


def _project_of(folder: JobFolder) -> Optional[str]:
    try:
        return folder.job().plan.record.project
    except Refused:  # damaged: it belongs to no project and is removed by age alone
        return None


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # there was none, or another `down` was faster
