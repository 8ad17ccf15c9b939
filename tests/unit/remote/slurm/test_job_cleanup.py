"""What is removed of runs that Slurm has started."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from clusterddp.remote.helper.request import Request
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.slurm.job_record import SlurmJob, slurm_verdict
from clusterddp.remote.slurm.job_cleanup import prune_at_submit, slurm_clean
from clusterddp.remote.slurm.job_folder import JobFolder
from tests.unit.plan_made import PLAN

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86400 * 10**9  # ns


def a_run(state: Path, run: str, *, days_ago: int | None, project: str = "p1") -> JobFolder:
    """A run that ended so long ago, or has not: its folder, a spool, a run dir, its job's output."""
    folder = JobFolder.of(str(state), run)
    (state / "slurm" / run).mkdir(parents=True)
    plan = PLAN._replace(run=run, record=PLAN.record._replace(run=run, project=project))
    job = SlurmJob(state=str(state), plan=plan)
    (state / "slurm" / run / "job.json").write_text(json.dumps(to_fields(job)))
    (state / "slurm" / f"{len(run)}.out").write_text("said")
    folder.write_submitted(str(len(run)))
    (state / "runs" / run / "1" / "0-gpu01").mkdir(parents=True)
    (state / "rundirs" / f"{run}-gpu01").mkdir(parents=True)
    if days_ago is not None:
        at = time.time_ns() - days_ago * DAY
        folder.write_final_verdict(slurm_verdict(1, "succeeded", 0, "succeeded")._replace(ended=at, written=at))
    return folder


def left(state: Path) -> list[str]:
    found = [*state.glob("slurm/*"), *state.glob("runs/*"), *state.glob("rundirs/*")]
    return sorted(str(path.relative_to(state)) for path in found)


def of(run: str) -> list[str]:
    return sorted([f"slurm/{run}", f"slurm/{len(run)}.out", f"runs/{run}", f"rundirs/{run}-gpu01"])


def test_a_run_that_ended_a_month_ago_goes_with_its_spools_but_what_its_workers_kept(tmp_path: Path) -> None:
    a_run(tmp_path, "old", days_ago=31)
    a_run(tmp_path, "newer", days_ago=29)
    prune_at_submit(str(tmp_path))
    assert left(tmp_path) == sorted([*of("newer"), "rundirs/old-gpu01"])
    a_run(tmp_path, "older", days_ago=40)
    prune_at_submit(str(tmp_path))  # once an hour
    assert "slurm/older" in left(tmp_path)


def test_a_purge_takes_the_ended_runs_of_a_project_and_leaves_all_others(tmp_path: Path) -> None:
    a_run(tmp_path, "mine", days_ago=1)
    a_run(tmp_path, "other", days_ago=1, project="p2")
    said = slurm_clean(Request(0, {"state": str(tmp_path), "hosts": [], "project": "p1", "purge": True}, -1, -1))
    assert left(tmp_path) == of("other")
    assert (said["spools"], said["run_dirs"], said["kept"], said["nothing_left"]) == (1, 1, [], False)
    assert said["runs_left"] == 1
