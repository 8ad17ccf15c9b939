"""Which host holds a rank."""

from __future__ import annotations

import pytest

from clusterddp.errors import RunError
from clusterddp.runs.view.run_view import RunView, run_views
from tests.unit.runs_told import Told


def node(rank: int) -> Told:
    return Told(rank, workers=2, run="r1", hosts=["gpu00", "gpu01"])


def view(*told: Told, unreachable: tuple[str, ...] = ()) -> RunView:
    (found,) = run_views([one.node for one in told or (node(0), node(1))], unreachable)
    return found


def test_each_rank_has_its_host() -> None:
    assert view().holders((0, 3)) == {0: "gpu00", 3: "gpu01"}


def test_a_rank_that_no_worker_has_is_refused_with_those_that_are() -> None:
    with pytest.raises(RunError, match="run r1 has no rank 4; its last rank is 3"):
        view().holders((3, 5, 4))
    with pytest.raises(RunError, match="run r1 has no rank 9; its last rank is 0"):
        view(Told(0, workers=1, run="r1")).holders((9,))
    with pytest.raises(RunError, match="no worker of it has started yet"):
        view(Told(0, workers=0, run="r1")).holders((0,))


def test_a_rank_that_may_be_on_a_host_without_an_answer_is_not_said_to_be_missing() -> None:
    with pytest.raises(RunError, match="rank 2 of run r1 was not found; gpu01 did not answer"):
        view(node(0), unreachable=("gpu01",)).holders((0, 2))
