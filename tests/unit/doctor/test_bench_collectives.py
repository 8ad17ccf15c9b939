"""What the bench measures on all hosts together is what the chosen checks judge."""

from __future__ import annotations

from typing import Any

import pytest

from clusterddp.checks.engine import select
from clusterddp.doctor.bench_collectives import _failure_of, measurements_for
from clusterddp.doctor.rehearsal import ProgramResult
from clusterddp.errors import UnreachableError


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
    assert measurements_for(select(only, bench=True)) == parts


LOST = UnreachableError("gpu01", "no answer")


@pytest.mark.parametrize(
    ("played", "why"),
    [
        ({"lost": LOST, "seconds": 2.0}, ("gpu01: no answer", ("gpu01",), "")),
        ({"late": True, "lost": LOST, "seconds": 9.0}, ("it did not end within 9 s", (), "")),
        ({"seconds": 9.0}, ("it did not end within 9 s", (), "")),
    ],
)
def test_hosts_that_are_lost_are_not_taken_for_a_job_that_hangs(played: dict[str, Any], why: object) -> None:
    assert _failure_of(ProgramResult(left={}, **played)) == why
