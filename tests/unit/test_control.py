"""Run control: proved links, orders that reach all, strangers that reach nothing. Real sockets on the loopback."""

from __future__ import annotations

import selectors
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote import control
from clusterddp.remote.control import Control
from clusterddp.remote.wire import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = b"k" * 32


class Star:
    """A lead and its nodes on one selector, so that a test's turns drive all of them."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.place = self.listener.getsockname()
        self.heard: dict[int, list[dict[str, Any]]] = {0: []}
        self.lead = Control(0, KEY, self.selector, self.heard[0].append, listener=self.listener)
        self.nodes: dict[int, Control] = {}

    def node(self, rank: int, key: bytes = KEY) -> Control:
        self.heard[rank] = []
        self.nodes[rank] = Control(rank, key, self.selector, self.heard[rank].append, lead=self.place)
        return self.nodes[rank]

    def until(self, ready: Callable[[], object]) -> None:
        deadline = time.monotonic() + 10
        while not ready():
            assert time.monotonic() < deadline, self.heard
            for each in (self.lead, *self.nodes.values()):
                each.turn()
            for key, _ in self.selector.select(0.05):
                key.data()

    def kinds(self, rank: int) -> list[str]:
        return [message["kind"] for message in self.heard[rank]]


@pytest.fixture
def star() -> Iterator[Star]:
    made = Star()
    yield made
    for each in (*made.nodes.values(), made.lead):
        each.close(0)
    made.selector.close()


def test_a_stop_said_by_one_node_reaches_the_lead_and_by_it_the_others(star: Star) -> None:
    first, _ = star.node(1), star.node(2)
    star.until(lambda: star.lead.connected == {1, 2})
    star.until(lambda: first.connected)
    first.say("stop", reason="by hand", grace=3.0)
    star.until(lambda: "stop" in star.kinds(0))
    order = next(message for message in star.heard[0] if message["kind"] == "stop")
    assert order == {"kind": "stop", "reason": "by hand", "grace": 3.0, "rank": 1}
    star.lead.say("stop", but=1, reason="by hand", grace=3.0)
    star.until(lambda: "stop" in star.kinds(2))
    assert "stop" not in star.kinds(1)


def test_what_is_said_before_the_lead_is_reached_is_said_when_it_is(star: Star) -> None:
    node = star.node(1)
    node.say("failed", reason="x")
    star.until(lambda: "failed" in star.kinds(0))


def test_a_node_with_another_key_is_never_heard(star: Star) -> None:
    stranger = star.node(1, b"another key")
    stranger.say("stop", reason="mischief", grace=0.0)
    star.until(lambda: stranger.last_try and not stranger.links)  # the lead has dropped it
    assert not star.lead.connected
    assert star.heard[0] == []


def test_a_lead_with_another_key_is_not_obeyed(star: Star) -> None:
    star.lead.key = b"not ours"
    node = star.node(1)
    star.until(lambda: node.last_try and not node.links)
    assert star.heard[1] == []


def test_bytes_that_are_no_frames_only_end_their_own_connection(star: Star) -> None:
    star.node(1)
    star.until(lambda: star.lead.connected == {1})
    with socket.create_connection(star.place) as noise:
        noise.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\xff" * 64)
        star.until(lambda: len(star.lead.links) == 1)
    assert star.lead.connected == {1}


def test_a_proof_heard_on_one_connection_is_worth_nothing_on_another(star: Star) -> None:
    with socket.create_connection(star.place) as replay:
        message = {"kind": "node", "rank": 1, "nonce": "00", "proof": control.proof(KEY, "node", "stale", "00", 1)}
        replay.sendall(encode(message))
        star.until(lambda: star.lead.links)
        star.until(lambda: not star.lead.links)
    assert star.heard[0] == []


def test_a_lost_node_is_reported_and_may_come_again(star: Star) -> None:
    node = star.node(1)
    star.until(lambda: node.connected)
    node.links[0].socket.shutdown(socket.SHUT_RDWR)
    star.until(lambda: "lost" in star.kinds(0))
    star.until(lambda: star.kinds(0)[-1] == "joined")


def test_a_silent_connection_is_given_up(star: Star, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "SILENCE", 0.2)
    with socket.create_connection(star.place):
        star.until(lambda: star.lead.links)
        star.until(lambda: not star.lead.links)
