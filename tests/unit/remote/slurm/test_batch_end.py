"""What a job's script says in the end: how the run ended, or that another attempt follows."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.slurm.job_record import SlurmJob
from clusterddp.remote.shared.verdict.judge import VerdictRecord, best_verdict
from clusterddp.remote.slurm import batch_end
from clusterddp.remote.slurm.batch_end import end, is_preempted, should_requeue, verdict_of
from clusterddp.remote.slurm.job_folder import JobFolder
from tests.unit.plan_made import PLAN, changed

if TYPE_CHECKING:
    from pathlib import Path

START = "start.7.0"


def begun(tmp_path: Path, relaunch: int = 1) -> JobFolder:
    folder = JobFolder.of(str(tmp_path), "r1")
    (tmp_path / "slurm" / "r1" / START).mkdir(parents=True)
    job = SlurmJob(state=str(tmp_path), plan=changed(PLAN, relaunch=relaunch, manager="Slurm"))
    (tmp_path / "slurm" / "r1" / "job.json").write_text(json.dumps(to_fields(job)))
    folder.write_attempt(START, 1)
    return folder


def ended(**changes: Any) -> VerdictRecord:
    return VerdictRecord(1, "failed", 1, "rank 1 failed first", "gpu01", 0, ("gpu01",))._replace(**changes)


def follows(folder: JobFolder, found: VerdictRecord, *, by_manager: bool = False) -> bool:
    return should_requeue(folder, START, found, by_manager=by_manager)


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_workers_that_heeded_the_notice_and_ended_have_another_attempt(tmp_path: Path, state: str) -> None:
    folder = begun(tmp_path)
    assert not follows(folder, ended(state=state))
    folder.write_notice(START)
    assert not follows(folder, ended(state=state))
    folder.write_notice_handled(START, 0)
    assert follows(folder, ended(state=state))


def test_those_that_were_ended_after_the_notice_have_too_but_not_by_a_signal_without_one(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    assert not follows(folder, ended(), by_manager=True)
    folder.write_notice(START)
    assert follows(folder, ended(), by_manager=True)


def test_a_lost_node_is_worth_another_attempt_while_one_is_left_and_nobody_wants_an_end(tmp_path: Path) -> None:
    folder, lost = begun(tmp_path, relaunch=2), ended(missing=("gpu02",))
    assert follows(folder, lost)
    assert follows(folder, lost._replace(attempt=2))
    assert not follows(folder, lost._replace(attempt=3))
    assert not follows(folder, lost._replace(state="succeeded"))
    folder.order_stop("by another command", 1.0)
    assert not follows(folder, lost)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the arguments of each call of scontrol, whose controller answers the second one alone."""
    calls, scontrol = tmp_path / "asked", tmp_path / "scontrol"
    scontrol.write_text(
        f'#!/bin/sh\nif [ -e {calls} ]; then echo disabled >&2; else echo "Unable to contact the controller" >&2; fi\n'
        f'echo "$@" >>{calls}\nexit 1\n'
    )
    scontrol.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(batch_end, "REQUEUE_INTERVAL", 0.0)
    return calls


def handled(tmp_path: Path, relaunch: int = 1, **changes: Any) -> JobFolder:
    """A run whose workers handled the notice and ended, as its node tells."""
    folder = begun(tmp_path, relaunch)
    folder.write_notice(START)
    folder.write_notice_handled(START, 0)
    folder.write_verdict(START, 0, ended(**{"state": "succeeded", "exit_code": 0, **changes}))
    return folder


@pytest.mark.parametrize(("array", "number"), [({}, "7"), ({"ARRAY_JOB_ID": "7", "ARRAY_TASK_ID": "3"}, "7_3")])
def test_only_the_job_itself_is_requeued_though_an_array_s_last_task_has_the_array_s_number(
    tmp_path: Path, asked: Path, monkeypatch: pytest.MonkeyPatch, array: dict[str, str], number: str
) -> None:
    for name, value in array.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    end(handled(tmp_path), START, 0)
    assert asked.read_text().splitlines()[0] == f"requeue {number}"


