"""Run control: proved links, orders that reach all, strangers that reach nothing. Real sockets on the loopback."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import selectors
import socket
import struct
import time
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.control import heartbeats, leader
from clusterddp.remote.control.connection import Secret
from clusterddp.remote.control.contact import NEVER
from clusterddp.remote.control.control_events import Event, Lost, MemberJoined, MessageReceived
from clusterddp.remote.control.leader import Control
from clusterddp.remote.control.messages import EndOrder, Message
from clusterddp.remote.system.clock import boot_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = b"k" * 32
STOP = EndOrder("by hand", 3.0, ours=False)


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


class Star:
    """The nodes of a run on one selector, so that a test's turns drive all of them."""

    def __init__(self, count: int) -> None:
        self.selector = selectors.DefaultSelector()
        self.listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        self.addresses = [listener.getsockname() for listener in self.listeners]
        self.heard: dict[int, list[Event]] = {}
        self.nodes: dict[int, Control] = {}

    @property
    def lead(self) -> Control:
        return self.nodes[0]

    def node(self, member: int, key: bytes = KEY, run: str = "run") -> Control:
        self.heard[member] = []
        secret = Secret(key, run, member)
        self.nodes[member] = Control(secret, self.selector, self.heard[member].append, self.listeners[member])
        self.nodes[member].begin(self.addresses)
        return self.nodes[member]

    def until(self, ready: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not ready():
            assert time.monotonic() < deadline, self.heard
            self.turn()

    def turn(self) -> None:
        for each in list(self.nodes.values()):
            each.turn()
        for key, _ in self.selector.select(0.05):
            key.data()

    def said(self, member: int) -> list[Message]:
        """What this node has heard."""
        return [event.message for event in self.heard[member] if isinstance(event, MessageReceived)]

    def loses(self, member: int) -> None:
        """A node is gone: its connections end, nobody listens there."""
        self.nodes.pop(member).close(0)

    def close(self) -> None:
        for each in self.nodes.values():
            each.close(0)
        for listener in self.listeners:
            listener.close()
        self.selector.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LEADER_TIMEOUT": 0.3, "RETRY_INTERVAL": 0.05, "ASK_INTERVAL": 0.1}.items():
        monkeypatch.setattr(leader, name, value)
    for name, value in {"HEARTBEAT_INTERVAL": 0.1, "UNANSWERED_INTERVAL": 0.05}.items():
        monkeypatch.setattr(heartbeats, name, value)


@pytest.fixture
def stars() -> Iterator[Callable[[int], Star]]:
    """Makes stars of so many members, whose nodes the test brings up."""
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
    first.send(STOP)
    star.until(lambda: MessageReceived(1, STOP) in star.heard[0])
    star.lead.send(STOP)
    star.until(lambda: star.said(1) and star.said(2))


def test_what_is_told_to_one_member_reaches_no_other(star: Star) -> None:
    star.node(1)
    star.node(2)
    star.until(lambda: star.lead.connected == {1, 2})
    star.lead.send(STOP, to=(1,))
    star.lead.send(STOP._replace(reason="to all"))
    star.until(lambda: star.said(1) and star.said(2))
    assert [message for message in star.said(2) if isinstance(message, EndOrder)] == [STOP._replace(reason="to all")]


def test_the_next_in_order_leads_when_the_lead_is_lost_and_a_majority_is_left(stars: Callable[[int], Star]) -> None:
    star = stars(4)
    for member in range(4):
        star.node(member)
    star.until(lambda: star.lead.connected == {1, 2, 3})
    star.loses(0)
    star.until(lambda: star.nodes[1].connected == {2, 3})
    star.until(lambda: all(node.settled for node in star.nodes.values()))
    assert [node.leading for node in star.nodes.values()] == [True, False, False]
    star.nodes[3].send(STOP)
    star.until(lambda: star.said(1))


def test_without_a_majority_nobody_is_settled_but_orders_still_reach_whom_they_can(
    stars: Callable[[int], Star],
) -> None:
    star = stars(5)
    for member in (3, 4):
        star.node(member)
    star.until(lambda: star.nodes[3].connected == {4})
    star.until(lambda: not star.nodes[4].leader_has_majority)
    assert [(node.leading, node.settled) for node in star.nodes.values()] == [(True, False), (False, False)]
    star.nodes[4].send(STOP)
    star.until(lambda: star.said(3))


def test_who_followed_a_lead_without_a_majority_tells_the_next_one_of_no_contact_there(
    stars: Callable[[int], Star],
) -> None:
    star = stars(5)
    lead, other = star.node(0), star.node(1)
    star.until(lambda: other.connected and other.links[0].echoes.proved > NEVER)
    assert not lead.majority
    star.loses(0)
    star.until(lambda: not other.connected)
    assert (other.contact.left, other.contact.elsewhere) == (NEVER, NEVER)


def test_who_followed_a_lead_with_a_majority_tells_the_next_one_when_it_heard_of_it(star: Star) -> None:
    other = star.node(1)
    star.until(lambda: other.contact.proved > NEVER)
    star.loses(0)
    star.until(lambda: not other.connected)
    assert other.contact.proved <= other.contact.left == other.contact.elsewhere


@pytest.mark.parametrize("by_majority", [True, False])
def test_a_host_that_joins_makes_no_majority_and_joins_only_one_where_others_may_relaunch(
    stars: Callable[[int], Star], *, by_majority: bool
) -> None:
    star = stars(4)
    everyone, star.addresses = star.addresses, star.addresses[:3]
    alone = star.node(0)  # the other two are out of reach
    alone.joins_by_majority = by_majority
    star.addresses = everyone
    newcomer = star.node(3)
    if by_majority:
        star.until(lambda: newcomer.leader != 0)  # it looks for another one
        assert alone.connected == set()
        star.addresses = everyone[:3]
        star.node(1)
    star.until(lambda: newcomer.connected and 3 in alone.connected)
    assert alone.majority == by_majority
    counted = alone.heartbeats.counted_at
    star.until(lambda: alone.heartbeats.counted_at > counted)
    assert (alone.contact.proved > NEVER) == by_majority


def test_a_host_that_joins_is_not_taken_for_the_successor_of_a_lost_leader(
    stars: Callable[[int], Star], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "SUCCESSION_TIME", 0.5)
    star = stars(3)
    everyone, star.addresses = star.addresses, star.addresses[:2]
    alone = star.node(0)
    alone.lost_leader, alone.lost_at = 1, boot_clock()  # who joins would be the next in order
    star.addresses = everyone
    newcomer = star.node(2)
    star.until(lambda: newcomer.connected)
    assert alone.leading


def test_two_parts_of_a_run_come_together_again_under_one_lead(stars: Callable[[int], Star]) -> None:
    star = stars(4)
    for member in (2, 3):
        star.node(member)
    star.until(lambda: star.nodes[2].connected == {3})
    for member in (0, 1):
        star.node(member)
    star.until(lambda: star.nodes[0].connected == {1, 2, 3})
    star.until(lambda: all(node.settled for node in star.nodes.values()))
    assert [member for member, node in star.nodes.items() if node.leading] == [0]


def test_a_lead_that_comes_again_follows_the_one_that_has_the_majority(stars: Callable[[int], Star]) -> None:
    star = stars(3)
    for member in (1, 2):
        star.node(member)
    star.until(lambda: star.nodes[1].connected == {2} and star.nodes[1].settled)
    star.node(0)
    star.until(lambda: star.nodes[1].connected == {0, 2})
    star.until(lambda: [member for member, node in star.nodes.items() if node.leading] == [1])


def test_since_when_a_node_is_alone_counts_from_the_last_word_it_heard(star: Star) -> None:
    star.node(1)
    star.node(2)
    star.until(lambda: star.lead.connected == {1, 2})
    before = time.monotonic()
    star.loses(1)
    star.loses(2)
    star.until(lambda: not star.lead.settled)
    star.until(lambda: time.monotonic() > before + 0.3)
    assert star.lead.last_contact < before + 0.2


@pytest.mark.parametrize(("key", "run"), [(b"another key", "run"), (KEY, "another run")])
def test_a_node_with_another_key_or_of_another_run_is_never_heard(star: Star, key: bytes, run: str) -> None:
    stranger = star.node(1, key, run)
    star.until(lambda: stranger.called_at and not stranger.links)  # the lead has dropped it
    assert not star.lead.connected
    assert star.heard[0] == star.heard[1] == []


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n" + b"\xff" * 64,
        struct.pack(">I", 60_000) + b"[" * 60_000,
        framed(b"[" * 500),
        framed(
            b'{"kind":"Call","caller":Infinity,"called":0,"nonce":"' + b"0" * 32 + b'","proof":"' + b"0" * 64 + b'"}'
        ),
        framed(b'{"kind":"Call","caller":1e999,"called":0,"nonce":"","proof":""}'),
        framed(b'{"kind":"EndOrder","reason":"mischief","grace":0.0,"ours":false,"attempt":null}'),
        framed(b'{"kind":"Heartbeat","majority":true}'),
        framed(b"\xff\xfe"),
        framed(b'{"kind":' + b"9" * 400 + b"}"),
    ],
    ids=range(9),
)
def test_whatever_a_stranger_sends_ends_its_own_connection_alone(star: Star, noise: bytes) -> None:
    star.node(1)
    star.until(lambda: star.lead.connected == {1})
    with socket.create_connection(star.addresses[0]) as stranger:
        stranger.sendall(noise)
        star.until(lambda: len(star.lead.links) == 2)
        star.until(lambda: len(star.lead.links) == 1)
    assert star.lead.connected == {1}
    assert star.said(0) == []


