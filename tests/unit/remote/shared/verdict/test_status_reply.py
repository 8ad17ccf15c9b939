"""What hosts tell of runs: each of itself alone; whatever it is, it can be judged, or is that host's error."""

from __future__ import annotations

import contextlib
import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.run.event_schema import read_event
from clusterddp.remote.shared.run.run_record import read_run_record
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.verdict.failures import WorkerError
from clusterddp.remote.shared.verdict.judge import read_verdict
from clusterddp.remote.shared.verdict.node_report import to_json
from clusterddp.remote.shared.verdict.status_reply import MIN_LONG_FIELD, NO_ANSWERS, read_nodes, without_known_fields
from clusterddp.runs.view.run_view import run_views
from tests.unit.json_values import VALUES
from tests.unit.runs_told import Told, at


def node() -> dict[str, Any]:
    told = Told(0, run="abcdefghjk")
    told.died(5, code=1, raised="ValueError: no").ended("failed", 6)
    return {
        **told.fields,
        "record": {"hosts": ["gpu00", "gpu01"], "world_size": 2, "name": "x", "started": 5, "argv": []},
        "last_output": None,
        "peers": None,
        "verdict": None,
        "end": None,
    }


def judged(answer: Any) -> None:
    for view in run_views(read_nodes(answer, "gpu00", "abc")):
        json.dumps([view.to_json(), view.spools, view.current, view.last_output_ns])


def test_what_a_host_rightly_tells_is_taken_as_it_is() -> None:
    told = node()
    (read,) = read_nodes([told], "gpu00", "abc")
    sent = to_json(read)
    plain = {
        name: value
        for name, value in told.items()
        if name not in ("record", "exit", "errors", "events", "peers", "end")
    }
    assert {name: sent[name] for name in plain} == plain
    assert read.record == read_run_record(told["record"])
    assert {**sent["exit"], **told["exit"]} == sent["exit"]
    assert (read.events, read.stderr) == (tuple(map(read_event, told["events"])), told["stderr"])
    assert read.errors["0.0.json"] == WorkerError("ValueError", "no", "/home/u/work/train.py", 81, at(5))
    assert read_nodes([sent], "gpu00", "abc") == [read]
    judged([told])


@pytest.mark.parametrize(
    "changed",
    [
        {"host": "gpu01"},
        {"host": None},
        {"run": "zzzzzzzzzz"},
        {"run": "abc/../../x"},
        {"run": "abc\x1b[2J"},
        {"attempt": "1"},
        {"attempt": -1},
        {"node_rank": None},
        {"spool": "runs/x"},
        {"spool": "/s\n"},
        {"state": 5},
        {"clock_offset_ns": "0"},
        {"pids": [None]},
        {"record": []},
        {"record": {"hosts": "gpu01", "world_size": 1}},
        {"record": {"hosts": [], "world_size": 1, "argv": [5]}},
        {"exit": {"state": "failed"}},
        {"exit": []},
        {"events": {}},
        {"stderr": {"agent": 5}},
    ],
    ids=repr,
)
def test_a_host_that_speaks_of_another_or_does_not_say_who_it_is_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=" "):
        read_nodes([node(), {**node(), **changed}], "gpu00", "abc")


@pytest.mark.parametrize("answer", [None, {}, "x", [None], [[]], [{}]])
def test_an_answer_that_is_no_list_of_nodes_is_refused(answer: Any) -> None:
    with pytest.raises(ValueError, match=" "):
        read_nodes(answer, "gpu00", "")


@pytest.mark.parametrize("event", [5, {}, {"event": "worker_started", "time": 1}, {"event": "stopping", "time": "now"}])
def test_an_event_that_is_none_is_left_out(event: Any) -> None:
    told = node()
    (read,) = read_nodes([{**told, "events": [event, *told["events"], event]}], "gpu00", "")
    assert read.events == tuple(map(read_event, told["events"]))


def test_nul_in_what_workers_printed_or_raised_is_no_damage_and_the_verdict_can_be_kept_and_read() -> None:
    told = Told(0, workers=2, run="abcdefghjk").died(5, code=3, stderr="bytes: \0\0\n")
    told.died(6, local=1, raised="Val\0ue: bad record: 'a\0b'").failed(7, log="record: \0\n")
    (view,) = run_views(read_nodes([json.loads(json.dumps(told.fields))], "gpu00", "abc"))
    kept = view.to_keep()
    assert kept
    assert "exit code 3: bytes:" in kept.line
    assert kept.failures[1].worker.text == "Val ue: bad record: 'a b' (train.py:81)"
    assert read_verdict(json.loads(json.dumps(to_fields(kept)))) == kept


