"""What the bench measures on all hosts together is what the chosen checks judge."""

from __future__ import annotations

import pytest

from clusterddp.checks.engine import select
from clusterddp.doctor.bench_collectives import parts_for


@pytest.mark.parametrize(
    ("only", "parts"),
    [
        ((), ("gemm", "allreduce", "late")),
        (("stragglers",), ("gemm", "late")),
        (("allreduce",), ("gemm", "allreduce")),
        (("gemm",), ("gemm",)),
    ],
)
def test_only_what_the_chosen_checks_judge_is_measured(only: tuple[str, ...], parts: tuple[str, ...]) -> None:
    assert parts_for(select(only, bench=True)) == parts
