"""Send a follower's heartbeats to its leader, over TCP and UDP, and a leader's answers the same way."""

import selectors
import socket
from typing import Callable, List, Optional

from ..system.clock import boot_clock
from .connection import Address, Frame, PeerConnection
from .contact import NEVER, Contact, age
from .datagrams import Datagrams
from .messages import Heartbeat

HEARTBEAT_INTERVAL = 0.5  # seconds between heartbeats
UNANSWERED_INTERVAL = 0.2  # seconds between datagrams while none is answered
INITIAL_HEARTBEATS = 3  # sent without a pause on a new connection: then both sides know that they are in contact
COUNT_INTERVAL = 0.05  # seconds between two counts of the nodes in contact


class Heartbeats:
    """The heartbeats of one node; ``contact`` is the proved contact with a majority.

    Run control changes the list ``links``, the node's connections, and ``addresses``, of all nodes by member index.
    ``settled``: whether there is a leader with a majority.
    """

    def __init__(
        self,
        links: List[PeerConnection],
        send: Callable[[PeerConnection, Frame], None],
        selector: selectors.BaseSelector,
        listener: Optional[socket.socket],
    ) -> None:
        self.links, self.send, self.selector = links, send, selector
        self.addresses: List[Address] = []
        self.contact = Contact()
        self.majority = False  # the flag in our answers
        self.counted_at = 0.0
        self.datagrams = Datagrams(listener) if listener else None
        if self.datagrams and self.datagrams.socket:
            selector.register(self.datagrams.socket, selectors.EVENT_READ, self._receive)

    def turn(self, now: float, leader: Optional[PeerConnection], *, settled: bool) -> None:
        """Send a heartbeat to ``leader``, if due; where no node leads us, count the nodes in contact."""
        if leader:
            self._send_if_due(leader, now, settled=settled)
        elif now - self.counted_at >= COUNT_INTERVAL:
            self._count_majority(now)
        self.majority = settled

    def process(self, link: PeerConnection, heartbeat: Heartbeat) -> None:
        """Process a heartbeat that came over TCP."""
        answer = self._process(link, heartbeat)
        if answer:
            self.send(link, Frame(answer))

    def close(self) -> None:
        """Close the UDP socket."""
        if self.datagrams and self.datagrams.socket:
            self.selector.unregister(self.datagrams.socket)
            self.datagrams.close()

    def _send_if_due(self, leader: PeerConnection, now: float, *, settled: bool) -> None:
        """Send a heartbeat to our leader if one is due; more often while none is answered."""
        is_answered = now - self.contact.proved < 2 * HEARTBEAT_INTERVAL
        if now - leader.sent_at < (HEARTBEAT_INTERVAL if is_answered else UNANSWERED_INTERVAL):
            return
        leader.sent_at = now
        echoes = leader.echoes
        heartbeat = Heartbeat(settled, echoes.record_sent(now), echoes.received, age(now, self.contact.left))
        self._send_datagram(leader, heartbeat)
        if now - leader.sent_tcp_at >= HEARTBEAT_INTERVAL:
            leader.sent_tcp_at = now
            self.send(leader, Frame(heartbeat))

    def _count_majority(self, now: float) -> None:
        """Update our contact with a majority from the connections; called while no node leads us."""
        count = len(self.addresses)  # a host that joins counts once its address is known
        members = [link for link in self.links if link.member is not None and link.member < count]
        self.contact.count_majority([link.echoes.proved for link in members], count, now)
        self.counted_at = now

    def _process(self, link: PeerConnection, heartbeat: Heartbeat) -> Optional[Heartbeat]:
        """Process a follower's heartbeat and return the answer, or process an answer of our leader."""
        now, echoes = boot_clock(), link.echoes
        new = echoes.record_received(heartbeat.number, heartbeat.echo)
        if link.target is None:
            self.contact.note_elsewhere(now, heartbeat.age)
            if now - self.contact.proved > 2 * HEARTBEAT_INTERVAL:  # this heartbeat may prove it again
                self._count_majority(now)
            number = echoes.record_sent(now, proves=self.majority)
            return Heartbeat(self.majority, number, echoes.received, age(now, self.contact.proved))
        if new and heartbeat.majority:
            link.majority_at = now
            self.contact.follow(link.echoes.proved, heartbeat.age)
        if new and link.echoes.number < INITIAL_HEARTBEATS:
            link.sent_at = link.sent_tcp_at = NEVER
        return None

    def _send_datagram(self, link: PeerConnection, heartbeat: Heartbeat) -> None:
        if self.datagrams and link.member is not None and link.member < len(self.addresses):
            self.datagrams.send(link, heartbeat, self.addresses[link.member])

    def _receive(self) -> None:
        by_member = {link.member: link for link in self.links if link.member is not None}
        for link, heartbeat in self.datagrams.receive(by_member.get) if self.datagrams else ():
            link.datagrams = True
            if heartbeat.number <= link.echoes.received:  # repeated, or overtaken
                continue
            link.received_at = boot_clock()
            answer = self._process(link, heartbeat)
            if answer:
                self._send_datagram(link, answer)
