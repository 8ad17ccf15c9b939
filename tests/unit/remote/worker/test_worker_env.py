"""What a round's numbers say against the plan's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.worker.worker_env import wrong_size
from tests.unit.plan_made import PLAN, changed

if TYPE_CHECKING:
    from clusterddp.remote.shared.run.plan import NodePlan

FIXED = changed(PLAN, elastic=False, world_size=7, min_nodes=3)
ELASTIC = changed(PLAN, elastic=True, world_size=7, min_nodes=2)


@pytest.mark.parametrize(
    ("plan", "workers", "nodes", "said"),
    [
        (FIXED, 7, 3, ""),
        (FIXED, 2, 1, "this round has 2 workers in place of 7"),
        (FIXED, 8, 3, "this round has 8 workers in place of 7"),
        (ELASTIC, 7, 3, ""),
        (ELASTIC, 3, 2, ""),
        (ELASTIC, 2, 1, "this round has 1 nodes, and 2 are needed"),
        (FIXED, None, None, ""),
    ],
)
def test_a_round_that_is_not_the_plans_is_told(
    plan: NodePlan, workers: int | None, nodes: int | None, said: str
) -> None:
    found = wrong_size(plan, {"world_size": workers, "group_world_size": nodes})
    assert found.startswith(said)
    assert bool(found) == bool(said)
