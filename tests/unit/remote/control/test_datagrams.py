"""Beats as datagrams: what is forged, repeated, sent back or of another connection is thrown away."""

from __future__ import annotations

import selectors
import socket
import struct
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.control.datagrams import Datagrams
from clusterddp.remote.control.heartbeats import Heartbeats
from clusterddp.remote.control.messages import Heartbeat
from tests.unit.remote.control.test_connection import Between, secret
from tests.unit.remote.control.test_silent_lead import bound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.remote.control.connection import PeerConnection

HEARTBEAT_INTERVAL = Heartbeat(majority=True, number=7, echo=3, age=0.25)
WAIT = 10.0  # seconds for a datagram on this machine


class Wire:
    """Two nodes with a proved connection, their UDP sockets, and an attacker who hears and sends anything."""

    def __init__(self) -> None:
        self.pair = Between(secret(2), secret(0), 0)
        self.pair.prove()
        self.listeners = [bound() for _ in range(2)]
        self.caller, self.called = (Datagrams(listener) for listener in self.listeners)
        self.attacker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.attacker.bind(("127.0.0.1", 0))
        self.attacker.settimeout(WAIT)

    def recorded(self, beat: Heartbeat = HEARTBEAT_INTERVAL) -> bytes:
        """A beat of the caller's, as it is on the wire."""
        self.caller.send(self.pair.caller, beat, self.attacker.getsockname())
        return self.attacker.recv(1 << 16)

    def heard(self, *datagrams: bytes, by_caller: bool = False) -> list[Heartbeat]:
        """What a node takes of these."""
        node, link = (self.caller, self.pair.caller) if by_caller else (self.called, self.pair.called)
        assert node.socket
        for datagram in datagrams:
            self.attacker.sendto(datagram, node.socket.getsockname())
        with selectors.DefaultSelector() as selector:
            selector.register(node.socket, selectors.EVENT_READ)
            assert selector.select(WAIT)
        return [beat for _, beat in node.receive({link.member: link}.get)]

    def close(self) -> None:
        self.pair.close()
        ends: list[Any] = [*self.listeners, self.caller, self.called, self.attacker]
        for each in ends:
            each.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


def test_a_beat_of_a_proved_connection_is_heard(wire: Wire) -> None:
    assert wire.heard(wire.recorded()) == [HEARTBEAT_INTERVAL]


def test_a_beat_of_which_any_byte_was_changed_is_thrown_away(wire: Wire) -> None:
    data = wire.recorded()
    forged = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    assert wire.heard(*forged, data) == [HEARTBEAT_INTERVAL]


def test_what_is_too_short_or_too_long_is_thrown_away(wire: Wire) -> None:
    data = wire.recorded()
    assert wire.heard(b"", data[:-1], data + b"x", data * 2, b"x" * 60_000, data) == [HEARTBEAT_INTERVAL]


def test_a_beat_that_is_sent_back_to_who_made_it_is_thrown_away(wire: Wire) -> None:
    ours = wire.recorded()
    back = struct.pack(">H", 0) + ours[2:]  # as if the other member had said it
    wire.called.send(wire.pair.called, HEARTBEAT_INTERVAL, wire.attacker.getsockname())
    theirs = wire.attacker.recv(1 << 16)
    assert wire.heard(ours, back, theirs, by_caller=True) == [HEARTBEAT_INTERVAL]


def test_a_beat_of_another_connection_of_the_same_nodes_is_thrown_away(wire: Wire) -> None:
    recorded = wire.recorded()
    again = Wire()
    try:
        assert again.heard(recorded, again.recorded()) == [HEARTBEAT_INTERVAL]
    finally:
        again.close()


def test_no_beat_is_heard_before_the_proof(wire: Wire) -> None:
    recorded = wire.recorded()
    unproved = Between(secret(2), secret(0), 0)
    try:
        unproved.called.member = 2
        wire.pair.called, proved = unproved.called, wire.pair.called
        assert wire.heard(recorded) == []
        wire.pair.called = proved
    finally:
        unproved.close()


def test_a_beat_that_is_repeated_says_nothing_of_a_node(wire: Wire) -> None:
    links: list[PeerConnection] = [wire.pair.called]
    with selectors.DefaultSelector() as selector:
        beats = Heartbeats(links, lambda *_: None, selector, None)
        beats.datagrams, beats.addresses = wire.called, [("127.0.0.1", 9)] * 3
        recorded = wire.recorded()
        for heard in (True, False):
            wire.pair.called.received_at = 0.0
            assert wire.called.socket
            wire.attacker.sendto(recorded, wire.called.socket.getsockname())
            with selectors.DefaultSelector() as arrival:
                arrival.register(wire.called.socket, selectors.EVENT_READ)
                assert arrival.select(WAIT)
            beats._receive()
            assert (wire.pair.called.received_at > 0.0) == heard