def test_a_requeue_is_tried_again_while_the_controller_is_away_and_not_once_slurm_refuses_it(
    tmp_path: Path, asked: Path
) -> None:
    folder = handled(tmp_path)
    assert end(folder, START, 0) == 124
    assert asked.read_text() == "requeue 7\n" * 2
    final = folder.final_verdict()
    assert final is not None
    assert final.line == "its time was nearly over, and the job is not requeued: disabled"
    assert folder.attempt() == 1


@pytest.mark.parametrize(
    ("relaunch", "found", "code", "line"),
    [
        (1, {"attempt": 2}, 124, "its time was nearly over, and all 1 relaunches are used"),
        (1, {"attempt": 2, "state": "failed", "exit_code": 3}, 3, "rank 1 failed first"),
        (0, {}, 0, "rank 1 failed first"),  # nothing was to follow
    ],
)
def test_a_run_that_saved_and_left_at_the_notice_has_not_succeeded_where_no_relaunch_is_left(
    tmp_path: Path, relaunch: int, found: dict[str, Any], code: int, line: str
) -> None:
    folder = handled(tmp_path, relaunch, **found)
    own = next(folder.verdicts(START))
    assert end(folder, START, 0) == code
    final = folder.final_verdict()
    assert final is not None
    assert final.line == line
    assert best_verdict([own, final]) == final


def test_a_preemption_uses_up_no_relaunch(tmp_path: Path) -> None:
    folder, again = begun(tmp_path, relaunch=1), "start.7.1"
    (tmp_path / "slurm" / "r1" / again).mkdir()
    folder.write_attempt(again, 2)
    lost = ended(missing=("gpu02",), attempt=2)
    assert not should_requeue(folder, again, lost, by_manager=False)
    folder.write_preempted(START)
    assert should_requeue(folder, again, lost, by_manager=False)
    assert not should_requeue(folder, again, lost._replace(attempt=3), by_manager=False)


@pytest.mark.parametrize(
    ("causes", "preempted"),
    [
        (["DUE TO PREEMPTION "], True),
        (["DUE TO PREEMPTION ", "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS "], False),
        (["DUE TO TIME LIMIT ", "DUE TO PREEMPTION "], True),
        (["DUE TO PREEMPTION ", ""], False),  # an order of scancel's
        ([], False),
    ],
)
@pytest.mark.usefixtures("capfd")
def test_what_slurm_has_ended_the_job_for_last_tells_of_a_preemption(causes: list[str], *, preempted: bool) -> None:
    for cause in causes:
        when = f"ON gpu01 CANCELLED AT 2026-11-28T11:58:01 {cause}***"
        os.write(2, f"slurmstepd-gpu01: error: *** JOB 7 {when}\nslurmstepd: error: *** STEP 7.0 {when}\n".encode())
    assert is_preempted() is preempted


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ("clusterddp: gpu02: no folder /h/.clusterddp/slurm/r1 here", "/h/.clusterddp/slurm/r1"),
        ("/usr/bin/python3: can't open file '/h/0123.pyz': [Errno 2] No such file or directory", "/h/0123.pyz"),
    ],
)
@pytest.mark.usefixtures("capfd")
def test_a_node_that_does_not_share_the_folder_of_the_others_is_why_none_began(
    tmp_path: Path, said: str, path: str
) -> None:
    folder = begun(tmp_path)
    os.write(2, f"slurmstepd: begins\n{said}\n".encode())  # the job's stderr, in a file of its own with `--error`
    found = verdict_of(folder, START, 2)
    assert found.line == f"not all of the job's nodes have {path}: they share no folder"


def test_where_no_node_told_why_the_order_does_else_the_step(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    assert verdict_of(folder, START, 9).line == "the job's step ended with 9 before any node told why"
    folder.order_start_to_stop(START, "by Slurm (SIGTERM)", 1.0)
    found = verdict_of(folder, START, 9)
    assert (found.state, found.exit_code, found.line) == ("stopped", 143, "stopped: by Slurm (SIGTERM)")
