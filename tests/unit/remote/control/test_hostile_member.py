"""A node that has the run's key and sends what no node of ours would: that costs its own connection, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.control.connection import PeerConnection, Secret
from clusterddp.remote.control.control_events import Lost, MessageReceived
from clusterddp.remote.control.messages import (
    Accept,
    Ask,
    Call,
    Confirmation,
    Confirmed,
    Hello,
    Message,
    NodeState,
    NodeStatus,
    StatusMessage,
    StatusTable,
    VerdictPart,
)
from tests.unit.remote.control.test_leader import KEY, Star, _quick, star, stars

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

__all__ = ["_quick", "star", "stars"]


class Hostile:
    """A member that is none of our supervisors: it listens or calls, and says what the test wants."""

    def __init__(self, star: Star, member: int) -> None:
        self.star, self.member = star, member
        self.links: list[PeerConnection] = []

    def calls(self, target: int) -> PeerConnection:
        """A connection to a node, on which nothing was said yet."""
        link = PeerConnection.connect(self.star.addresses[target], Secret(KEY, "run", self.member), target)
        self.links.append(link)
        return link

    def is_called(self) -> tuple[PeerConnection, int]:
        """Wait until a node calls or asks this member; the connection, and the member index of who has called."""
        listener = self.star.listeners[self.member]
        listener.setblocking(False)
        accepted: list[socket.socket] = []

        def arrived() -> bool:
            try:
                accepted.append(listener.accept()[0])
            except BlockingIOError:
                return False
            return True

        self.star.until(arrived)
        link = PeerConnection(accepted[0], Secret(KEY, "run", self.member))
        self.links.append(link)
        link.greet()
        call = self.hears(link)
        assert isinstance(call, Call | Ask)
        return link, link.check_call(call)

    def hears(self, link: PeerConnection) -> Message:
        """The next message."""
        heard: list[Message] = []

        def arrived() -> bool:
            link.receive()
            message = link.next()
            heard.extend([message] if message else [])
            return bool(heard)

        self.star.until(arrived)
        return heard[0]

    def ended(self, link: PeerConnection) -> bool:
        """Whether the other side has ended a connection."""
        return not link.receive()

    def close(self) -> None:
        for link in self.links:
            link.socket.close()


@pytest.fixture
def hostile(star: Star) -> Iterator[Hostile]:
    """The last of three members."""
    made = Hostile(star, 2)
    yield made
    made.close()


def test_a_lead_at_no_members_index_is_not_followed(stars: Callable[[int], Star]) -> None:
    star = stars(3)
    hostile = Hostile(star, 2)
    star.node(1).leader = hostile.member
    link, member = hostile.is_called()
    link.send_redirect(member, 99)
    star.until(lambda: hostile.ended(link))
    hostile.close()
    assert star.nodes[1].leader < len(star.addresses)
    star.node(0)
    star.until(lambda: star.lead.connected == {1})


def test_a_member_beyond_the_next_is_not_let_in(star: Star, hostile: Hostile) -> None:
    hostile.member = len(star.addresses) + 1
    link = hostile.calls(0)
    hello = hostile.hears(link)
    assert isinstance(hello, Hello)
    link.introduce(hello)
    star.until(lambda: hostile.ended(link))
    assert star.heard[0] == []


def test_who_is_asked_whether_it_has_ended_does_not_lead_by_its_answer(star: Star, hostile: Hostile) -> None:
    star.node(1)
    star.until(lambda: star.lead.connected == {1})
    star.lead.to_ask.add(hostile.member)
    link, _ = hostile.is_called()
    link.welcome(0)
    star.until(lambda: hostile.ended(link))
    assert star.lead.leading
    assert star.lead.connected == {1}


WORD = NodeStatus(NodeState.RUNNING, 1)


@pytest.mark.parametrize("message", [StatusTable((), 0.0), VerdictPart(0, 1, "{}"), Confirmed(0, 1)])
def test_what_only_a_lead_says_is_not_heard_of_another(star: Star, message: Message) -> None:
    star.node(1)
    star.until(lambda: star.lead.connected == {1} and star.nodes[1].connected == {0})
    star.nodes[1].send(message)
    star.until(lambda: [event for event in star.heard[0] if isinstance(event, Lost)])
    assert star.said(0) == []


@pytest.mark.parametrize("message", [StatusMessage(WORD, 0.0), Confirmation(0, 1), Accept("0" * 64)])
def test_what_only_others_say_is_not_heard_of_a_lead(star: Star, message: Message) -> None:
    star.node(1)
    star.until(lambda: star.lead.connected == {1} and star.nodes[1].connected == {0})
    star.lead.send(message)
    star.until(lambda: [event for event in star.heard[1] if isinstance(event, Lost)])
    assert not [event for event in star.heard[1] if isinstance(event, MessageReceived)]
