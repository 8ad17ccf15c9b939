"""The proof and the frames of one connection: who stands between can end it, and nothing else."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.control import connection
from clusterddp.remote.control.connection import PeerConnection, ProtocolError, Secret
from clusterddp.remote.control.messages import Accept, Call, EndOrder, Heartbeat, Hello, Message, Redirect
from clusterddp.remote.shared.schema.fields import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = b"k" * 32
STOP = EndOrder("by hand", 3.0, ours=False)


class Between:
    """Two nodes and who stands between them: nothing is passed on but by the test."""

    def __init__(self, caller: Secret, called: Secret, target: int) -> None:
        left, self.left = socket.socketpair()
        right, self.right = socket.socketpair()
        self.caller, self.called = PeerConnection(left, caller, target), PeerConnection(right, called)

    def from_called(self) -> bytes:
        """What the called node sent, and nobody has passed on yet."""
        return self.right.recv(1 << 17)

    def from_caller(self) -> bytes:
        return self.left.recv(1 << 17)

    def to_called(self, data: bytes) -> Message | None:
        """Pass on; the first message that the called node reads."""
        self.right.sendall(data)
        self.called.receive()
        return self.called.next()

    def to_caller(self, data: bytes) -> Message | None:
        self.left.sendall(data)
        self.caller.receive()
        return self.caller.next()

    def introduce(self) -> Call:
        """Up to the caller's proof, which the called node has read."""
        self.called.greet()
        hello = self.to_caller(self.from_called())
        assert isinstance(hello, Hello)
        self.caller.introduce(hello)
        call = self.to_called(self.from_caller())
        assert isinstance(call, Call)
        return call

    def prove(self) -> None:
        self.called.welcome(self.called.check_call(self.introduce()))
        lead = self.to_caller(self.from_called())
        assert isinstance(lead, Accept)
        self.caller.check_accept(lead)

    def close(self) -> None:
        for each in (self.caller.socket, self.called.socket, self.left, self.right):
            each.close()


def secret(member: int, key: bytes = KEY, run: str = "run") -> Secret:
    return Secret(key, run, member)


@pytest.fixture
def pair() -> Iterator[Between]:
    """Node 2 calls node 0."""
    between = Between(secret(2), secret(0), 0)
    yield between
    between.close()


def test_messages_pass_both_ways_once_both_sides_have_proved_the_key(pair: Between) -> None:
    pair.prove()
    assert (pair.caller.member, pair.called.member) == (0, 2)
    for message in (STOP, Heartbeat(majority=True, number=1, echo=0, age=0.0)):
        pair.called.send(message)
        assert pair.to_caller(pair.from_called()) == message
        pair.caller.send(message)
        assert pair.to_called(pair.from_caller()) == message


@pytest.mark.parametrize(
    ("caller", "called", "target"),
    [
        (secret(2, b"another"), secret(0), 0),
        (secret(2, run="another"), secret(0), 0),
        (secret(2), secret(1), 0),  # a relay on a dead lead's port
        (secret(0), secret(0), 0),  # a node's own call, sent back to it
    ],
    ids=["key", "run", "member", "itself"],
)
def test_a_call_with_another_key_run_or_member_is_refused(caller: Secret, called: Secret, target: int) -> None:
    between = Between(caller, called, target)
    with pytest.raises(ProtocolError):
        between.called.check_call(between.introduce())
    between.close()


def test_a_proof_heard_on_one_connection_is_worth_nothing_on_another(pair: Between) -> None:
    heard = pair.introduce()
    again = Between(secret(2), secret(0), 0)
    again.introduce()
    with pytest.raises(ProtocolError):
        again.called.check_call(heard)
    again.close()


def test_a_call_whose_member_index_was_changed_is_refused(pair: Between) -> None:
    call = pair.introduce()
    with pytest.raises(ProtocolError):
        pair.called.check_call(call._replace(caller=1))


def test_who_does_not_know_the_key_leads_nobody_and_sends_nobody_on(pair: Between) -> None:
    pair.introduce()
    with pytest.raises(ProtocolError):
        pair.caller.check_accept(Accept("0" * 64))
    with pytest.raises(ProtocolError):
        pair.caller.check_redirect(Redirect(1, "0" * 64))
    assert pair.caller.member is None


def test_an_answer_that_names_a_lead_cannot_be_made_to_name_another(pair: Between) -> None:
    member = pair.called.check_call(pair.introduce())
    pair.called.send_redirect(member, 1)
    answer = pair.to_caller(pair.from_called())
    assert isinstance(answer, Redirect)
    pair.caller.check_redirect(answer)
    with pytest.raises(ProtocolError):
        pair.caller.check_redirect(answer._replace(member=3))


@pytest.mark.parametrize("what", ["changed", "repeated", "left out", "sent back", "forged"])
def test_a_frame_that_was_tampered_with_ends_the_connection_unread(pair: Between, what: str) -> None:
    pair.prove()
    pair.caller.send(STOP)
    first = pair.from_caller()
    pair.caller.send(STOP)
    second = pair.from_caller()
    if what == "repeated":
        assert pair.to_called(first) == STOP
    forged = {
        "changed": first.replace(b"by hand", b"mischie"),
        "repeated": first,
        "left out": second,
        "forged": first[:-32] + b"\0" * 32,
        "sent back": first,
    }[what]
    with pytest.raises(ProtocolError):
        (pair.to_caller if what == "sent back" else pair.to_called)(forged)


def test_a_frame_of_another_connection_of_the_same_nodes_is_refused(pair: Between) -> None:
    pair.prove()
    again = Between(secret(2), secret(0), 0)
    again.prove()
    pair.caller.send(STOP)
    with pytest.raises(ProtocolError):
        again.to_called(pair.from_caller())
    again.close()


def test_before_the_proof_a_frame_is_small_and_nothing_else_is_read(pair: Between) -> None:
    assert connection.MAX_UNPROVEN_MESSAGE <= 512  # what SECURITY.md says
    pair.called.greet()
    assert pair.to_called(struct.pack(">I", 512) + b"x" * 511) is None
    again = Between(secret(2), secret(0), 0)
    try:
        with pytest.raises(ProtocolError):
            again.to_called(struct.pack(">I", 513))
    finally:
        again.close()


def test_any_byte_of_the_handshake_that_is_changed_ends_it(pair: Between) -> None:
    pair.called.greet()
    hello = pair.to_caller(pair.from_called())
    assert isinstance(hello, Hello)
    pair.caller.introduce(hello)
    call = pair.from_caller()
    pair.close()
    for at in range(4, len(call)):
        between = Between(secret(2), secret(0), 0)
        between.called.nonce = hello.nonce
        changed = call[:at] + bytes([call[at] ^ 1]) + call[at + 1 :]
        with pytest.raises((ProtocolError, DamagedError)):
            between.called.check_call(between.to_called(changed))  # type: ignore[arg-type]
        between.close()
