"""The job in which the doctor looks at nodes."""

from __future__ import annotations

import pytest

from clusterddp.checks.evidence import SlurmSeen
from clusterddp.doctor.allocation import LIMIT, job_minutes


@pytest.mark.parametrize(
    ("longest", "walls", "given"),
    [
        ("UNLIMITED", (), LIMIT),
        ("1-00:00:00", ("",), LIMIT),
        ("00:10:00", ("1-00:00:00",), 10),
        ("00:10:00", ("", "00:05:00"), 5),
        ("00:00:30", (), 1),
        ("", (), LIMIT),
    ],
)
def test_it_asks_for_no_more_time_than_partition_and_accounts_give(
    longest: str, walls: tuple[str, ...], given: int
) -> None:
    associations = tuple({"MaxWall": wall} for wall in walls)
    assert job_minutes(SlurmSeen(partition={"MaxTime": longest}, associations=associations)) == given
