"""What hosts answer when they dial each other, and when they look for folders that they share."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import HelperError
from clusterddp.facts.dial_schedule import dial_schedule
from clusterddp.facts.network import Candidate
from clusterddp.probe.dial_hosts import Trial, find_shared_folders, try_connections
from clusterddp.remote.shared.wire.frames import Frame
from tests.unit.facts_made import interface

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.hosts.outgoing import Outgoing


@pytest.mark.parametrize("answer", [5, None, {"folders": 7}])
def test_an_answer_that_names_no_folders_is_an_error_of_its_host(answer: Any) -> None:
    host: Any = SimpleNamespace(name="bad", call=lambda *_, **__: answer)
    (outcome,) = find_shared_folders([host], {"bad": {"state": "/x"}})
    assert isinstance(outcome.error, HelperError)
    assert "bad: its answer is damaged" in str(outcome.error)


class Node:
    """A host that answers ``listen`` and ``dial`` as it is told: ``words`` are those of one dial after the other."""

    def __init__(self, name: str, *words: str, heard: Any = None) -> None:
        self.name, self.entry = name, SimpleNamespace(ports=(29400, 29499))
        self.words = list(words)
        self.dialled: list[list[tuple[str, int]]] = []
        self.heard = {} if heard is None else heard

    def stream(self, operation: str, _: Any, outgoing: Outgoing, *, patience: float) -> Iterator[Frame]:
        assert operation == "listen"
        assert patience > 0
        ended = threading.Event()
        outgoing.attach(lambda header, _: ended.set() if header["kind"] == "end" else None)
        yield Frame({"kind": "data", "ports": [29400, 40000]}, b"")
        assert ended.wait(30)
        yield Frame({"kind": "end"}, json.dumps(self.heard).encode())

    def call(self, operation: str, request: Any, *, timeout: float) -> list[dict[str, str]]:
        assert operation == "dial"
        assert timeout > 0
        self.dialled.append([(target["address"], target["port"]) for target in request["targets"]])
        return [{"word": self.words.pop(0)} for _ in request["targets"]]


def tried(*nodes: Node) -> Trial:
    hosts: Any = nodes
    where = {node.name: interface(f"10.0.0.{number}") for number, node in enumerate(nodes, 1)}
    return try_connections(hosts, [(Candidate(label="x", where=where, ssh=True), dial_schedule(where))])


def words(trial: Trial, source: str) -> list[str]:
    return [one.word for one in trial.attempts if one.source == source]


def test_what_failed_is_dialled_once_more_and_that_counts() -> None:
    one, two = Node("a", "timeout", "ok", "ok"), Node("b", "ok", "ok")
    trial = tried(one, two)
    assert one.dialled == [[("10.0.0.2", 29400), ("10.0.0.2", 40000)], [("10.0.0.2", 29400)]]
    assert len(two.dialled) == 1
    assert words(trial, "a") == words(trial, "b") == ["ok", "ok"]
    assert (trial.deaf, trial.heard) == ([], {})


def test_of_what_fails_again_both_ends_are_asked_what_they_heard() -> None:
    report = {"callers": {"29400": ["10.0.0.1"]}, "late_ms": 1200}
    one = Node("a", "ok", "timeout", "ok", "ok", "timeout")
    trial = tried(one, Node("b", *["ok"] * 4, heard=report), Node("c", *["ok"] * 4))
    assert words(trial, "a") == ["ok", "timeout", "ok", "ok"]
    assert {name: heard.late_ms for name, heard in trial.heard.items()} == {"a": 0, "b": 1200}


def test_a_damaged_report_explains_nothing_and_stops_nothing() -> None:
    trial = tried(Node("a", *["timeout"] * 4), Node("b", "ok", "ok", heard={"callers": 5}))
    assert words(trial, "a") == ["timeout", "timeout"]
    assert list(trial.heard) == ["a"]


def test_a_rejection_stands_where_the_second_one_is_not_sent() -> None:
    assert words(tried(Node("a", *["no route", "ok", "timeout"]), Node("b", "ok", "ok")), "a") == ["no route", "ok"]
    assert words(tried(Node("a", *["no route", "ok", "ok"]), Node("b", "ok", "ok")), "a") == ["ok", "ok"]


def test_another_machine_that_answers_is_not_dialled_again() -> None:
    one = Node("a", "wrong nonce", "wrong nonce")
    assert words(tried(one, Node("b", "ok", "ok")), "a") == ["wrong nonce", "wrong nonce"]
    assert len(one.dialled) == 1
