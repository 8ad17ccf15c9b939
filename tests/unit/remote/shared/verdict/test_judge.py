"""The verdict as it is kept: written and read again, and which of several copies counts."""

from __future__ import annotations

import json

import pytest

from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.verdict.judge import VerdictRecord, best_verdict, judge, read_verdict
from clusterddp.remote.shared.verdict.node_end import end_of
from tests.unit.runs_told import Told, at


def kept(attempt: int = 1, member: int = 0, heard: int = 1, missing: int = 0) -> VerdictRecord:
    names = [f"gpu{number:02}" for number in range(heard + missing)]
    return VerdictRecord(
        attempt, "succeeded", 0, "succeeded", "gpu00", member, tuple(names[:heard]), tuple(names[heard:])
    )


def failed() -> VerdictRecord:
    ends = [
        end_of(Told(0, workers=2).died(5, local=1, raised="ValueError: loss is NaN").failed(6).part, workdir="/w"),
        end_of(Told(1).died(5.5, signal=15).stopped(7, "another host failed").part, member=1, workdir="/w"),
    ]
    return judge(ends, ["gpu02"]).bounded()._replace(writer="gpu00", code="c0de", written=at(8))


def test_it_says_how_it_ended_by_whom_and_each_ranks_end() -> None:
    record = failed()
    assert (record.state, record.exit_code, record.reported, record.missing) == (
        "failed",
        1,
        ("gpu00", "gpu01"),
        ("gpu02",),
    )
    assert record.line.startswith("rank 1 (gpu00:1) failed first: ValueError: loss is NaN (train.py:81); 1 other")
    assert [(one.host, one.state, one.workdir, one.exits) for one in record.hosts] == [
        ("gpu00", "failed", "/w", {"1": "1"}),
        ("gpu01", "stopped", "/w", {"143": "1"}),
    ]
    assert (record.ended, record.code, record.attempt, record.failures[0].worker.rank) == (at(7), "c0de", 1, 1)


def test_a_worker_that_failed_without_a_record_is_no_failure_of_the_agent_before_any_worker() -> None:
    told = Told(0).failed(9, log="torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")
    told.fields["stderr"]["0.0"] = "RuntimeError: a bad batch\n"
    line = judge([end_of(told.part)], []).line
    assert line == "a worker on gpu00 failed, and its end is not on record: RuntimeError: a bad batch"


def test_what_is_written_is_read_again() -> None:
    for record in (failed(), kept(), failed().brief()):
        assert read_verdict(json.loads(json.dumps(to_fields(record)))) == record


@pytest.mark.parametrize("data", [None, [], {}, 5, {**to_fields(failed()), "state": "unknown"}, {"failures": [{}]}])
def test_what_is_none_is_one_error(data: object) -> None:
    with pytest.raises(DamagedError):
        read_verdict(data)


@pytest.mark.parametrize(
    ("lesser", "better"),
    [
        (kept(attempt=1, heard=9), kept(attempt=2, heard=1)),
        (kept(heard=1, missing=2), kept(heard=2, missing=1, member=2)),
        (kept(member=2), kept(member=1)),
        (kept(heard=3)._replace(confirmed=False), kept(heard=2, missing=1, member=2)._replace(confirmed=True)),
        (kept(heard=2, member=1)._replace(confirmed=False), kept(heard=1, missing=1)._replace(confirmed=False)),
    ],
    ids=[
        "later attempt",
        "more nodes heard",
        "lower member",
        "confirmed by a majority",
        "half, the first",
    ],
)
def test_which_copy_counts(lesser: VerdictRecord, better: VerdictRecord) -> None:
    assert best_verdict([lesser, better]) == best_verdict([better, lesser]) == better


def test_without_a_copy_there_is_none() -> None:
    assert best_verdict([]) is None


def test_a_majority_is_more_heard_than_not() -> None:
    assert kept(heard=2, missing=1).by_majority
    assert not kept(heard=1, missing=1).by_majority
    assert not kept(heard=3)._replace(confirmed=False).by_majority
    assert kept(heard=1, missing=2)._replace(confirmed=True).by_majority


def test_a_verdict_of_an_older_version_is_read_as_it_was() -> None:
    fields = to_fields(kept(heard=2, missing=1))
    del fields["confirmed"]
    assert read_verdict(fields).by_majority
