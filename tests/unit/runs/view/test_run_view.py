"""What the hosts tell of runs, put together: views, the run that is meant, and the status object."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.run.spool_records import PeersRecord
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.verdict.judge import VerdictRecord, judge
from clusterddp.remote.shared.verdict.node_end import end_of
from clusterddp.runs.view.notices import following_notices, stalls_found
from clusterddp.runs.view.run_view import RunView, run_views
from tests.unit.runs_told import BEGAN, SECOND, Told


def made(run: str, *, name: str | None = None, started: int = 0, **record: Any) -> list[Told]:
    """Two live nodes of a run."""
    shared = {"name": name, "started": BEGAN + started * SECOND, "hosts": ["gpu00", "gpu01"], "world_size": 4}
    record = {"operator": "alice@desk", **record, **shared}
    return [Told(rank, workers=2, run=run, **record) for rank in (0, 1)]


def seen(*told: Told, unreachable: tuple[str, ...] = ()) -> list[RunView]:
    return run_views([one.node for one in told], unreachable)


def one(*told: Told, unreachable: tuple[str, ...] = ()) -> RunView:
    (view,) = seen(*told, unreachable=unreachable)
    return view


class TestViews:
    def test_a_host_that_was_not_asked_is_not_called_unreachable(self) -> None:
        view = one(made("r1")[0])  # `--limit gpu00`
        assert [(host.name, host.state) for host in view.hosts()] == [("gpu00", "running"), ("gpu01", "not asked")]

    def test_a_status_lists_the_failures_of_earlier_attempts_and_blames_nobody_for_them(self) -> None:
        first, second = made("r1"), made("r1")
        first[0].died(5, signal=9).failed(6)
        first[1].died(5.5, signal=15).failed(6)
        for told in second:
            told.fields["attempt"] = 2
            told.succeeded(20)
        view = one(*first, *second)
        assert view.state() == "succeeded"
        told_of = [(f["attempt"], f["rank"], f["recovered"]) for f in view.to_json()["failures"]]
        assert told_of == [(1, 0, True)]

    def test_a_status_lists_failures_recovered_ones_first(self) -> None:
        told = Told(0, name=None).died(2, raised="ValueError: early")
        told.start(1, number=1, seconds=3)
        told.died(9, start=1, raised="OSError: [Errno 28] No space left on device").failed(10)
        value = one(told).to_json()
        assert [(failure["round"], failure["recovered"], failure["class"]) for failure in value["failures"]] == [
            (0, True, "own"),
            (1, False, "own"),
        ]
        assert value["failures"][0]["message"] == "ValueError: early (train.py:81)"
        assert value["remedy"].startswith("the disk is full")
        assert json.loads(json.dumps(value)) == value

    def test_nodes_stand_in_their_order_and_runs_by_their_start(self) -> None:
        found = seen(*reversed(made("late", started=9)), *made("early", started=1))
        assert [view.run for view in found] == ["early", "late"]
        assert [node.host for node in found[1].nodes] == ["gpu00", "gpu01"]

    def test_only_the_last_attempt_counts(self) -> None:
        first, second = made("r1"), made("r1")
        for told in second:
            told.fields["attempt"] = 2
        view = one(*second, *first)
        assert (view.attempt, len(view.nodes)) == (2, 2)

    def test_a_host_of_the_run_that_does_not_answer_is_silent_and_others_are_not(self) -> None:
        view = one(made("r1")[0], unreachable=("gpu01", "gpu77"))
        assert view.silent == ("gpu01",)

    def test_a_run_without_a_start_time_comes_last(self) -> None:
        bare = Told(0, run="bare")
        assert [view.run for view in seen(bare, *made("r1"))] == ["r1", "bare"]


class TestState:
    def test_it_starts_until_a_worker_runs(self) -> None:
        nodes = made("r1")
        nodes[0].fields["state"] = nodes[1].fields["state"] = "starting"
        assert one(*nodes).state() == "starting"
        nodes[1].fields["state"] = "running"
        assert one(*nodes).state() == "running"

    def test_it_lives_while_one_node_does(self) -> None:
        first, second = made("r1")
        first.succeeded(5)
        view = one(first, second)
        assert (view.live, view.state(), view.verdict(), view.ended_ns) == (True, "running", None, None)

    def test_it_ended_with_its_last_node_by_the_operators_clock(self) -> None:
        first = Told(0, offset=1000.0).succeeded(5)
        second = Told(1).succeeded(7)
        view = one(first, second)
        assert (view.state(), view.ended_ns) == ("succeeded", BEGAN + 7 * SECOND)

    def test_a_clock_that_was_set_during_the_run_does_not_change_when_it_ended(self) -> None:
        first = Told(0).ended("succeeded", 3605, agent=0, clock_step=3600 * SECOND)
        second = Told(1).ended("succeeded", -3593, agent=0, clock_step=-3600 * SECOND)
        assert one(first, second).ended_ns == BEGAN + 7 * SECOND


class TestStatusObject:
    def test_of_a_live_run(self) -> None:
        nodes = made("r1", name="base", script="train.py", argv=["--lr", "1"], gpus={"gpu00": ["A100"]})
        nodes[1].start(2, number=1, seconds=3.0)
        nodes[1].fields.update(pids=[7, 8], clock_offset_ns=SECOND, last_output=BEGAN + 8 * SECOND)
        last = BEGAN / SECOND + 7  # by the operator's clock
        value = one(*nodes).to_json()
        assert (value["run"], value["name"], value["state"], value["round"]) == ("r1", "base", "running", 1)
        assert (value["world_size"], value["started"], value["ended"]) == (4, BEGAN / SECOND, None)
        assert (value["exit_code"], value["verdict"], value["script"], value["argv"]) == (
            None,
            None,
            "train.py",
            ["--lr", "1"],
        )
        for event in nodes[1].fields["events"][-2:]:  # gpu00 has left
            event["world_size"] = 2
        assert one(*nodes).to_json()["world_size"] == 2
        silent = {"last_output": None, "end": None}
        assert value["hosts"] == [
            {"name": "gpu00", "state": "running", "ranks": [0, 1], "pids": [], "gpus": ["A100"], **silent},
            {
                "name": "gpu01",
                "state": "running",
                "ranks": [2, 3],
                "pids": [7, 8],
                "gpus": [],
                "last_output": last,
                "end": None,
            },
        ]
        assert value["last_output"] == last
        json.dumps(value)

    def test_of_a_run_that_ended_with_a_host_out_of_reach(self) -> None:
        value = one(made("r1")[0].succeeded(5), unreachable=("gpu01",)).to_json()
        told = (value["state"], value["exit_code"], value["verdict"])
        assert told == ("unknown", 125, "unknown: gpu01 does not answer now")
        assert value["hosts"][1] == {
            "name": "gpu01",
            "state": "unreachable",
            "ranks": [],
            "pids": [],
            "gpus": [],
            "last_output": None,
            "end": None,
        }

    def test_without_hosts_for_the_list(self) -> None:
        assert "hosts" not in one(*made("r1")).to_json(hosts=False)


def kept(*told: Told, missing: tuple[str, ...] = (), member: int = 0) -> VerdictRecord:
    """The verdict on these nodes as one of them writes it."""
    ends = [end_of(one.part, workdir="/home/u/x") for one in told]
    return judge(ends, missing).bounded()._replace(writer=told[0].host, member=member)


def holding(told: Told, copy: VerdictRecord) -> Told:
    told.fields["verdict"] = to_fields(copy)
    return told


class TestKeptVerdict:
    def test_one_copy_tells_how_a_run_ended_whoever_else_does_not_answer(self) -> None:
        first, second = made("r1")
        first.died(5, signal=15).stopped(6, "another host failed")
        second.died(4, raised="ValueError: loss is NaN").failed(6)
        copy = kept(first, second)
        before = one(holding(first, copy), holding(second, copy)).to_json(hosts=False)
        after = one(first, unreachable=("gpu01",)).to_json()
        assert before["verdict"].startswith("rank 2 (gpu01:0) failed first: ValueError: loss is NaN")
        assert {name: after[name] for name in before} == before
        assert after["hosts"][1]["state"] == "unreachable"
        assert after["hosts"][1]["end"] == {
            "state": "failed",
            "reason": "the agent ended with 1",
            "ended": BEGAN / SECOND + 6,
            "workdir": "/home/u/x",
            "exits": {"1": "2"},
        }

    def test_a_host_that_comes_back_adds_a_note_and_no_new_code(self) -> None:
        first, second = made("r1")
        copy = kept(first.stopped(9, "gpu01 was lost", ours=True), missing=("gpu01",))
        view = one(holding(first, copy), second.succeeded(8))
        found = view.verdict()
        assert found
        assert (found.state, found.exit_code, found.line) == ("failed", 125, "gpu01 was lost: no answer")
        assert "gpu01 answers again: its part ended well" in found.notices

    def test_the_majoritys_verdict_ends_a_run_whatever_a_node_that_was_cut_off_says(self) -> None:
        first, second = made("r1")
        third = Told(2, run="r1", hosts=["gpu00", "gpu01", "gpu02"])
        copy = kept(first.failed(9), second.failed(9), missing=("gpu02",))
        view = one(holding(first, copy), second, third)
        assert (view.live, view.state()) == (False, "failed")
        unproved = "is running, and nothing proves that its processes ended: `clusterddp stop r1` ends them"
        assert f"gpu02 answers again: its part {unproved}" in view.notices()

    def test_a_node_that_was_cut_off_does_not_end_the_run_of_the_others(self) -> None:
        first, second = made("r1")
        copy = kept(second.failed(9), missing=("gpu00",), member=1)
        assert one(first, holding(second, copy)).live

    def test_the_first_hosts_verdict_by_half_of_the_nodes_ends_a_run_for_none_can_count_before_it(self) -> None:
        first, second = made("r1")
        copy = kept(first.failed(9), missing=("gpu01",))
        view = one(holding(first, copy), second)
        assert (view.live, view.settled) == (False, True)
        assert any(line.startswith("gpu01 answers again: its part is running, and") for line in view.notices())

    @pytest.mark.parametrize(
        ("record", "settled"),
        [
            ({"min_nodes": 3}, True),
            ({"min_nodes": 3, "relaunch": 1}, False),
            ({"min_nodes": 2}, False),
        ],
    )
    def test_a_minoritys_verdict_is_settled_where_the_others_cannot_go_on(
        self, record: dict[str, Any], *, settled: bool
    ) -> None:
        third = Told(2, run="r1", hosts=["gpu00", "gpu01", "gpu02"], **record).failed(9)
        copy = kept(third, missing=("gpu00", "gpu01"), member=2)
        view = one(holding(third, copy), unreachable=("gpu00", "gpu01"))
        assert (view.live, view.settled) == (False, settled)

    def test_of_the_verdicts_of_two_hosts_that_have_lost_each_other_the_one_that_was_shown_stands(self) -> None:
        first, second = made("r1")
        own = kept(second.failed(9), missing=("gpu00",), member=1)
        other = kept(first.failed(9), missing=("gpu01",))
        nodes = [holding(first, other).node, holding(second, own).node]
        shown = {"r1": (first.node.record, own)}
        assert [view.kept for view in run_views(nodes)] == [other]
        assert [view.kept for view in run_views(nodes, kept=shown)] == [own]

    def test_a_verdict_of_who_had_not_heard_the_others_says_so(self) -> None:
        second = made("r1")[1]
        copy = kept(second.failed(9), missing=("gpu00",), member=1)
        view = one(holding(second, copy), unreachable=("gpu00",))
        assert "this verdict is gpu01's, which had not heard from gpu00" in view.notices()

    def test_who_watched_knows_why_a_host_was_lost_that_answers_again_by_the_end(self) -> None:
        first, second = made("r1")
        copy = kept(first.stopped(9, "gpu01 was lost", ours=True), missing=("gpu01",))
        view = one(holding(first, copy), second.lost(rebooted=True))
        watched = replace(view, watched=True).refined()
        found, later = watched.verdict(), view.verdict()
        assert found
        assert later
        assert (found.line, later.line) == ("gpu01 was lost: it was rebooted", "gpu01 was lost: no answer")
        assert (found.state, found.exit_code) == (later.state, later.exit_code)
        well = one(holding(first, copy), Told(1, run="r1", hosts=["gpu00", "gpu01"]).succeeded(8))
        assert replace(well, watched=True).refined().kept == copy

    def test_other_copies_are_told_each_once(self) -> None:
        first, second = made("r1")
        whole = kept(first.failed(9), second.failed(9))
        own = kept(second, missing=("gpu00",), member=1)
        view = one(holding(first, whole), holding(second, own))
        assert (view.kept, view.other_copies) == (whole, [own])
        assert one(holding(first, whole), holding(second, whole)).other_copies == []

    def test_a_later_attempts_verdict_counts_though_its_nodes_are_out_of_reach(self) -> None:
        first, second = made("r1")
        late = kept(second.succeeded(20))._replace(attempt=2)
        view = one(holding(first.failed(9), late), unreachable=("gpu01",))
        assert (view.state(), view.attempt) == ("succeeded", 2)

    def test_of_an_earlier_attempt_it_does_not_count(self) -> None:
        first, second = made("r1")
        early = kept(first.failed(9))
        second.fields["attempt"] = 2
        assert one(holding(first, early), second).state() == "running"

    def test_a_run_lives_until_its_nodes_agree(self) -> None:
        first, second = (told.succeeded(5) for told in made("r1"))
        second.fields["concluding"] = True
        assert (one(first, second).live, one(first, second).state()) == (True, "running")
        assert not one(first.lost(), second).live  # they cannot

    def test_what_the_project_keeps_tells_when_no_host_does(self) -> None:
        first, second = (told.succeeded(5) for told in made("r1"))
        own = {"r1": (first.node.record, kept(first, second)), "r2": (RunRecord(hosts=("gpu09",)), kept(first))}
        (view,) = run_views([], ["gpu00", "gpu01"], own)
        assert (view.run, view.state(), view.live, view.name) == ("r1", "succeeded", False, "r1")
        json.dumps(view.to_json())

    def test_of_a_run_that_is_known_to_have_begun_nobody_knows_the_end_while_none_of_its_hosts_answers(self) -> None:
        record = made("r1")[0].node.record._replace(run="r1")
        (view,) = run_views([], ["gpu00", "gpu01"], {}, [record])
        assert (view.state(), view.live) == ("unknown", False)
        assert view.to_json()["verdict"] == "unknown: gpu00, gpu01 do not answer now"
        (unplaced,) = run_views([], ["login1"], {}, [record._replace(hosts=())])  # Slurm has not chosen them
        assert unplaced.to_json()["verdict"] == "unknown: its hosts do not answer now"
        assert run_views([], ["gpu01"], {}, [record]) == []  # gpu00 answers, and knows of no such run
        assert len(run_views([made("r1")[0].node], ["gpu01"], {}, [record])) == 1

    def test_who_watched_knows_that_a_host_is_lost_and_who_looks_later_does_not(self) -> None:
        view = one(made("r1")[0].succeeded(5), unreachable=("gpu01",))
        assert view.to_keep() is None
        watched = replace(view, watched=True).to_keep()
        assert watched
        assert (watched.line, watched.missing) == ("gpu01 was lost: no answer", ("gpu01",))


class TestNotices:
    def test_what_was_lost_of_the_output_is_said_for_each_host(self) -> None:
        first, second, third = Told(0).succeeded(5), Told(1).succeeded(5), Told(2).succeeded(5)
        for lost in (100, 20):
            first.event("output_lost", 3, start=0, local_rank=0, stream="out", bytes=lost)
        first.event("disk_full", 2, left=0)
        second.event("disk_full", 2, left=0)
        for gone in (1000, 5000):
            third.event("log_dropped", 3, bytes=gone, limit=10**6)
        third.event("log_limit_failed", 4, error="Operation not supported", limit=10**6)
        view = one(first, second, third)
        kept = "--log-limit 1000000"
        assert view.to_json()["notices"] == [
            "gpu00: 120 bytes of output were lost: disk full",
            "gpu01: its disk was full, so output may be missing",
            f"gpu02: the oldest 5000 bytes of output are gone: {kept}",
            f"gpu02: {kept} cannot be kept on its file system (Operation not supported); its output grows on",
        ]
        verdict = view.verdict()
        assert verdict
        assert verdict.notices == tuple(view.notices())

    def test_nothing_is_said_when_nothing_was_lost(self) -> None:
        assert one(*made("r1")).to_json()["notices"] == []


class TestAttempts:
    def test_every_attempt_has_its_spools_and_the_last_one_is_the_runs(self) -> None:
        nodes = [*made("r1"), *made("r1"), Told(3, run="r1", hosts=["gpu03"])]
        for member, told in enumerate(nodes):
            told.fields["attempt"] = 1 + member // 2
            told.fields["spool"] = f"/s/r1/{1 + member // 2}/{told.host}"
        view = one(*reversed(nodes))
        assert view.attempt == 3
        assert view.spools == {
            1: {"gpu00": "/s/r1/1/gpu00", "gpu01": "/s/r1/1/gpu01"},
            2: {"gpu00": "/s/r1/2/gpu00", "gpu01": "/s/r1/2/gpu01"},
            3: {"gpu03": "/s/r1/3/gpu03"},
        }
        assert list(view.spools) == [1, 2, 3]

    def test_a_host_that_claims_a_later_attempt_has_ended_hides_no_live_one(self) -> None:
        liar = Told(2, run="r1", hosts=["gpu02"])
        liar.fields["attempt"] = 2
        view = one(*made("r1"), liar.succeeded(9))
        assert (view.goes_on, view.unended) == (True, ["gpu00", "gpu01"])

    def test_an_earlier_attempts_host_that_takes_part_in_the_last_one_has_ended_with_it(self) -> None:
        first, second = made("r1"), made("r1")
        for told in second:
            told.fields["attempt"] = 2
            told.succeeded(9)
        assert one(*first, *second).unended == []


def test_why_a_run_is_not_started_again_is_told() -> None:
    left = Told(0).ended("stopped", 5, final="2 of 3 hosts are left").node
    nodes = [left, left._replace(host="gpu01"), Told(2).ended("stopped", 5, final="").node, Told(3).node]
    assert following_notices(nodes, live=False) == ["not started again: 2 of 3 hosts are left"]
    assert following_notices([Told().ended("stopped", 5, final="attempt 2").node], live=False) == []
    waiting = left._replace(peers=PeersRecord(nodes={}))
    (notice,) = following_notices([waiting], live=True)
    assert notice.startswith("no majority of its hosts reach each other")
    led = Told(1).node._replace(peers=PeersRecord(nodes={}, leader="gpu01"))
    assert following_notices([waiting, led], live=True) == []


def test_a_stall_is_a_notice_of_the_status_once_and_not_beside_a_verdict_that_says_it() -> None:
    line, later = "stalled: rank 1 (gpu01:0) did not join all_reduce #4", "stalled: rank 0 (gpu00:0) did not join all_"
    told = made("r1")
    for node in told:
        node.event("stalled", 5 + node.first_rank, reason=line, start=0, local_rank=0)
    told[1].event("stalled", 3, reason=later, start=0, local_rank=0)
    assert one(*told).to_json()["notices"] == [later, line]
    assert stalls_found([node.node for node in told], BEGAN + 4 * SECOND) == [(0, line)]
    ends = [end_of(node.stopped(9, f"the run {line}").part) for node in told]
    view = one(*told)
    kept = judge(ends).bounded()._replace(writer="gpu00")
    assert replace(view, copies=(kept,)).to_json()["notices"] == [later]
