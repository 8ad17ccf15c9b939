"""Ranks that wait in a call that no record has are found by their stacks: NCCL's first call keeps a core busy."""

from __future__ import annotations

import pytest

from clusterddp.remote.shared.collectives import hang_sentence, stack_judge
from clusterddp.remote.shared.collectives.hang_judge import (
    ADVANCING,
    BEFORE_FIRST,
    HUNG,
    MISSING,
    UNDECIDED,
    WAITING,
    Finding,
    judge,
)
from clusterddp.remote.shared.collectives.stack_judge import POINT_TO_POINT
from clusterddp.remote.shared.collectives.trace_records import Operation
from tests.unit.remote.shared.collectives.evidence_made import (
    INIT,
    PYTHON,
    SLEEP,
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


def at_the_store(*waiting: int, state: str = HUNG) -> Finding:
    """Three ranks, of which these wait at the store and the others do not."""
    absent = tuple(rank for rank in range(3) if rank not in waiting)
    return Finding(state, BEFORE_FIRST, absent, waiting, operation=Operation("TCPStore__get", "", ""))


@pytest.mark.parametrize(
    ("waiting", "found"),
    [
        ((1, 2), (HUNG, BEFORE_FIRST, (0,))),
        ((1,), (HUNG, BEFORE_FIRST, (0,))),  # rank 2 may be in no group with it
        ((2,), (UNDECIDED, None, ())),
        ((0,), (HUNG, BEFORE_FIRST, (1, 2))),  # NCCL's lowest rank waits for nobody there: it is another wait
    ],
)
def test_in_a_groups_first_collective_a_rank_is_to_blame_where_no_other_can_be_the_lowest(
    waiting: tuple[int, ...], found: tuple[str, str | None, tuple[int, ...]]
) -> None:
    stacks = [stack(rank, *(NCCL_INIT if rank in waiting else (SLEEP,))) for rank in range(3)]
    known = evidence(at_the_store(*waiting), stacks, [trace(rank) for rank in range(3)])
    assert (known.finding.state, known.finding.kind, known.finding.ranks) == found
    if not found[2]:
        assert hang_sentence.sentence("night", known) == (
            "run night: it is not known for whom rank 2 waits at train.py:16 in all_reduce"
        )


@pytest.mark.parametrize("making", ["new_group", "new_subgroups_by_enumeration", "init_device_mesh"])
def test_a_call_that_makes_a_group_waits_for_all_ranks_that_are_not_in_it(making: str) -> None:
    stacks = [stack(2, (f"{TORCH}/distributed/distributed_c10d.py", 5300, making))]
    known = evidence(at_the_store(2), stacks, [trace(rank) for rank in range(3)])
    assert known.finding.ranks == (0, 1)


def test_all_that_send_or_receive_and_wait_are_named() -> None:
    receiving = [stack(rank, (f"{TORCH}/distributed/distributed_c10d.py", 2597, "irecv")) for rank in range(3)]
    known = evidence(at_the_store(1, 2, state=WAITING), receiving, [trace(rank) for rank in range(3)])
    assert (known.finding.state, known.finding.kind, known.finding.ranks) == (WAITING, POINT_TO_POINT, (0, 1, 2))


def test_of_idle_ranks_and_those_at_work_both_are_looked_at() -> None:
    traces = [trace(rank) for rank in range(4)]
    assert stack_judge.ranks_to_look_at(Finding(ADVANCING, idle=(2,)), traces, 4) == [2, 0, 1]


@pytest.mark.parametrize(("group", "idle"), [("", (1,)), ("0: ar4 ar4", ()), ("0 nccl: ar4 ar4", (1,))])
def test_where_ranks_may_be_busy_waiting_in_nccl_those_that_are_idle_are_known(
    group: str, idle: tuple[int, ...]
) -> None:
    texts = {0: f"[busy] {group}", 1: group, 2: f"[busy] {group}"}
    finding = judge(range(3), look(texts), look(texts, second=True))
    assert (finding.state, finding.idle) == (ADVANCING if group else WAITING, idle)
