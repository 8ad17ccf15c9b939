"""Ranks that wait in a call that no record has are found by their stacks: NCCL's first call keeps a core busy."""

from __future__ import annotations

import pytest

from clusterddp.remote.shared.collectives import hang_sentence
from clusterddp.remote.shared.collectives.hang_judge import (
    ADVANCING,
    BEFORE_FIRST,
    HUNG,
    MISSING,
    WAITING,
    Finding,
    judge,
)
from clusterddp.remote.shared.collectives.hang_sentence import POINT_TO_POINT
from tests.unit.remote.shared.collectives.evidence_made import (
    INIT,
    PYTHON,
    TORCH,
    VALIDATE,
    WORKDIR,
    evidence,
    stack,
    trace,
)  # fmt: skip
from tests.unit.remote.shared.collectives.traces_made import look

NCCL_INIT = (  # as py-spy names functions under Python 3.12, with torch's default device set
    (f"{WORKDIR}/train.py", 16, "<module>"),
    (f"{TORCH}/distributed/c10d_logger.py", 83, "_exception_logger.<locals>.wrapper"),
    (f"{TORCH}/distributed/distributed_c10d.py", 3034, "all_reduce"),
    (f"{TORCH}/utils/_device.py", 116, "DeviceContext.__torch_function__"),
    (f"{TORCH}/distributed/c10d_logger.py", 83, "_exception_logger.<locals>.wrapper"),
    (f"{TORCH}/distributed/distributed_c10d.py", 3068, "all_reduce"),
)


@pytest.mark.parametrize(("idle", "state"), [((2,), HUNG), ((), WAITING)])
def test_ranks_that_are_busy_waiting_in_nccls_first_call_wait_for_the_one_that_is_not_in_it(
    idle: tuple[int, ...], state: str
) -> None:
    traces = [trace(rank) for rank in range(3)]
    finding = Finding(ADVANCING, idle=idle or (3,))
    stacks = [stack(0, *NCCL_INIT), stack(1, *NCCL_INIT), stack(2, VALIDATE, (f"{PYTHON}/threading.py", 355, "wait"))]
    found = evidence(finding, stacks, traces).finding
    assert (found.state, found.kind, found.ranks, found.waiting) == (state, MISSING, (2,), (0, 1))
    assert found.operation
    assert found.operation.name == "all_reduce"


def test_where_not_all_that_are_at_work_were_looked_at_an_idle_rank_is_not_said_to_hang() -> None:
    traces = [trace(rank) for rank in range(4)]
    stacks = [stack(0, *NCCL_INIT), stack(2, VALIDATE, (f"{PYTHON}/threading.py", 355, "wait"))]
    found = evidence(Finding(ADVANCING, idle=(2,)), stacks, traces).finding
    assert (found.state, found.ranks) == (WAITING, (2,))


def test_ranks_that_are_all_in_calls_blame_nobody_of_them() -> None:
    stacks = [stack(rank, *NCCL_INIT) for rank in range(3)]
    traces = [trace(rank) for rank in range(3)]
    meeting = Finding(WAITING, BEFORE_FIRST, (0,), (1, 2), operation=INIT)
    found = evidence(meeting, stacks, traces).finding
    assert (found.state, found.kind, found.ranks, found.waiting) == (WAITING, None, (), (0, 1, 2))
    receiving = [stack(rank, (f"{TORCH}/distributed/distributed_c10d.py", 2597, "irecv")) for rank in range(3)]
    assert evidence(meeting, receiving, traces).finding.kind == POINT_TO_POINT


def test_of_idle_ranks_and_those_at_work_both_are_looked_at() -> None:
    traces = [trace(rank) for rank in range(4)]
    assert hang_sentence.ranks_to_look_at(Finding(ADVANCING, idle=(2,)), traces, 4) == [2, 0, 1]


@pytest.mark.parametrize(("group", "idle"), [("", (1,)), ("0: ar4 ar4", ()), ("0 nccl: ar4 ar4", (1,))])
def test_where_ranks_may_be_busy_waiting_in_nccl_those_that_are_idle_are_known(
    group: str, idle: tuple[int, ...]
) -> None:
    texts = {0: f"[busy] {group}", 1: group, 2: f"[busy] {group}"}
    finding = judge(range(3), look(texts), look(texts, second=True))
    assert (finding.state, finding.idle) == (ADVANCING if group else WAITING, idle)
