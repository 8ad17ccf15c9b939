"""The matrix of all pairs, from their dials."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusterddp.facts.dials import DialAttempt, Pair, mark_lost, matrix
from tests.unit.facts_made import interface

WHERE = {"a": interface("10.0.0.1"), "b": interface("10.0.0.2")}
BOTH = {"a": ("b",), "b": ("a",)}


def dialled(word: str = "ok", *, ranged: bool = False, address: str = "10.0.0.2", **more: Any) -> DialAttempt:
    return DialAttempt(
        source="a", target="b", address=address, port=29400 if ranged else 40000, ranged=ranged, word=word, **more
    )


def pair(*dials: DialAttempt) -> Pair:
    return next(one for one in matrix(WHERE, dials, BOTH) if one.source == "a")


def test_every_ordered_pair_has_its_place() -> None:
    assert [(one.source, one.target, one.verdict, one.word) for one in matrix(WHERE, [dialled()], BOTH)] == [
        ("a", "b", "pass", "ok"),
        ("b", "a", "unknown", "not dialled"),
    ]


def test_a_pair_that_was_not_to_be_dialled_has_none() -> None:
    assert [(one.source, one.target) for one in matrix(WHERE, [dialled()], {"a": ("b",), "b": ()})] == [("a", "b")]


def test_what_was_measured_on_all_dials_is_joined() -> None:
    found = pair(dialled(ranged=True, rtt_us=90, sent=4), dialled(rtt_us=80, bulk=True, sent=46, resent=1))
    assert (found.verdict, found.rtt_ms, found.bulk, found.loss) == ("pass", 0.08, True, 0.02)


def test_a_way_that_is_shut_says_on_which_ports() -> None:
    shut = pair(dialled("timeout"), dialled("timeout", ranged=True))
    assert (shut.verdict, shut.word, shut.ports) == ("fail", "timeout", "all")
    assert pair(dialled("refused", ranged=True), dialled()).ports == "clusterddp_ports"
    assert pair(dialled("refused"), dialled(ranged=True)).ports == "ephemeral"


def test_a_few_segments_sent_again_are_no_loss_and_many_are() -> None:
    assert pair(dialled(sent=50, resent=2)).verdict == "pass"
    assert pair(dialled(sent=1000, resent=9)).verdict == "pass"
    lossy = pair(dialled(sent=50, resent=5))
    assert (lossy.verdict, lossy.loss) == ("warn", 0.1)


def test_an_unanswered_dial_between_hosts_that_lose_packets_is_lost_and_no_firewalls_work() -> None:
    shut, lossy = dialled("timeout", ranged=True), dialled(sent=50, resent=10)
    assert [one.word for one in mark_lost([shut, lossy])] == ["lost", "ok"]
    back = replace(lossy, source="b", target="a")
    assert [one.word for one in mark_lost([shut, back])] == ["lost", "ok"]
    other = replace(lossy, target="c")
    assert [one.word for one in mark_lost([shut, other])] == ["timeout", "ok"]
    assert [one.word for one in mark_lost([shut, dialled(sent=50, resent=4)])] == ["timeout", "ok"]
    assert [one.word for one in mark_lost([dialled("refused", ranged=True), lossy])] == ["refused", "ok"]


def test_dials_on_another_network_do_not_count() -> None:
    assert pair(dialled("timeout", address="10.1.0.2"), dialled()).verdict == "pass"


def test_only_what_did_not_come_through_is_a_failure() -> None:
    assert dialled().failure is None
    failure = dialled("timeout", ranged=True).failure
    assert failure
    assert (failure.source, failure.target, failure.word, failure.ranged) == ("a", "b", "timeout", True)


def test_the_contracts_fields() -> None:
    assert pair(dialled(rtt_us=80, bulk=True, sent=3)).to_json() == {
        "source": "a",
        "target": "b",
        "verdict": "pass",
        "word": "ok",
        "ports": "",
        "rtt_ms": 0.08,
        "bulk": True,
        "loss": 0.0,
    }
