"""The schema of run control's messages: what is written is read again; other bytes give DamagedError."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.control import message_fields, messages
from clusterddp.remote.control.look_messages import LookPart, LookRequest, StallNotice, look_parts
from clusterddp.remote.control.messages import (
    Accept,
    AttemptDecision,
    Call,
    EndMessage,
    EndOrder,
    Heartbeat,
    Hello,
    Joined,
    Message,
    NodeState,
    NodeStatus,
    NodeStatusRow,
    Redirect,
    StatusMessage,
    StatusTable,
    TakingPart,
    VerdictPart,
    decode,
    encode,
    verdict_parts,
)
from clusterddp.remote.shared.processes.worker_stacks import cut_stack
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.verdict.judge import HostEnd, VerdictRecord
from clusterddp.remote.shared.verdict.node_end import NodeEnd
from tests.unit.remote.shared.collectives.evidence_made import STEP, in_operation, stack

HEX = "0123456789abcdef"
NONCE, PROOF = HEX * 2, HEX * 4
JOINED = Joined("gpu09", "fd00::9", 8, 29400)
WORD = NodeStatus(NodeState.ENDED, 3, 1, curable=False, cause="CUDA out of memory", left=True, joined=JOINED)
ALL: list[Message] = [
    Hello(NONCE),
    Call(1, 0, NONCE, PROOF),
    Accept(PROOF),
    Redirect(2, PROOF),
    Heartbeat(majority=True, number=3, echo=2, age=0.5),
    StatusMessage(WORD, 0.5, 7),
    StatusTable(
        (NodeStatusRow(0, 0.0, WORD), NodeStatusRow(7, 12.5, NodeStatus(NodeState.STANDBY, 1))),
        3.0,
        TakingPart(2, 9, (2, 5), (1,)),
    ),
    StatusTable((), 0.0),
    EndOrder("gpu07 was lost", 3.0, ours=True, attempt=2),
    EndOrder("by hand", 0.0, ours=False),
    AttemptDecision(2, (3, 0, 1), 3, 29500),
    AttemptDecision(3, reason="all 2 relaunches are used"),
    EndMessage(NodeEnd("gpu01", 2, "failed", 1, agent_exit=1, exits={"0": "0-6", "1": "7"}, failed=1)),
    VerdictPart(1, 3, '{"state": "succ'),
    LookRequest(2, 7, (0, 5)),
    LookPart(2, 7, 0, 1, 4, debugged=False, traces=(in_operation(1),), stacks=(stack(1, *STEP),)),
    StallNotice(2, "1.0 missing 1 default #4", "rank 1 did not join", 3, 1, 2),
    StallNotice(1, "1.0 missing 1 default #4", "rank 1 did not join"),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from([NONCE, PROOF]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def refused_or_read(payload: bytes) -> None:
    """Nothing but DamagedError is raised, and what is read is written as it is read."""
    try:
        message = decode(payload)
    except DamagedError:
        return
    assert decode(encode(message)) == message


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_what_is_written_is_read_again(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_a_field_of_another_type_is_refused(message: Message) -> None:
    fields = json.loads(encode(message))
    for name in fields:
        wrong: tuple[object, ...] = ({}, [[]], "\0", "\ud800", -1, 0 if isinstance(fields[name], bool) else True)
        for value in wrong:
            with pytest.raises(DamagedError):
                decode(json.dumps({**fields, name: value}).encode())
    with pytest.raises(DamagedError):
        decode(json.dumps({**fields, "more": 1}).encode())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 5000, "-0.5", "true", "null", '"1"'])
def test_a_number_that_is_none_is_refused(number: str) -> None:
    with pytest.raises(DamagedError):
        decode(b'{"kind":"EndOrder","reason":"","ours":true,"attempt":null,"grace":%s}' % number.encode())
    with pytest.raises(DamagedError):
        decode(b'{"kind":"Redirect","proof":"%s","member":%s}' % (PROOF.encode(), number.encode()))


@pytest.mark.parametrize("address", ["gpu09", "a" * 100, "", "10.0.0.9 ", "fe80::1%eth0", "10.0.0.300", "é.example"])
def test_a_node_that_joins_has_an_address_that_nobody_needs_to_look_up(address: str) -> None:
    with pytest.raises(DamagedError, match="IP address"):
        decode(encode(StatusMessage(WORD._replace(joined=JOINED._replace(address=address)), 0.5)))


@pytest.mark.parametrize("host", ["", ".", "..", "a/b", "x" * 256])
def test_a_node_that_joins_has_a_name_that_a_plan_may_hold(host: str) -> None:
    with pytest.raises(DamagedError):
        decode(encode(StatusMessage(WORD._replace(joined=JOINED._replace(host=host)), 0.5)))


@pytest.mark.parametrize("payload", [b"", b"[" * 60_000, b'{"kind":' * 8000, b"\xff\xfe", b"null", b"{}", b"[]"])
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(DamagedError):
        decode(payload)


@given(st.sampled_from(ALL), st.data())
def test_messages_with_any_other_value_are_refused_or_read(message: Message, data: st.DataObject) -> None:
    fields = json.loads(encode(message))
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(VALUES)
    refused_or_read(json.dumps(fields).encode())


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_or_read(payload: bytes) -> None:
    refused_or_read(payload)


def test_mutated_messages_are_refused_or_read() -> None:
    chance = random.Random(20261122)
    written = [encode(message) for message in ALL]
    for _ in range(20_000):
        payload = bytearray(chance.choice(written))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(payload))
            payload[at : at + chance.randint(0, 3)] = chance.choice([b"", b"[", b"9", b'"', b"-", b"e9", b"\xff", b"{"])
        refused_or_read(bytes(payload))


def test_texts_are_cut_to_what_is_read() -> None:
    long = "x\0\udc80" * 2000
    order, said = (
        decode(encode(EndOrder(long, 1.0, ours=True))),
        decode(encode(StatusMessage(WORD._replace(cause=long), 0.0))),
    )
    assert isinstance(order, EndOrder)
    assert isinstance(said, StatusMessage)
    assert (len(order.reason), order.reason[:3], order.reason.count("…")) == (message_fields.MAX_REASON, "x ?", 1)
    assert len(said.status.cause) == message_fields.MAX_CAUSE


def test_2000_nodes_with_long_causes_are_told_in_parts_that_fit_a_frame() -> None:
    word = WORD._replace(cause="\U0001f525" * message_fields.MAX_CAUSE)
    rows = [NodeStatusRow(member, 1e9, word) for member in range(2000)]
    parts = messages.status_tables(rows, 1.0, TakingPart(1, 1, tuple(range(1000)), tuple(range(1000, 2000))))
    assert max(len(encode(part)) for part in parts) <= 64 * 1024
    assert [row for part in parts for row in part.rows] == rows
    assert len(encode(AttemptDecision(999_999, tuple(range(2000)), 1999, 65535, "x" * 5000))) <= 64 * 1024
    assert len(encode(EndOrder("\U0001f525" * 5000, 1e9, ours=True, attempt=999_999))) <= 64 * 1024


def test_the_verdict_on_2000_nodes_is_told_in_parts_that_fit_a_frame() -> None:
    names = tuple(f"gpu{member:04}" for member in range(2000))
    hosts = tuple(HostEnd(name, "failed", 1 << 60, '"\\' * 150, "/w" * 50, {"1": "0-7"}) for name in names)
    verdict = VerdictRecord(1, "failed", 1, "x" * 1000, names[0], 0, names, hosts=hosts)
    parts = verdict_parts(to_fields(verdict), final=True)
    assert [part.number for part in parts] == list(range(parts[0].parts))
    assert all(len(encode(part)) <= 64 * 1024 for part in parts)
    assert all(decode(encode(part)) == part for part in parts[:3])
    assert json.loads("".join(part.text for part in parts))["reported"] == list(names)


def test_what_64_workers_do_is_told_in_parts_that_fit_a_frame() -> None:
    deep = stack(1, *[("/\U0001f525" * 400, 1, "\U0001f525" * 400)] * 500)
    traces = tuple(in_operation(rank)._replace(why="x" * 3900) for rank in range(64))
    parts = look_parts(LookPart(1, 1, 0, 1, 64, debugged=True, traces=traces, stacks=(cut_stack(deep),) * 8))
    assert max(len(encode(part)) for part in parts) <= 64 * 1024
    assert [(part.part, part.parts) for part in parts] == [(number, len(parts)) for number in range(len(parts))]
    assert tuple(trace for part in parts for trace in part.traces) == traces
    assert len([one for part in parts for one in part.stacks]) == 8
    assert all(decode(encode(part)) == part for part in parts)
