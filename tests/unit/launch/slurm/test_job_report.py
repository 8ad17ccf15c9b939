"""What is told of a run while Slurm does not answer: what its nodes report, and never an end that only Slurm knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.errors import UnreachableError
from clusterddp.launch.slurm.client.answers import QueuedJob
from clusterddp.launch.slurm.client.states import NO_ANSWER
from clusterddp.launch.slurm.job_report import job_report, known_jobs
from clusterddp.remote.shared.slurm.job_record import BY_SCRIPT, SubmittedRun
from clusterddp.remote.shared.verdict.judge import VerdictRecord
from tests.unit.plan_made import PLAN, changed

ENDED = VerdictRecord(1, "succeeded", 0, "succeeded", BY_SCRIPT, 0, ("gpu01",))


def submitted(**changes: Any) -> SubmittedRun:
    return SubmittedRun(run="r1", plan=PLAN, job="7", starts=1, attempt=1)._replace(**changes)


def node(attempt: int = 1, verdict: VerdictRecord | None = None) -> Any:
    return SimpleNamespace(run="r1", host="gpu01", attempt=attempt, verdict=verdict)


class Away:
    """A login host whose Slurm does not answer."""

    def jobs(self, numbers: list[str]) -> dict[str, QueuedJob]:
        if not numbers:
            return {}
        raise UnreachableError("login1", "Slurm does not answer: Unable to contact slurm controller")


def asked(*runs: SubmittedRun, **nodes: list[Any]) -> dict[str, QueuedJob]:
    return known_jobs(Away(), runs, nodes)  # type: ignore[arg-type]


def test_what_the_nodes_report_has_to_do_where_slurm_does_not_answer() -> None:
    known = {"7": QueuedJob(job="7", state=NO_ANSWER)}
    assert asked(submitted(), r1=[node()]) == known
    assert (
        asked(submitted(), submitted(run="r2", end=ENDED), r1=[node()], r2=[]) == known
    )  # its script has told the end
    assert asked(submitted(end=ENDED), r1=[]) == {}


@pytest.mark.parametrize(
    "nodes",
    [
        {"r1": []},  # it may wait in the queue
        {"r1": [node(1)]},  # so may the second attempt
        {"r1": [node(2)], "r2": []},  # of another run in the same job nothing is heard
    ],
)
def test_a_run_of_which_only_slurm_could_tell_is_no_answer(nodes: dict[str, list[Any]]) -> None:
    runs = [submitted(run=run, attempt=2) for run in nodes]
    with pytest.raises(UnreachableError, match="Slurm does not answer"):
        asked(*runs, **nodes)


def test_no_verdict_comes_from_slurms_silence() -> None:
    job = QueuedJob(job="7", state=NO_ANSWER)
    silent, _ = job_report(submitted(), [node()], job, "login1", "")
    assert (silent.verdict, silent.job.ended, silent.job.state) == (None, False, "running")
    again = submitted(plan=changed(PLAN, relaunch=1))
    _, counts = job_report(again, [node(verdict=ENDED)], job, "login1", "")
    assert not counts  # the script may requeue it
    over, _ = job_report(submitted(end=ENDED), [node()], job, "login1", "")
    assert (over.verdict, over.job.ended) == (ENDED, True)


def test_a_run_that_is_being_submitted_waits_and_is_not_lost() -> None:
    """Its job's number is not known yet, so Slurm cannot be asked: who looked meanwhile took it for lost, for good."""
    run = submitted(job=None, starts=0, attempt=0, submitting=True)
    report, _ = job_report(run, [], None, "login1", "")
    assert (report.verdict, report.job.ended, report.job.state) == (None, False, "queued")
    assert report.job.waiting_for == "job ? is queued (it is being submitted)"
    cut_short, _ = job_report(run._replace(submitting=False), [], None, "login1", "")
    assert (cut_short.job.ended, cut_short.job.state) == (True, "unknown")
    stopped, _ = job_report(run._replace(stopped="by another command"), [], None, "login1", "")
    assert (stopped.job.ended, stopped.job.state) == (True, "stopped")
