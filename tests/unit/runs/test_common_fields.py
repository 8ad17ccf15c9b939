"""What all nodes of a run report alike is sent by a few of them; nobody can give another host's node a value."""

from __future__ import annotations

from typing import Any

import pytest

from clusterddp.remote.shared.verdict.node_report import to_json
from clusterddp.remote.shared.verdict.status_reply import (
    MIN_COMMON_FIELD,
    common_digest,
    read_nodes,
    without_common_fields,
)
from clusterddp.runs.common_fields import MAX_KEPT, CommonFields, restored
from tests.unit.runs_told import Told

NAMES = [f"gpu{number:04d}" for number in range(MIN_COMMON_FIELD // 8)]


def node(host: str, *, started: int = 5) -> dict[str, Any]:
    told = Told(NAMES.index(host), run="abcdefghjk")
    record = {"hosts": NAMES, "world_size": 2, "name": "x", "started": started, "argv": []}
    nodes = read_nodes([{**told.fields, "host": host, "record": record, "last_output": None}], host, "abc")
    return to_json(nodes[0])


def asked(common: CommonFields, host: str, *, started: int = 5) -> tuple[dict[str, Any], Any]:
    """The answer of a host that is told what is known, and its node as it is read."""
    known = common.snapshot()
    answer = without_common_fields(node(host, started=started), [*known])
    (read,) = read_nodes(restored([answer], known), host, "abc")
    common.learn([answer], [read])
    return answer, read


def test_the_record_is_sent_once_and_every_node_has_it() -> None:
    common = CommonFields()
    first, read = asked(common, "gpu0000")
    second, other = asked(common, "gpu0001")
    assert "record" in first
    assert "record" not in second
    assert other.record is read.record
    assert other.record.hosts == tuple(NAMES)
    assert other.host == "gpu0001"


def test_another_run_s_record_is_sent() -> None:
    common = CommonFields()
    asked(common, "gpu0000")
    answer, read = asked(common, "gpu0001", started=6)
    assert answer["record"]["started"] == read.record.started == 6


def test_a_short_record_is_sent_by_every_node() -> None:
    assert common_digest({"hosts": ["gpu00", "gpu01"]}) is None


@pytest.mark.parametrize(
    "left_out", [{"record": "0" * 64}, {"state": "0" * 64}, {"record": 1}, ["record"], "record", None]
)
def test_an_answer_that_leaves_out_what_was_not_offered_is_refused(left_out: Any) -> None:
    common = CommonFields()
    asked(common, "gpu0000")
    answer = {name: value for name, value in node("gpu0001").items() if name != "record"}
    with pytest.raises(ValueError, match=r"leaves out|common"):
        restored([{**answer, "common": left_out}], common.snapshot())


def test_a_value_is_known_by_its_own_digest_whatever_its_sender_says_of_it() -> None:
    common = CommonFields()
    (true,) = read_nodes([node("gpu0000")], "gpu0000", "abc")
    forged = {**node("gpu0001", started=7), "digests": {"record": common_digest(node("gpu0000")["record"])}}
    (read,) = read_nodes([forged], "gpu0001", "abc")
    common.learn([forged], [read])
    assert common_digest(node("gpu0000")["record"]) not in common.snapshot()
    assert true.record.started == 5


def test_of_many_values_the_newest_are_kept() -> None:
    common = CommonFields()
    for started in range(MAX_KEPT + 3):
        asked(common, "gpu0000", started=started)
    kept = [value.started for value in common.snapshot().values()]
    assert kept == [*range(3, MAX_KEPT + 3)]
