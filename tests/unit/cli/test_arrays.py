"""Which array a name means where several people have one of that name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.cli.arrays import find_referenced_runs
from clusterddp.errors import RunError
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.runs.choose import Requester, choose_run
from clusterddp.runs.view.managed_job import JobStatus
from clusterddp.runs.view.run_view import RunView

ME, YOU = "me@here", "you@there"


def sweep(array: str, operator: str, *, ended: bool = False) -> list[RunView]:
    """The two runs of an array."""
    job = JobStatus(number="7_0", manager_state="RUNNING", state="succeeded" if ended else "running", ended=ended)
    return [
        RunView(
            run=f"{array}{index}",
            nodes=(),
            job=job,
            local_record=RunRecord(
                hosts=(), run=f"{array}{index}", name=f"sweep.{index}", array=array, operator=operator, project=operator
            ),
        )
        for index in range(2)
    ]


def found(*views: RunView, reading: bool) -> list[str]:
    """The ids of the runs that ``sweep`` means to me."""
    owner = Requester(operator=ME, project=ME)
    cluster: Any = SimpleNamespace(
        owner=owner,
        list_runs=lambda _: list(views),
        find=lambda reference, *, reading: choose_run(views, reference, owner, ending=not reading),
        attach=lambda view: view,
    )
    return [run.run for run in find_referenced_runs(cluster, "sweep", reading=reading)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("reading", [False, True])
def test_the_name_of_an_array_means_mine_though_another_is_newer(*, reading: bool) -> None:
    mine, theirs = sweep("aaaaaaaaa", ME), sweep("bbbbbbbbb", YOU)
    assert found(*mine, *theirs, reading=reading) == ["aaaaaaaaa1", "aaaaaaaaa0"]


def test_an_array_of_another_is_meant_for_reading_alone() -> None:
    theirs = sweep("bbbbbbbbb", YOU)
    assert found(*theirs, reading=True) == ["bbbbbbbbb1", "bbbbbbbbb0"]
    with pytest.raises(RunError, match=f"is a run of {YOU}"):
        found(*theirs, reading=False)


def test_an_array_that_has_ended_is_meant_for_reading_alone() -> None:
    mine, theirs = sweep("aaaaaaaaa", ME, ended=True), sweep("bbbbbbbbb", YOU)
    assert found(*mine, *theirs, reading=True) == ["aaaaaaaaa1", "aaaaaaaaa0"]
    with pytest.raises(RunError, match="is an array of 2 runs"):
        found(*mine, *theirs, reading=False)
