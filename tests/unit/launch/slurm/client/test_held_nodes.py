"""Jobs that only hold nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.checks.evidence import SlurmEvidence
from clusterddp.launch.slurm.client.answers import QueuedJob
from clusterddp.launch.slurm.client.held_nodes import NodeJob, held_nodes, job_minutes

if TYPE_CHECKING:
    from collections.abc import Iterable

LIMIT = 15


@pytest.mark.parametrize(
    ("longest", "walls", "given"),
    [
        ("UNLIMITED", (), LIMIT),
        ("1-00:00:00", ("",), LIMIT),
        ("00:10:00", ("1-00:00:00",), 10),
        ("00:10:00", ("", "00:05:00"), 5),
        ("00:00:30", (), 1),
        ("", (), LIMIT),
        ("00:01:00,00:10:00", (), 10),  # of any of several partitions
        ("00:01:00,UNLIMITED", (), LIMIT),
    ],
)
def test_it_asks_for_no_more_time_than_partition_and_accounts_give(
    longest: str, walls: tuple[str, ...], given: int
) -> None:
    partitions = tuple({"MaxTime": most} for most in longest.split(","))
    associations = tuple({"MaxWall": wall} for wall in walls)
    assert job_minutes(SlurmEvidence(partitions=partitions, associations=associations), LIMIT) == given


class Queue:
    """A login host whose jobs are as the test says, look by look."""

    def __init__(self, *looks: dict[str, QueuedJob], refuses: str = "") -> None:
        self.said: list[tuple[str, ...]] = []
        self._looks, self._numbers, self._refuses = list(looks), iter("123"), refuses

    def command(self, *argv: str) -> tuple[int, str, str]:
        self.said.append(argv)
        if argv[0] == "sbatch" and self._refuses in argv:
            return 1, "", "sbatch: error: Batch job submission failed: Invalid node name specified"
        return 0, f"{next(self._numbers)}\n" if argv[0] == "sbatch" else "", ""

    def jobs(self, numbers: Iterable[str]) -> dict[str, QueuedJob]:
        wanted = set(numbers)
        look = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        return {number: job for number, job in look.items() if number in wanted}


def job(number: str, state: str, *nodes: str) -> QueuedJob:
    return QueuedJob(job=number, state=state, nodes=nodes)


def held_by(queue: Any, *asked: str, timeout: float = 60.0) -> list[NodeJob]:
    connections: Any = SimpleNamespace(hosts=[])
    wanted = [[one] for one in asked]
    with held_nodes(queue, wanted, connections, lambda _: None, name="n", script="s", timeout=timeout) as held:
        return held


def test_each_job_is_waited_for_and_all_are_cancelled_in_the_end() -> None:
    first = {"1": job("1", "RUNNING", "gpu1"), "2": job("2", "PENDING")}
    queue = Queue(first, {"2": job("2", "RUNNING", "gpu2")})
    assert [(one.job, one.nodes) for one in held_by(queue, "--a", "--b")] == [("1", ("gpu1",)), ("2", ("gpu2",))]
    assert queue.said[-1] == ("scancel", "1", "2")


def test_why_there_is_no_job_is_told_and_costs_the_others_nothing() -> None:
    queue = Queue({"1": job("1", "RUNNING", "gpu1"), "2": job("2", "CANCELLED")}, refuses="--b")
    held = held_by(queue, "--a", "--b", "--c")
    assert [one.job for one in held] == ["1", "", ""]
    assert held[1].refused[0].startswith("Slurm refuses the job: Invalid node name")
    assert held[2].refused == ("its job 2 is CANCELLED", "")


def test_one_that_waits_for_too_long_is_told_and_cancelled() -> None:
    queue = Queue({"1": job("1", "PENDING")})
    assert held_by(queue, "--a", timeout=0.0)[0].refused[0] == "a job waits (PENDING) for too long"
    assert queue.said[-1] == ("scancel", "1")


def test_nothing_is_submitted_where_nothing_is_asked_for() -> None:
    queue = Queue({})
    assert held_by(queue) == []
    assert queue.said == []
