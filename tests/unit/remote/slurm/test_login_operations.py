"""What a login host gives Slurm's commands; with a real Slurm: tests/slurm."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

from clusterddp.remote.helper.request import Request
from clusterddp.remote.shared.schema.json_text import to_json
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.slurm.login_records import CommandAnswer, RunToSubmit, SubmitRequest
from clusterddp.remote.slurm import login_operations
from clusterddp.remote.slurm.job_folder import JobFolder
from clusterddp.remote.slurm.login_operations import _submission, run_command, submit, variables_of

TELLS = """#!/usr/bin/env python3
import json, os
print(json.dumps(dict(os.environ)))
"""


def environment_of(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **variables: str) -> dict[str, str]:
    """The environment that a login with these variables gives this command of Slurm's."""
    (folder / program).write_text(TELLS)
    (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found: dict[str, str] = json.loads(run_command([program, "word"]).out)
    return found


def test_what_a_script_sets_is_no_variables_to_change() -> None:
    script = "#!/bin/sh\n#SBATCH --time=240\n#SBATCH --gpus-per-node=2\n#SBATCH --mem 4G\necho '#SBATCH --qos=x'\n"
    assert variables_of(script) == {"SBATCH_TIMELIMIT", "SBATCH_GPUS_PER_NODE", "SBATCH_MEM_PER_NODE"}
    assert variables_of("#SBATCH --reservation=night --qos low\n") == {"SBATCH_RESERVATION", "SBATCH_QOS"}


@pytest.mark.parametrize(
    "name", ["EXPORT", "OUTPUT", "ERROR", "GET_USER_ENV", "WAIT", "SIGNAL", "ARRAY_INX", "REQUEUE"]
)
def test_a_variable_of_the_login_does_not_win_over_what_a_script_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given = {f"SBATCH_{name}": "ALL", "SBATCH_ACCOUNT": "vision"}
    seen = environment_of("sbatch", tmp_path, monkeypatch, **given)
    assert f"SBATCH_{name}" not in seen
    assert seen["SBATCH_ACCOUNT"] == "vision"  # what a script says nothing of is the user's


@pytest.mark.parametrize(
    "name",
    ["SQUEUE_PARTITION", "SQUEUE_STATES", "SCANCEL_INTERACTIVE", "SINFO_FORMAT", "SBATCH_CLUSTERS", "SLURM_CLUSTERS"],
)
def test_a_variable_of_the_login_does_not_change_what_slurm_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert name not in environment_of("squeue", tmp_path, monkeypatch, **{name: "x"})


def test_runs_without_a_jobs_number_are_being_submitted_until_the_submission_is_over(tmp_path: Path) -> None:
    folders = [JobFolder.of(str(tmp_path), run) for run in ("sweep0", "sweep1")]
    with _submission(folders):
        assert [folder.is_being_submitted() for folder in folders] == [True, True]
        folders[0].write_submitted("7_0")
        assert [folder.is_being_submitted() for folder in folders] == [False, True]
    assert not folders[1].is_being_submitted()  # it was cut short


def test_a_run_is_submitted_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Lustre without ``-o flock``: only a look meanwhile does not see that the run is being submitted."""

    def refuse(_handle: object, _operation: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", refuse)
    folder = JobFolder.of(str(tmp_path), "sweep0")
    with _submission([folder]):
        assert not folder.is_being_submitted()


SWEEP = {"0": "sweep0", "1": "sweep1"}


class SubmitCall(Request):
    """The request to submit some runs, with their JSON in one piece."""

    def __init__(self, state: Path, runs: dict[str, str]) -> None:
        name = "sweep" if runs else "night"
        to_submit = RunToSubmit(run=name, script="", job={}, secrets={"TOKEN": "x"}, inside=None, runs=runs)
        self.data = to_json(to_fields(to_submit)).encode()
        super().__init__(1, {"state": str(state), **to_fields(SubmitRequest(len(self.data)))}, -1, -1)

    def read(self) -> bytes:
        """The JSON, and then nothing."""
        data, self.data = self.data, b""
        return data


@pytest.mark.parametrize(("runs", "jobs"), [({}, ["7"]), (SWEEP, ["7_0", "7_1"])])
def test_a_run_that_is_stopped_while_it_is_submitted_leaves_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: dict[str, str], jobs: list[str]
) -> None:
    """Nobody knew its number when it was stopped: it waited in the queue, perhaps for days, to start and end."""
    folders, cancelled = [JobFolder.of(str(tmp_path), run) for run in runs.values() or ("night",)], []

    def command(argv: list[str], **_: object) -> CommandAnswer:
        if argv[0] == "scancel":
            cancelled.append(argv[1])
        else:
            for folder in folders:
                folder.order_stop("by another command", 30.0)
        return CommandAnswer(status=0, out="7\n", err="")

    monkeypatch.setattr(login_operations, "run_command", command)
    submit(SubmitCall(tmp_path, runs))
    assert cancelled == jobs
    assert [folder.submitted() for folder in folders] == jobs


@pytest.mark.parametrize("runs", [{}, SWEEP])
def test_the_folders_of_runs_that_sbatch_refuses_are_removed_when_no_file_in_them_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: dict[str, str]
) -> None:
    """NFS keeps a file that is open, by another name, so the folder could not be removed, and sbatch was not heard."""
    removed, remove = [], shutil.rmtree

    def rmtree(path: str) -> None:
        opened = [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]
        assert not [one for one in opened if one.startswith(str(tmp_path))]
        removed.append(Path(path).name)
        remove(path)

    refusal = CommandAnswer(status=1, out="", err="sbatch: error: invalid partition specified: a100")
    monkeypatch.setattr(login_operations, "run_command", lambda *_, **__: refusal)
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert submit(SubmitCall(tmp_path, runs))["err"] == refusal.err
    assert removed == ([*runs.values()] or ["night"])
