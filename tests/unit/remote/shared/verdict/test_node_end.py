"""A node's end: what of its evidence the verdict needs, in at most 2 KiB whatever the evidence."""

from __future__ import annotations

import json
from signal import SIGTERM

from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.verdict.failures import OWN
from clusterddp.remote.shared.verdict.node_end import MAX_BYTES, NodeEnd, end_of, fit, ranges, read_end
from tests.unit.runs_told import Told, at

TEXT = st.text(max_size=400) | st.sampled_from(["\0", "\udc80" * 300, "ü" * 3000, "x" * 9000])


def size(end: NodeEnd) -> int:
    return len(json.dumps(to_fields(end), separators=(",", ":")))


def test_it_has_what_the_verdict_needs_by_the_operators_clock() -> None:
    told = Told(1, workers=3, offset=100.0).died(4, code=0).died(5, local=1, raised="ValueError: loss is NaN")
    told.died(6, local=2, signal=SIGTERM).failed(7, log="a\nErrorOfTheAgent: b\n")
    end = end_of(told.part, member=4, workdir="/home/u/clusterddp/x")
    assert (end.host, end.member, end.state, end.agent_exit, end.ended) == ("gpu01", 4, "failed", 1, at(7))
    assert end.exits == {"0": "3", "1": "4", "143": "5"}
    assert [(one.rank, one.time_ns) for one in end.finished] == [(3, at(4))]
    assert next((one.kind == OWN, one.rank, one.time_ns) for one in end.failures) == (True, 4, at(5))
    assert (end.failed, end.agent, end.blames_worker) == (2, "ErrorOfTheAgent: b", False)


def test_it_ended_by_the_clock_as_that_went_before_it_was_set() -> None:
    told = Told(1, offset=100.0).ended("succeeded", 3607, agent=0, clock_step=3600 * 10**9)
    assert end_of(told.part).ended == at(7)


def test_a_node_without_a_record_is_lost() -> None:
    end = end_of(Told(0).lost(rebooted=True).part)
    assert (end.state, end.rebooted, end.ended) == ("lost", True, None)


def test_a_stop_because_another_failed_is_no_beginning_of_the_end() -> None:
    assert end_of(Told(0).stopped(9, "another host failed", ordered=8).part).stopping is None
    assert end_of(Told(0).stopped(9, "by a user", ordered=8).part).stopping == at(8)


@given(TEXT, TEXT, TEXT, st.integers(1, 80))
def test_it_fits_whatever_the_workers_said_and_can_be_read(raised: str, stderr: str, log: str, workers: int) -> None:
    told = Told(0, workers=workers)
    for local in range(workers):
        told.died(5, local=local, code=3, raised=raised if local % 2 else "")
    part = told.ended("failed", 9).part
    assert part.ended
    texts = {**dict.fromkeys(part.evidence.stderr, stderr), "agent": log}
    said = part._replace(ended=part.ended._replace(reason=raised), evidence=part.evidence._replace(stderr=texts))
    end = end_of(said, workdir="/w")
    small = fit(end)
    assert size(small) <= MAX_BYTES
    assert read_end(json.loads(json.dumps(to_fields(small)))) == small
    assert (small.failed, small.exits) == (workers, end.exits)
    assert small.failures[0].rank == end.failures[0].rank


def test_of_many_failures_the_first_keeps_its_words() -> None:
    told = Told(0, workers=8)
    for local in range(8):
        told.died(5 + local, local=local, raised=f"ValueError: {'x' * 200}")
    small = fit(end_of(told.failed(20).part))
    assert (len(small.failures), small.failed) == (4, 8)
    assert small.failures[0].text.endswith("(train.py:81)")


def test_an_end_that_is_made_small_keeps_the_tail_of_its_messages_and_their_locations() -> None:
    told = Told(0, workers=3)
    for local in range(3):
        told.died(5 + local, local=local, raised=f"RuntimeError: {'x' * 400} GLHF!", stderr="y" * 9000)
    for most in (MAX_BYTES, 1400):
        small = fit(end_of(told.failed(20).part), most)
        assert all(one.text.endswith("x GLHF! (train.py:81)") for one in small.failures), small


def test_what_cannot_be_cut_is_left_out() -> None:
    told = Told(0).died(5, raised="ValueError: x", raised_at=1e30).failed(9)
    small = fit(end_of(told.part, workdir="/" + "w" * 5000))
    assert (small.state, small.failures, small.workdir) == ("failed", (), "")


def test_ranks_are_written_as_ranges() -> None:
    assert ranges([3, 0, 1, 7, 2, 7]) == "0-3,7"
    assert ranges([]) == ""


CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"


def test_a_worker_whose_failure_is_not_on_record_is_quoted_where_the_agent_blames_one() -> None:
    told = Told(1, workers=2).failed(7, log=f"a\n{CHILD_FAILED}\n")
    assert end_of(told.part).agent == CHILD_FAILED
    told.fields["stderr"] |= {"1.0": "a warning\n", "1.1": "Traceback ...\nRuntimeError: a bad batch\n"}
    assert end_of(told.part).agent == "RuntimeError: a bad batch"
    told.died(5, raised="ValueError: loss is NaN")
    assert end_of(told.part).agent == CHILD_FAILED
