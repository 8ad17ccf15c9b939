"""What workers wrote down when they ended is read, whatever they wrote, and each host's mismatch is kept in it."""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterddp.remote.helper.request import Request
from clusterddp.remote.processes.traces import MAX_TRACE, ended_traces, worker_traces
from clusterddp.remote.shared.collectives.hang_judge import OTHER_SHAPE, wrong_result
from clusterddp.remote.shared.collectives.trace_records import MAX_WORKER_BYTES, WorkerTrace
from clusterddp.remote.shared.run.event_schema import WORKER_EXITED, WORKER_STARTED
from clusterddp.remote.shared.schema.json_text import to_json
from clusterddp.remote.shared.schema.record import read_records
from clusterddp.remote.spool.layout import Spool
from tests.unit.remote.processes.traces_made import ENTRIES, entry, trace

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    spool = Spool(str(tmp_path))
    Path(spool.ended_traces).mkdir(0o700)
    return spool


def starts(spool: Spool, *workers: tuple[int, int]) -> None:
    """Record workers' starts: their start and local rank; ranks are 4 and more."""
    for start, local_rank in workers:
        spool.event(WORKER_STARTED, start=start, local_rank=local_rank, rank=4 + local_rank, pid=1)


def writes(spool: Spool, name: str, data: bytes) -> None:
    Path(spool.ended_traces, name).write_bytes(data)


def ended(spool: Spool) -> list[WorkerTrace]:
    answer = ended_traces(Request(0, {"spool": spool.folder}, -1, -1))
    assert all(len(to_json(part).encode()) <= MAX_WORKER_BYTES for part in answer)
    return list(read_records(WorkerTrace, answer, "traces"))


def test_an_operation_with_another_type_is_found_however_long_ago(spool: Spool) -> None:
    starts(spool, (0, 0), (0, 1), (0, 2))
    many = [entry(number) for number in range(1, 1001)]
    for local_rank in (0, 2):
        writes(spool, f"0.{local_rank}", zlib.compress(trace(*many)))
    writes(spool, "0.1", zlib.compress(trace(*many[:6], entry(7, input_dtypes=["Int"]), *many[7:])))
    found = wrong_result(range(4, 7), ended(spool))
    assert found
    assert found[1:3] == (OTHER_SHAPE, (5,))
    assert found.sequence == 7


def test_only_the_last_start_counts(spool: Spool) -> None:
    starts(spool, (0, 0), (1, 0), (1, 1))
    writes(spool, "0.0", zlib.compress(trace(entry(1))))
    writes(spool, "1.1", zlib.compress(trace(entry(1))))
    assert [(each.rank, each.start) for each in ended(spool)] == [(5, 1)]


def test_the_records_of_both_backends_are_read_and_one_that_is_damaged_alone_is_left_out(spool: Spool) -> None:
    starts(spool, (0, 0), (0, 1))
    writes(spool, "0.0", zlib.compress(trace(entry(1))))
    writes(spool, "0.0.nccl", zlib.compress(trace(entry(2))))
    writes(spool, "0.1", b"no zlib")
    writes(spool, "0.1.nccl", zlib.compress(trace(entry(3))))
    names = [[(group.name, group.entries[0][0]) for group in each.groups] for each in ended(spool)]
    assert [sorted(groups) for groups in names] == [[("0", 1), ("0 nccl", 2)], [("0 nccl", 3)]]


def test_of_workers_that_have_ended_a_look_tells_those_of_the_last_start_that_ended_well(spool: Spool) -> None:
    for start, local_rank, code in ((0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 2, 3)):
        pid = 100 + 10 * start + local_rank
        spool.event(WORKER_STARTED, start=start, local_rank=local_rank, rank=local_rank, pid=pid)
        spool.event(WORKER_EXITED, start=start, local_rank=local_rank, rank=local_rank, pid=pid, exit_code=code)
        writes(spool, f"{start}.{local_rank}.nccl", zlib.compress(trace(entry(start + 1))))
    Path(spool.ended_traces, "1.1.nccl").unlink()
    found = worker_traces(spool, spool.events())
    assert [(each.rank, each.start, each.ended, len(each.groups)) for each in found] == [
        (0, 1, True, 1),
        (1, 1, True, 0),
    ]
    assert [each.why for each in found] == ["", "it has ended, and wrote nothing down"]


def test_a_live_worker_is_told_whose_pid_an_earlier_one_had(spool: Spool) -> None:
    """The kernel gives out numbers again: on many machines after 32,768 processes."""
    pid = os.getpid()
    spool.event(WORKER_STARTED, start=0, local_rank=1, rank=5, pid=pid)
    spool.event(WORKER_EXITED, start=0, local_rank=1, rank=5, pid=pid, exit_code=0)
    spool.event(WORKER_STARTED, start=1, local_rank=0, rank=4, pid=pid)
    (found,) = worker_traces(spool, spool.events())
    assert (found.rank, found.start, found.ended) == (4, 1, False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zlib",
        zlib.compress(b"no JSON"),
        zlib.compress(trace(entry(1)))[:-30],
        zlib.compress(bytes(2 * MAX_TRACE)),
        zlib.compress(b"[" * MAX_TRACE),
    ],
    ids=["empty", "no zlib", "no JSON", "cut", "bomb", "deep"],
)
def test_what_cannot_be_read_says_nothing(spool: Spool, data: bytes) -> None:
    starts(spool, (0, 0))
    writes(spool, "0.0", data)
    assert ended(spool) == []


def test_no_link_and_no_pipe_is_followed(spool: Spool, tmp_path: Path) -> None:
    starts(spool, (0, 0), (0, 1))
    secret = tmp_path / "secret"
    secret.write_bytes(zlib.compress(trace(entry(1))))
    Path(spool.ended_traces, "0.0").symlink_to(secret)
    os.mkfifo(Path(spool.ended_traces, "0.1"))
    assert ended(spool) == []


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(ENTRIES, max_size=8), max_size=3))
def test_whatever_workers_write_makes_a_small_answer(spool: Spool, workers: list[list[dict[str, object]]]) -> None:
    Path(spool.events_file).write_bytes(b"")
    starts(spool, *((0, number) for number in range(len(workers))))
    for number, entries in enumerate(workers):
        writes(spool, f"0.{number}", zlib.compress(trace(*entries)))
    wrong_result(range(4, 8), ended(spool))
