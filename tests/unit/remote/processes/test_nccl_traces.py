"""What three ranks on an H100 left in NCCL's record as they hung (tests/data/nccl) is read, and judged rightly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterddp.remote.processes import trace_decoder
from clusterddp.remote.processes.trace_decoder import RecordedGroup, keep_reached, read_groups
from clusterddp.remote.shared.collectives.hang_judge import (
    HUNG,
    MISSING,
    OTHER_OPERATION,
    OTHER_ORDER,
    TRANSPORT,
    WAITING,
    Finding,
    judge,
)
from clusterddp.remote.shared.collectives.trace_records import CREATED, DONE, NCCL, STARTED, WorkerTrace
from tests.unit.remote.processes.traces_made import NOW, entry, trace

DATA = Path(__file__).parents[3] / "data" / "nccl"
LATER = 30_000_000_000  # ns from an operation's begin to the look

RIGHT: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "branch_import_fails": (HUNG, OTHER_OPERATION, (1,)),
    "groups_other_order_later": (HUNG, OTHER_ORDER, (0, 1)),
    "groups_ring": (HUNG, OTHER_ORDER, (0, 1, 2)),
    "missing_sleep": (HUNG, MISSING, (1,)),
    "missing_two": (HUNG, MISSING, (1, 2)),
    "other_root_gather": (WAITING, TRANSPORT, (0, 1, 2)),  # a large one that is under way looks the same
    "subgroup_and_default": (HUNG, OTHER_ORDER, (1, 2)),
}


def judged(name: str) -> Finding:
    """Judge two looks at a recorded hang in which only the waiting ranks used CPU, as NCCL's busy waiting does."""
    traces: dict[str, list[dict[str, Any]]] = json.loads((DATA / f"{name}.json").read_text())["traces"]
    groups = {int(rank): reached({"entries": entries}) for rank, entries in traces.items()}
    now = LATER + max(one["time_created_ns"] for entries in traces.values() for one in entries)
    looks = [[worker(rank, groups[rank], now, second=second) for rank in groups] for second in (False, True)]
    return judge(range(3), *looks)


def reached(recorded: dict[str, Any]) -> tuple[RecordedGroup, ...]:
    return keep_reached(read_groups(json.dumps(recorded).encode(), NCCL))


def worker(rank: int, groups: tuple[RecordedGroup, ...], now: int, *, second: bool) -> WorkerTrace:
    waits = any(one.progress != DONE for group in groups for one in group.entries.values())
    cut = trace_decoder.cut_groups(groups, now, 4000)
    used = 1000 if second and waits else 10
    return WorkerTrace(rank, rank, 0, 100 + rank, "R" if waits else "S", "", used, 10, (), groups=cut)


def test_every_recorded_hang_is_judged() -> None:
    assert {path.stem for path in DATA.glob("*.json")} == {*RIGHT}


@pytest.mark.parametrize("name", RIGHT)
def test_a_hang_on_nccl_is_judged_as_on_gloo(name: str) -> None:
    finding = judged(name)
    assert (finding.state, finding.kind, finding.ranks) == RIGHT[name], finding
    assert "nccl" not in finding.group


def kept(*entries: dict[str, Any]) -> list[tuple[int, int]]:
    """What of one group is reached: sequence numbers and progress."""
    groups = keep_reached(read_groups(trace(*entries), NCCL))
    return [(number, one.progress) for group in groups for number, one in sorted(group.entries.items())]


def test_what_waits_behind_the_oldest_that_is_not_finished_has_not_been_reached() -> None:
    operations = [entry(1), entry(2, CREATED), entry(3, CREATED), entry(4, STARTED)]
    assert kept(*operations) == [(1, DONE), (2, CREATED), (4, STARTED)]


def test_one_that_is_completed_before_torch_has_seen_its_end_is_still_being_prepared() -> None:
    assert kept(entry(1), entry(2, CREATED, state="completed")) == [(1, DONE), (2, CREATED)]
    other = keep_reached(read_groups(trace(entry(2, CREATED, state="completed"))))
    assert other[0].entries[2].progress == DONE, "gloo's record means it"


def test_the_end_of_a_batch_of_sends_takes_no_collectives_place() -> None:
    send = entry(1, is_p2p=True, profiling_name="nccl:send 0->1")
    batch = entry(
        1, profiling_name="nccl:coalesced", input_sizes=[], input_dtypes=[]
    )  # torch before 2.7: as a collective
    several = entry(2, profiling_name="nccl:coalesced", input_sizes=[], input_dtypes=[])
    (group,) = read_groups(trace(entry(1), send, send, batch, several), NCCL)
    assert {number: one.operation.name for number, one in group.entries.items()} == {1: "all_reduce", 2: "coalesced"}


def test_a_group_of_which_nothing_is_reached_is_left_out() -> None:
    later = entry(1, CREATED, process_group=["1", "undefined"], pg_id=1, time_created_ns=NOW)
    found = keep_reached(read_groups(trace(entry(1, CREATED), later), NCCL))
    assert [group.name for group in found] == ["0" + NCCL]