def test_a_member_that_sends_what_is_no_message_ends_its_own_connection_alone(star: Star) -> None:
    star.node(1)
    star.node(2)
    star.until(lambda: star.lead.connected == {1, 2})
    (link,) = star.nodes[2].links
    link.unsent += b"\0\0\0\2{}" + b"\0" * 32
    star.until(lambda: 2 in [event.member for event in star.heard[0] if isinstance(event, Lost)])
    star.until(lambda: star.lead.connected == {1, 2})  # it calls again
    assert Lost not in [type(event) for event in star.heard[1]]


def test_a_mistake_of_ours_over_a_message_costs_its_connection_and_is_raised(
    star: Star, monkeypatch: pytest.MonkeyPatch
) -> None:
    star.node(1)
    star.until(lambda: MemberJoined(1) in star.heard[0])

    def mistaken(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(star.lead, "_handle", mistaken)
    with pytest.raises(KeyError, match="ours"):
        star.until(lambda: False)
    assert star.heard[0][-1] == Lost(1, star.heard[0][-1].received_at)  # type: ignore[union-attr]
    monkeypatch.undo()
    star.until(lambda: star.heard[0][-1] == MemberJoined(1))


def test_many_that_send_a_byte_a_second_do_not_keep_a_node_out(star: Star, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "CONNECT_TIMEOUT", 600.0)  # none of them leaves by itself
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(star.addresses[0])) for _ in range(64)]
        for each in slow:
            each.sendall(b"\0")
        star.until(lambda: len(star.lead.links) == leader.MAX_UNPROVEN_OF_ADDRESS)
        star.node(1)
        star.until(lambda: star.lead.connected == {1})


