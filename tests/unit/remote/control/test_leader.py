"""Run control: proved links, orders that reach all, strangers that reach nothing. Real sockets on the loopback."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.control import connection, leader
from clusterddp.remote.control.leader import Control
from clusterddp.remote.shared.frames import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = b"k" * 32


class Star:
    """The nodes of a run on one selector, so that a test's turns drive all of them."""

    def __init__(self, count: int) -> None:
        self.selector = selectors.DefaultSelector()
        self.listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        self.addresses = [listener.getsockname() for listener in self.listeners]
        self.heard: dict[int, list[dict[str, Any]]] = {}
        self.nodes: dict[int, Control] = {}

    @property
    def lead(self) -> Control:
        return self.nodes[0]

    def node(self, place: int, key: bytes = KEY) -> Control:
        self.heard[place] = []
        self.nodes[place] = Control(place, key, self.selector, self.heard[place].append, self.listeners[place])
        self.nodes[place].begin(self.addresses)
        return self.nodes[place]

    def until(self, ready: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not ready():
            assert time.monotonic() < deadline, self.heard
            for each in list(self.nodes.values()):
                each.turn()
            for key, _ in self.selector.select(0.05):
                key.data()

    def kinds(self, place: int) -> list[str]:
        return [message["kind"] for message in self.heard[place]]

    def loses(self, place: int) -> None:
        """A node is gone: its connections end, nobody listens there."""
        self.nodes.pop(place).close(0)

    def close(self) -> None:
        for each in self.nodes.values():
            each.close(0)
        for listener in self.listeners:
            listener.close()
        self.selector.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BEAT": 0.1, "PATIENCE": 0.3, "RETRY": 0.05}.items():
        monkeypatch.setattr(leader, name, value)


@pytest.fixture
def stars() -> Iterator[Callable[[int], Star]]:
    """Makes stars of so many places, whose nodes the test brings up."""
    with contextlib.ExitStack() as stack:

        def make(count: int) -> Star:
            made = Star(count)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def star(stars: Callable[[int], Star]) -> Star:
    made = stars(3)
    made.node(0)
    return made


def test_a_stop_said_by_one_node_reaches_the_lead_and_by_it_the_others(star: Star) -> None:
    first, _ = star.node(1), star.node(2)
    star.until(lambda: star.lead.connected == {1, 2})
    star.until(lambda: first.connected)
    first.say("stop", reason="by hand", grace=3.0)
    star.until(lambda: "stop" in star.kinds(0))
    order = next(message for message in star.heard[0] if message["kind"] == "stop")
    assert order == {"kind": "stop", "reason": "by hand", "grace": 3.0, "place": 1}
    star.lead.say("stop", reason="by hand", grace=3.0)
    star.until(lambda: "stop" in star.kinds(1) and "stop" in star.kinds(2))


def test_what_is_said_before_the_lead_is_reached_is_said_when_it_is(star: Star) -> None:
    node = star.node(1)
    node.say("failed", reason="x")
    star.until(lambda: "failed" in star.kinds(0))


def test_the_next_in_order_leads_when_the_lead_is_lost_and_a_majority_is_left(stars: Callable[[int], Star]) -> None:
    star = stars(4)
    for place in range(4):
        star.node(place)
    star.until(lambda: star.lead.connected == {1, 2, 3})
    star.loses(0)
    star.until(lambda: star.nodes[1].connected == {2, 3})
    star.until(lambda: all(node.settled for node in star.nodes.values()))
    assert [node.leading for node in star.nodes.values()] == [True, False, False]
    star.nodes[3].say("stop", reason="x", grace=0.0)
    star.until(lambda: "stop" in star.kinds(1))


def test_without_a_majority_nobody_is_settled_but_orders_still_reach_whom_they_can(
    stars: Callable[[int], Star],
) -> None:
    star = stars(5)
    for place in (3, 4):
        star.node(place)
    star.until(lambda: star.nodes[3].connected == {4})
    star.until(lambda: not star.nodes[4].lead_has_majority)
    assert [(node.leading, node.settled) for node in star.nodes.values()] == [(True, False), (False, False)]
    star.nodes[4].say("stop", reason="x", grace=0.0)
    star.until(lambda: "stop" in star.kinds(3))


def test_two_parts_of_a_run_come_together_again_under_one_lead(stars: Callable[[int], Star]) -> None:
    star = stars(4)
    for place in (2, 3):
        star.node(place)
    star.until(lambda: star.nodes[2].connected == {3})
    for place in (0, 1):
        star.node(place)
    star.until(lambda: star.nodes[0].connected == {1, 2, 3})
    star.until(lambda: all(node.settled for node in star.nodes.values()))
    assert [place for place, node in star.nodes.items() if node.leading] == [0]


def test_a_lead_that_comes_again_follows_the_one_that_has_the_majority(stars: Callable[[int], Star]) -> None:
    star = stars(3)
    for place in (1, 2):
        star.node(place)
    star.until(lambda: star.nodes[1].connected == {2} and star.nodes[1].settled)
    star.node(0)
    star.until(lambda: star.nodes[1].connected == {0, 2})
    star.until(lambda: [place for place, node in star.nodes.items() if node.leading] == [1])


def test_since_when_a_node_is_alone_counts_from_the_last_word_it_heard(star: Star) -> None:
    star.node(1)
    star.node(2)
    star.until(lambda: star.lead.connected == {1, 2})
    before = time.monotonic()
    star.loses(1)
    star.loses(2)
    star.until(lambda: not star.lead.settled)
    star.until(lambda: time.monotonic() > before + 0.3)
    assert star.lead.unsettled < before + 0.2


def test_a_node_with_another_key_is_never_heard(star: Star) -> None:
    stranger = star.node(1, b"another key")
    stranger.say("stop", reason="mischief", grace=0.0)
    star.until(lambda: stranger.called and not stranger.links)  # the lead has dropped it
    assert not star.lead.connected
    assert star.heard[0] == []


def test_a_lead_with_another_key_is_not_obeyed(star: Star) -> None:
    star.lead.key = b"not ours"
    node = star.node(1)
    star.until(lambda: node.called and not node.links)
    assert star.heard[1] == []


def test_bytes_that_are_no_frames_only_end_their_own_connection(star: Star) -> None:
    star.node(1)
    star.until(lambda: star.lead.connected == {1})
    with socket.create_connection(star.addresses[0]) as noise:
        noise.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\xff" * 64)
        star.until(lambda: len(star.lead.links) == 1)
    assert star.lead.connected == {1}


def test_a_proof_heard_on_one_connection_is_worth_nothing_on_another(star: Star) -> None:
    with socket.create_connection(star.addresses[0]) as replay:
        message = {"kind": "node", "place": 1, "nonce": "00", "proof": connection.proof(KEY, "node", "stale", "00", 1)}
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
    monkeypatch.setattr(leader, "DIAL_LIMIT", 0.2)
    with socket.create_connection(star.addresses[0]):
        star.until(lambda: star.lead.links)
        star.until(lambda: not star.lead.links)