def test_nul_in_what_torchrun_printed_is_a_space_in_the_verdict() -> None:
    told = Told(0, workers=0).failed(7, log="ValueError: no port '\0'\n")
    (view,) = run_views([told.node])
    kept = view.to_keep()
    assert kept
    assert kept.line.endswith("ValueError: no port ' '")
    assert read_verdict(json.loads(json.dumps(to_fields(kept)))) == kept


def places(value: Any) -> list[tuple[Any, ...]]:
    """The way to every part of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *way) for key, inner in items for way in places(inner))]


def put(value: Any, way: tuple[Any, ...], other: Any) -> Any:
    if not way:
        return other
    value[way[0]] = put(value[way[0]], way[1:], other)
    return value


WAYS = st.sampled_from(places(node()))


@given(changes=st.lists(st.tuples(WAYS, VALUES), min_size=1, max_size=3))
def test_whatever_a_host_tells_can_be_judged_or_is_its_error(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    told: Any = deepcopy(node())
    for way, other in changes:
        try:
            told = put(told, way, other)
        except (TypeError, KeyError, IndexError):
            continue  # an earlier change took that part away
    try:
        read_nodes([told], "gpu00", "abc")
    except ValueError:
        return
    judged([told])


@pytest.mark.parametrize("name", sorted(node()))
def test_a_node_without_one_of_its_fields_is_refused_or_can_be_judged(name: str) -> None:
    told = node()
    del told[name]
    with contextlib.suppress(ValueError):
        judged([told])


class TestAskedAgain:
    def test_long_fields_come_only_when_they_have_changed(self) -> None:
        first = node() | {"stderr": {"0.0": "x" * MIN_LONG_FIELD}}
        filled, answers = NO_ANSWERS.whole([without_known_fields(first, {})])
        assert read_nodes(filled, "gpu00", "abc") == read_nodes([first], "gpu00", "abc")
        second = first | {"state": "stopped"}
        short = without_known_fields(second, answers.digests[first["spool"]])
        assert {"events", "stderr"} <= set(short["same"])
        assert not {"events", "stderr"} & set(short)
        filled, answers = answers.whole([short])
        assert read_nodes(filled, "gpu00", "abc") == read_nodes([second], "gpu00", "abc")
        third = second | {"stderr": {"0.0": "y" * MIN_LONG_FIELD}}
        filled, _ = answers.whole([without_known_fields(third, answers.digests[first["spool"]])])
        assert read_nodes(filled, "gpu00", "abc") == read_nodes([third], "gpu00", "abc")

    def test_what_is_new_comes_whole_and_what_has_gone_is_forgotten(self) -> None:
        first, other = node(), node() | {"spool": "/s/runs/abcdefghjk/2/0-gpu00", "attempt": 2}
        _, answers = NO_ANSWERS.whole([without_known_fields(first, {})])
        filled, answers = answers.whole([without_known_fields(other, answers.digests.get(other["spool"], {}))])
        assert read_nodes(filled, "gpu00", "abc") == read_nodes([other], "gpu00", "abc")
        assert set(answers.digests) == {other["spool"]}

    def test_an_answer_of_an_older_host_is_taken_as_it_is(self) -> None:
        filled, answers = NO_ANSWERS.whole([node()])
        assert (filled, answers.digests) == ([node()], {})

    @pytest.mark.parametrize(
        "changed", [{"same": ["record"]}, {"same": [1]}, {"digests": []}, {"digests": {"record": 1}}, {"spool": None}]
    )
    def test_who_leaves_out_what_was_never_told_is_in_error(self, changed: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"\w"):
            NO_ANSWERS.whole([without_known_fields(node(), {}) | changed])

    @given(VALUES)
    def test_whatever_a_host_answers_it_is_its_error_at_most(self, answer: Any) -> None:
        with contextlib.suppress(ValueError):
            NO_ANSWERS.whole(answer)
        with contextlib.suppress(ValueError):
            NO_ANSWERS.whole([{"digests": answer, "same": answer, "spool": "/s"}])

    def test_what_is_kept_of_all_answers_together_has_an_end(self) -> None:
        known: list[str] = []

        def ever_more() -> None:
            answers = NO_ANSWERS
            for number in range(100):  # each time one more node with a long field, and the earlier ones left out
                told = [{"spool": spool, "digests": {}, "same": ["events"]} for spool in known]
                known.append(f"/s{number}")
                new = {"spool": known[-1], "digests": {"events": "d"}, "same": [], "events": ["x" * 1000]}
                _, answers = answers.whole([*told, new], 50_000)

        with pytest.raises(ValueError, match="it is more than 0 MiB"):
            ever_more()
        assert len(known) == 50