def test_strangers_have_one_deadline_however_often_they_send(star: Star, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "CONNECT_TIMEOUT", 0.5)
    with socket.create_connection(star.addresses[0]) as slow:
        star.until(lambda: star.lead.links)

        def drip() -> bool:
            with contextlib.suppress(OSError):
                slow.send(b"\0")
            return not star.lead.links

        star.until(drip)


def test_strangers_of_many_addresses_give_way_oldest_first(star: Star, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "MAX_UNPROVEN", 4)
    with contextlib.ExitStack() as stack:
        for member in range(20):
            source = (f"127.0.2.{member + 1}", 0)
            stack.enter_context(socket.create_connection(star.addresses[0], source_address=source))
        star.until(lambda: star.lead.links and star.lead.links[-1].address == "127.0.2.20")
        assert [link.address for link in star.lead.links] == [f"127.0.2.{number}" for number in range(14, 21)]
    star.node(1)
    star.until(lambda: star.lead.connected == {1})


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """This process can open nothing: the limit is the lowest number that is free, wherever gaps are below others."""
    gc.collect()  # else what it finds later gives a descriptor back
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.alone  # the limit is the whole process's, so others must not open or close files meanwhile
def test_without_a_descriptor_left_nobody_is_lost_and_who_calls_comes_later(
    star: Star, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who is lost here is lost for want of a descriptor, not of a core.
    for name in ("SILENCE_TIMEOUT", "SILENCE_TIMEOUT_TCP"):
        monkeypatch.setattr(leader, name, 60.0)
    star.node(1)
    star.until(lambda: star.lead.connected == {1})
    with contextlib.ExitStack() as waiting:
        for _ in range(8):  # more than connections of our own that may end meanwhile, and give theirs back
            waiting.enter_context(socket.create_connection(star.addresses[0]))
        with no_descriptor_left():
            star.until(lambda: not star.lead.listening)
    star.node(2)
    star.until(lambda: star.lead.connected == {1, 2})
    assert not [event for event in star.heard[0] if isinstance(event, Lost)]


def test_a_lost_node_is_reported_and_may_come_again(star: Star) -> None:
    node = star.node(1)
    star.until(lambda: node.connected)
    node.links[0].socket.shutdown(socket.SHUT_RDWR)
    star.until(lambda: Lost in [type(event) for event in star.heard[0]])
    star.until(lambda: star.heard[0][-1] == MemberJoined(1))


def test_a_silent_connection_is_given_up(star: Star, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "CONNECT_TIMEOUT", 0.2)
    with socket.create_connection(star.addresses[0]):
        star.until(lambda: star.lead.links)
        star.until(lambda: not star.lead.links)
