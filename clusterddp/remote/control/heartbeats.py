"""Send a follower's heartbeats to its leader, over TCP and UDP, and a leader's answers the same way."""

import selectors
import socket
from typing import Callable, List, Optional

from ..system.clock import boot_clock
from .connection import Address, PeerConnection
from .contact import NEVER, Contact, age
from .datagrams import Datagrams
from .messages import Heartbeat

BEAT = 0.5  # seconds between heartbeats
HURRY = 0.2  # seconds between datagrams while none is answered
AT_ONCE = 3  # heartbeats of a new connection sent without a pause: after them both sides know that they are in contact
COUNT = 0.05  # seconds between two counts of the nodes in contact


class Heartbeats:
    """The heartbeats of one node; ``contact`` is the proved contact with a majority.

    Run control changes the list ``links``, the node's connections, and ``addresses``, of all nodes by member index.
    """

    def __init__(
        self,
        links: List[PeerConnection],
        send: Callable[[PeerConnection, Heartbeat], None],
        selector: selectors.BaseSelector,
        listener: Optional[socket.socket],
    ) -> None:
        self.links, self.send, self.selector = links, send, selector
        self.addresses: List[Address] = []
        self.contact = Contact()
        self.majority = False  # the flag in our answers
        self.counted = 0.0
        self.datagrams = Datagrams(listener) if listener else None
        if self.datagrams and self.datagrams.socket:
            selector.register(self.datagrams.socket, selectors.EVENT_READ, self._receive)

    def turn(self, now: float, leader: Optional[PeerConnection], *, settled: bool) -> None:
        """Send a heartbeat if one is due; where no node leads us, count the nodes in contact."""
        if leader:
            self._send_if_due(leader, now, settled=settled)
        elif now - self.counted >= COUNT:
            self._count(now)
        self.majority = settled

    def process(self, link: PeerConnection, beat: Heartbeat) -> None:
        """Process a heartbeat that came over TCP."""
        answer = self._take(link, beat)
        if answer:
            self.send(link, answer)

    def close(self) -> None:
        """Close the UDP socket."""
        if self.datagrams and self.datagrams.socket:
            self.selector.unregister(self.datagrams.socket)
            self.datagrams.close()

    def _send_if_due(self, leader: PeerConnection, now: float, *, settled: bool) -> None:
        """Send a heartbeat to our leader if one is due; more often while none is answered."""
        if now - leader.sent_at < (BEAT if now - self.contact.proved < 2 * BEAT else HURRY):
            return
        leader.sent_at = now
        heartbeat = Heartbeat(settled, leader.echoes.send(now), leader.echoes.theirs, age(now, self.contact.left))
        self._send_datagram(leader, heartbeat)
        if now - leader.sent_tcp_at >= BEAT:
            leader.sent_tcp_at = now
            self.send(leader, heartbeat)

    def _count(self, now: float) -> None:
        """Update our contact with a majority from the connections; called while no node leads us."""
        proved = [link.echoes.proved for link in self.links if link.member is not None]
        self.contact.count_majority(proved, len(self.addresses), now)
        self.counted = now

    def _take(self, link: PeerConnection, heartbeat: Heartbeat) -> Optional[Heartbeat]:
        """Process a follower's heartbeat and return the answer, or process an answer of our leader."""
        now = boot_clock()
        new = link.echoes.take(heartbeat.number, heartbeat.echo)
        if link.target is None:
            self.contact.note_elsewhere(now, heartbeat.age)
            if now - self.contact.proved > 2 * BEAT:  # this heartbeat may prove it again
                self._count(now)
            return Heartbeat(self.majority, link.echoes.send(now), link.echoes.theirs, age(now, self.contact.proved))
        if new and heartbeat.majority:
            self.contact.follow(link.echoes.proved, heartbeat.age)
        if new and link.echoes.number < AT_ONCE:
            link.sent_at = link.sent_tcp_at = NEVER
        return None

    def _send_datagram(self, link: PeerConnection, heartbeat: Heartbeat) -> None:
        if self.datagrams and link.member is not None and link.member < len(self.addresses):
            self.datagrams.send(link, heartbeat, self.addresses[link.member])

    def _receive(self) -> None:
        known = {link.member: link for link in self.links if link.member is not None}
        for link, beat in self.datagrams.receive(known.get) if self.datagrams else ():
            link.datagrams = True
            if beat.number <= link.echoes.theirs:  # repeated, or overtaken
                continue
            link.received_at = boot_clock()
            answer = self._take(link, beat)
            if answer:
                self._send_datagram(link, answer)
