"""What the hosts tell of runs, put together: views, the run that is meant, and the status object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterddp.errors import RunError
from clusterddp.runs import RunView, choose, views
from tests.unit.runs_told import BEGAN, SECOND, Told


def made(run: str, *, name: str | None = None, started: int = 0, **record: Any) -> list[Told]:
    """Two live nodes of a run."""
    record |= {"name": name, "started": BEGAN + started * SECOND, "hosts": ["gpu00", "gpu01"], "world_size": 4}
    return [Told(rank, workers=2, run=run, **record) for rank in (0, 1)]


def seen(*told: Told, unreachable: tuple[str, ...] = ()) -> list[RunView]:
    return views([one.node for one in told], unreachable)


def one(*told: Told, unreachable: tuple[str, ...] = ()) -> RunView:
    (view,) = seen(*told, unreachable=unreachable)
    return view


class TestViews:
    def test_nodes_stand_in_their_order_and_runs_by_their_start(self) -> None:
        found = seen(*reversed(made("late", started=9)), *made("early", started=1))
        assert [view.run for view in found] == ["early", "late"]
        assert [node["host"] for node in found[1].nodes] == ["gpu00", "gpu01"]

    def test_only_the_last_attempt_counts(self) -> None:
        first, second = made("r1"), made("r1")
        for told in second:
            told.node["attempt"] = 2
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
        nodes[0].node["state"] = nodes[1].node["state"] = "starting"
        assert one(*nodes).state() == "starting"
        nodes[1].node["state"] = "running"
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


class TestStatusObject:
    def test_of_a_live_run(self) -> None:
        nodes = made("r1", name="base", script="train.py", argv=["--lr", "1"], gpus={"gpu00": ["A100"]})
        nodes[1].start(2, number=1, seconds=3.0)
        nodes[1].node["pids"] = [7, 8]
        value = one(*nodes).to_json()
        assert (value["run"], value["name"], value["state"], value["round"]) == ("r1", "base", "running", 1)
        assert (value["world_size"], value["started"], value["ended"]) == (4, BEGAN / SECOND, None)
        assert (value["exit_code"], value["verdict"], value["script"], value["argv"]) == (
            None,
            None,
            "train.py",
            ["--lr", "1"],
        )
        assert value["hosts"] == [
            {"name": "gpu00", "state": "running", "ranks": [0, 1], "pids": [], "gpus": ["A100"]},
            {"name": "gpu01", "state": "running", "ranks": [2, 3], "pids": [7, 8], "gpus": []},
        ]
        json.dumps(value)

    def test_of_a_run_that_ended_with_a_host_out_of_reach(self) -> None:
        value = one(made("r1")[0].succeeded(5), unreachable=("gpu01",)).to_json()
        assert (value["state"], value["exit_code"], value["verdict"]) == ("failed", 125, "gpu01 was lost: no answer")
        assert value["hosts"][1] == {"name": "gpu01", "state": "unreachable", "ranks": [], "pids": [], "gpus": []}

    def test_without_hosts_for_the_list(self) -> None:
        assert "hosts" not in one(*made("r1")).to_json(hosts=False)


class TestChoose:
    found = seen(
        *(told.succeeded(5) for told in made("abc1", name="base", started=1)),
        *(told.succeeded(5) for told in made("abd2", name="base", started=2)),
        *made("xyz3", name="abc1", started=3),
    )

    @pytest.mark.parametrize(
        ("reference", "run"), [("abc1", "abc1"), ("abd", "abd2"), ("base", "abd2"), ("x", "xyz3"), (None, "xyz3")]
    )
    def test_an_id_a_prefix_a_name_or_the_live_one(self, reference: str | None, run: str) -> None:
        assert choose(self.found, reference, reading=False).run == run

    def test_for_reading_the_last_one_serves(self) -> None:
        ended = self.found[:2]
        assert choose(ended, None, reading=True).run == "abd2"
        with pytest.raises(RunError, match="no run is live"):
            choose(ended, None, reading=False)

    def test_several_live_ones_are_listed(self) -> None:
        live = seen(*made("r1", name="one", started=1), *made("r2", started=2))
        with pytest.raises(RunError, match=r"several runs are live: r1 \(one\), r2; name one, or --all"):
            choose(live, None, reading=False)
        assert choose(live, None, reading=True).run == "r2"

    def test_a_prefix_of_several_and_an_unknown_one(self) -> None:
        with pytest.raises(RunError, match=r"'ab' is the beginning of several runs: abc1 \(base\), abd2 \(base\)"):
            choose(self.found, "ab", reading=True)
        with pytest.raises(RunError, match="no run 'nope' on these hosts"):
            choose(self.found, "nope", reading=True)
        with pytest.raises(RunError, match="no run on these hosts"):
            choose([], None, reading=True)
