"""What a job's exit status tells of a run whose nodes tell nothing."""

from __future__ import annotations

import pytest

from clusterddp.launch.slurm.client.answers import QueuedJob
from clusterddp.launch.slurm.job_report import by_exit_status
from clusterddp.remote.shared.slurm.job_record import SubmittedRun
from clusterddp.remote.shared.verdict.judge import VerdictRecord
from tests.unit.plan_made import PLAN

SAID = VerdictRecord(1, "failed", 125, "Slurm says FAILED", "slurm", 0, ("slurm",))
JOB = QueuedJob(job="7", state="FAILED", nodes=("gpu01", "gpu02"))
ALONE = "its lines are on gpu01, gpu02 alone, for nobody followed its end"


@pytest.mark.parametrize(
    ("unshared", "status", "state", "code", "line"),
    [
        (False, "1:0", "failed", 125, "Slurm says FAILED"),
        (False, "0:53", "failed", 125, "gpu01 and login share no folder: clusterddp_state has to be in one that all"),
        (False, "93:0", "failed", 125, "gpu01 and login share no folder: clusterddp_state has to be in one that all"),
        (False, "92:0", "failed", 125, "gpu01, gpu02: another user owns the state folder there, or could put"),
        (True, "92:0", "failed", 125, "gpu01, gpu02: another user owns the state folder there, or could put"),
        (False, "0:0", "succeeded", 0, "its job ended with 0, and nothing that gpu01, gpu02 wrote is seen on login"),
        (False, "94:0", "failed", 125, "gpu01 cannot write in the state folder: make room there"),
        (True, "94:0", "failed", 125, "gpu01, gpu02: the run's code cannot be kept there: clusterddp_state has to be"),
        (True, "7:0", "failed", 7, f"its job ended with 7; {ALONE}"),
        (True, "0:0", "succeeded", 0, f"its job ended with 0; {ALONE}"),
        (True, "0:9", "failed", 125, "Slurm says FAILED"),
        (True, "nonsense", "failed", 125, "Slurm says FAILED"),
    ],
)
def test_it_is_the_verdict_where_the_script_could_tell_in_no_other_way(
    unshared: bool,  # noqa: FBT001 - a case
    status: str,
    state: str,
    code: int,
    line: str,
) -> None:
    told = by_exit_status(SAID, SubmittedRun(run="r1", plan=PLAN, unshared=unshared), JOB, "login", status)
    assert (told.state, told.exit_code) == (state, code)
    assert told.line.startswith(line)
