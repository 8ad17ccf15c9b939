"""What a login host gives Slurm's commands; with a real Slurm: tests/slurm."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.slurm.job_folder import JobFolder
from clusterddp.remote.slurm.login_operations import _submission, run_command, variables_of

if TYPE_CHECKING:
    from pathlib import Path

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
