"""Run control: connect the supervisors of one run in a star around their leader.

A node's member index (``member``) is its number in the run's first plan, spares last; it never changes. The first node
leads. When it is lost, the next in order leads if it reaches a majority of the nodes. A leader that reaches fewer
continues to lead those it reaches (an order to stop needs no majority) and looks for the others. Of two such leaders
the one that comes first in that order leads both. A leader asks each node that it misses whether its part has ended for
good.

Whatever a peer sends, before the proof or after it, ends its own connection at most. An unproven connection has one
deadline for its whole proof; where there are too many the oldest is dropped, first those of the same address.
"""

import selectors
import socket
import time
from typing import Callable, Collection, List, Optional, Sequence, Set

from ..shared.schema.fields import DamagedError
from ..system.clock import boot_clock
from .connection import Address, Frame, PeerConnection, ProtocolError, Secret
from .control_events import Event, Lost, MemberJoined, MessageReceived, NodeDone
from .heartbeats import Heartbeats
from .messages import (
    FROM_LEADER,
    TO_LEADER,
    Accept,
    AttemptDecision,
    Call,
    EndOrder,
    Heartbeat,
    Hello,
    Message,
    PartEnded,
    Redirect,
)  # fmt: skip

SILENCE_TIMEOUT = 2.5  # seconds without a message after which a connection is dropped
SILENCE_TIMEOUT_TCP = 5.0  # the same where no datagram gets through: a lost segment delays those behind it
CONTACT_VALID = 3.0  # seconds after the last contact with a majority in which a leader may make decisions
ASK_INTERVAL = 1.0  # seconds between questions to the nodes that a leader misses
RETRY_INTERVAL = 0.5  # seconds between attempts to connect
LEADER_TIMEOUT = 1.0  # seconds without a leader, or without a majority, after which other nodes are called
SUCCESSION_TIME = 4.0  # seconds after the loss of a leader in which its followers take the next in order for it
CONNECT_TIMEOUT = 2.0  # seconds for a connection and its proofs
MAX_UNPROVEN = 64  # unproven connections allowed, plus one for each node
MAX_UNPROVEN_OF_ADDRESS = 16  # unproven connections from one address
MAX_ACCEPTED = 64  # connections accepted in one turn of the loop
NO_DESCRIPTORS_PAUSE = 1.0  # seconds without listening when no file descriptor is left for another connection


class Control:
    """The connections of one supervisor to its leader or its followers.

    In ``selector``, the data of each key is its callback. ``handle`` is called with each event, and must not raise.
    ``listener`` is None where there is only one node.
    """

    def __init__(
        self,
        secret: Secret,
        selector: selectors.BaseSelector,
        handle: Callable[[Event], None],
        listener: Optional[socket.socket] = None,
    ) -> None:
        self.member, self.secret, self.selector, self.handle = secret.member, secret, selector, handle
        self.listener, self.listening, self.closed = listener, False, False
        self.addresses: List[Address] = []
        self.leader = 0
        self.links: List[PeerConnection] = []
        self.called_at = 0.0  # when we last tried to connect
        self.last_called = secret.member  # the member index called last when we looked for other nodes
        # ``searching_since``: when the present search for a leader began; ``began``: when all addresses were known.
        self.searching_since = self.began = boot_clock()
        self.lost_leader: Optional[int] = None  # while a lost leader's successor is looked for: its member index
        self.lost_at = 0.0
        self.heartbeats = Heartbeats(self.links, self._send_frame, selector, listener)
        self.contact = self.heartbeats.contact
        self.to_ask: Set[int] = set()  # member indexes to ask whether their part has ended
        self.leader_has_majority = True
        self.joins_by_majority = False  # whether a host joins only a majority: other nodes may relaunch without us
        self.keeps_lead = False  # leads on without a majority: it has the verdict that a majority confirmed
        self.listen_at = 0.0  # when to listen again
        self._listen()

    def begin(self, addresses: Sequence[Address]) -> None:
        """Take the addresses of all nodes, by member index; from now on ``turn`` calls the leader."""
        self.addresses = self.heartbeats.addresses = list(addresses)
        self.searching_since = self.began = boot_clock()

    @property
    def leading(self) -> bool:
        """Whether this node leads, with or without a majority."""
        return self._upstream() is None and self.leader == self.member

    @property
    def connected(self) -> Set[int]:
        """The member indexes of the connected nodes."""
        return {link.member for link in self.links if link.member is not None}

    @property
    def majority(self) -> bool:
        """Whether this node and the connected ones are more than half of the run's nodes."""
        if self.listener is None:  # there is no other node
            return True
        connected = sum(member < len(self.addresses) for member in self.connected)  # a host that joins counts later
        return bool(self.addresses) and 2 * (connected + 1) > len(self.addresses)

    @property
    def settled(self) -> bool:
        """Whether there is a leader with a majority, as far as this node knows."""
        return self.leader_has_majority if self._upstream() else self.leader == self.member and self.majority

    @property
    def last_contact(self) -> float:
        """When this node was last certainly in contact with a majority; at first, when it began."""
        return boot_clock() if self.listener is None else max(self.contact.proved, self.began)

    @property
    def in_contact(self) -> bool:
        """Whether this node had proved contact with a majority in the last ``CONTACT_VALID`` seconds."""
        return self.listener is None or boot_clock() - self.contact.proved < CONTACT_VALID

    @property
    def slow(self) -> bool:
        """Whether heartbeats go over TCP alone, where lost packets delay them by seconds."""
        return any(not link.datagrams for link in self.links if link.member is not None)

    def send(self, message: Message, to: Optional[Collection[int]] = None) -> None:
        """Send a message to all connected nodes (for a follower: its leader), or only to the member indexes ``to``."""
        frame = Frame(message)
        for link in [link for link in self.links if link.member is not None and (to is None or link.member in to)]:
            self._send_frame(link, frame)

    def turn(self) -> None:
        """Drop silent connections, send heartbeats, call nodes. Called in every turn of the loop."""
        now = boot_clock()
        for link in list(self.links):
            silence = SILENCE_TIMEOUT if link.datagrams else SILENCE_TIMEOUT_TCP
            if (now - link.began > CONNECT_TIMEOUT) if link.member is None else (now - link.received_at > silence):
                was_leader = link is self._upstream()
                self._drop(link)
                if was_leader:  # it has been silent for long: half of LEADER_TIMEOUT is used up
                    self.searching_since = now - LEADER_TIMEOUT / 2
        self.heartbeats.turn(now, self._upstream(), settled=self.settled)
        if not self.listening and now >= self.listen_at:
            self._listen()
        if self.settled:
            self.searching_since, self.lost_leader = now, None
            self._ask(now)
        elif self.addresses and not self.closed and not self._upstream() and not self.keeps_lead:
            self._search(now)

    def close(self, patience: float = 2.0) -> None:
        """Send queued messages for at most ``patience`` seconds, then close all connections."""
        self.closed = True
        deadline = boot_clock() + patience
        while any(link.unsent for link in self.links) and boot_clock() < deadline:
            for link in list(self.links):
                if not link.flush():
                    self._drop(link, quiet=True)
            time.sleep(0.01)
        for link in list(self.links):
            self._drop(link, quiet=True)
        self.heartbeats.close()
        if self.listener:
            self._pause()
            self.listener.close()

    # Who leads

    def _ask(self, now: float) -> None:
        """Ask the next missed node whose address is known whether its part has ended."""
        missed = self.to_ask - {self.member, *self.connected} if self.leader == self.member else set()
        missing = sorted(member for member in missed if member < len(self.addresses))
        if missing and not self._open_calls() and now - self.called_at >= ASK_INTERVAL:
            self._call_next(missing, now, is_question=True)

    def _upstream(self) -> Optional[PeerConnection]:
        """Return the connection to our leader, if there is one."""
        return next((link for link in self.links if link.target is not None and link.member is not None), None)

    def _search(self, now: float) -> None:
        """Call the leader; after ``LEADER_TIMEOUT`` take the next node, or this one, for it.

        As leader, call the missing nodes in turn, without awaiting answers: a host without power gives none.
        """
        is_patient = now - self.searching_since < LEADER_TIMEOUT
        if self.leader != self.member and not is_patient:
            self._follow((self.leader + 1) % len(self.addresses))
        if now - self.called_at < RETRY_INTERVAL:
            return
        if self.leader != self.member:
            if not self._open_calls():
                self._call(self.leader, now)
        elif not is_patient:
            reachable = {self.member, *self.connected, *(link.target for link in self._open_calls())}
            self._call_next([member for member in range(len(self.addresses)) if member not in reachable], now)

    def _is_before_us(self, member: int) -> bool:
        """Whether a node comes before this one in the order in which nodes become leaders.

        It begins behind the lost leader, as ``_search`` does; after ``SUCCESSION_TIME`` with the first node.
        """
        lost = self.lost_leader if boot_clock() - self.lost_at < SUCCESSION_TIME else None
        first, count = 0 if lost is None else lost + 1, max(len(self.addresses), member + 1, self.member + 1)
        return (member - first) % count < (self.member - first) % count

    def _open_calls(self) -> List[PeerConnection]:
        """Return the connections that we opened and that are not proved yet."""
        return [link for link in self.links if link.target is not None and link.member is None]

    def _follow(self, member: int) -> None:
        """Take another node for the leader and drop our unproven calls."""
        self.leader, self.searching_since = member, boot_clock()
        if member == self.member and self.lost_leader is not None:
            self.last_called = self.lost_leader - 1  # called first: it may have got the others back
        for link in self._open_calls():
            self._drop(link)

    def _call_next(self, members: Sequence[int], now: float, *, is_question: bool = False) -> None:
        """Call the next of these member indexes, in turn."""
        if members:
            self.last_called = next((member for member in members if member > self.last_called), members[0])
            self._call(self.last_called, now, is_question=is_question)

    def _call(self, member: int, now: float, *, is_question: bool = False) -> None:
        self.called_at = now
        try:
            self._add(PeerConnection.connect(self.addresses[member], self.secret, member)).is_question = is_question
        except OSError:
            pass  # a later turn tries again

    def _handle_answer(self, link: PeerConnection, message: Message) -> None:
        """Process the answer of a node that we called; it is too late if we lead a majority by now."""
        if (self.settled or self.keeps_lead) and not link.is_question:
            self._drop(link)
        elif isinstance(message, Hello) and not link.their_nonce:
            link.introduce(message)
        elif isinstance(message, PartEnded):
            link.check_ended(message)
            self._part_ended(link, link.target or 0)
        elif link.is_question:
            raise ProtocolError("it was asked, not called")
        elif isinstance(message, Redirect):
            link.check_redirect(message)
            if message.member >= len(self.addresses):
                raise ProtocolError("there is no member %d" % message.member)
            self._drop(link)
            if message.member == self.lost_leader and boot_clock() - self.lost_at < LEADER_TIMEOUT:
                return  # it has not noticed the loss yet, and is called again
            if message.member != self.leader:
                self._follow(message.member)
        elif isinstance(message, Accept):
            link.check_accept(message)
            self._accept_leader(link)
        else:
            raise ProtocolError("unexpected before the proof")

    def _part_ended(self, link: PeerConnection, member: int) -> None:
        self._drop(link)
        self.to_ask.discard(member)
        if member == self.leader and member != self.member:
            self._follow((member + 1) % len(self.addresses))
        self.handle(NodeDone(member))

    def _accept_leader(self, link: PeerConnection) -> None:
        """Follow the node at the other end; end all connections of our own followers."""
        self.contact.leave(self.contact.proved)  # our own contact, if we led
        for follower in [follower for follower in self.links if follower is not link]:
            self._drop(follower)  # it calls again, and is referred to the new leader
        self.leader = link.target or 0
        self.leader_has_majority = True
        self.handle(MemberJoined(self.leader))

    def _handle_call(self, link: PeerConnection, message: Message) -> None:
        """Process a call: lead the caller, or refer it to our leader, which may be the caller itself."""
        if not isinstance(message, Call):  # a node that only asks concludes from this that our part goes on
            raise ProtocolError("unexpected before the proof")
        member = link.check_call(message)
        # A host that joins is the next member; where it may not, it calls again, and other nodes.
        can_join = not self.joins_by_majority or self.majority or self._upstream() is not None
        if self.addresses and member >= len(self.addresses) + can_join:
            raise ProtocolError("there is no member %d" % member)
        for old in [old for old in self.links if old.member == member]:
            self._drop(old)  # the caller has noticed the end of that connection before we did
        if self._upstream() or (not (self.majority or self.keeps_lead) and self._is_before_us(member)):
            if not self._upstream() and self.leader != member < len(self.addresses):
                self._follow(member)
                self.called_at = 0.0  # at once
            link.send_redirect(member, self.leader)
            self._drop(link)
            return
        self.leader = self.member
        link.welcome(member)
        self.handle(MemberJoined(member))

    # Bytes

    def _listen(self) -> None:
        if self.listener and not self.closed:
            self.listener.setblocking(False)
            self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
            self.listening = True

    def _pause(self) -> None:
        """Stop accepting for ``NO_DESCRIPTORS_PAUSE`` seconds; callers wait in the listener's backlog."""
        if self.listening and self.listener:
            self.selector.unregister(self.listener)
        self.listening, self.listen_at = False, boot_clock() + NO_DESCRIPTORS_PAUSE

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                connection, address = (self.listener or socket.socket()).accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:  # no descriptor is left
                self._make_room(0)
                self._pause()
                return
            link = PeerConnection(connection, self.secret, address=str(address[0]))
            self._make_room(MAX_UNPROVEN_OF_ADDRESS - 1, link.address)
            self._make_room(MAX_UNPROVEN + len(self.addresses) - 1)
            if not self._add(link).greet():
                self._drop(link)

    def _make_room(self, limit: int, address: str = "") -> None:
        """Drop the oldest unproven connections (of one address, if given) beyond ``limit``."""
        unproven = [link for link in self.links if link.member is None and link.target is None]
        chosen = [link for link in unproven if not address or link.address == address]
        for link in chosen[: max(0, len(chosen) - limit)]:
            self._drop(link)

    def _add(self, link: PeerConnection) -> PeerConnection:
        self.links.append(link)
        self.selector.register(link.socket, selectors.EVENT_READ, lambda: self._ready(link))
        return link

    def _ready(self, link: PeerConnection) -> None:
        """Read, write and process what a connection is ready for."""
        if link.dropped:
            return
        is_open = link.flush() and link.receive()
        try:
            while not link.dropped:
                message = link.next()
                if message is None:
                    break
                self._handle(link, message)
        except (ProtocolError, DamagedError):
            is_open = False
        except Exception:
            self._drop(link)  # a bug of ours: our own nodes call again, and the loop records the error
            raise
        if not is_open:
            self._drop(link)
        self._update_events(link)

    def _handle(self, link: PeerConnection, message: Message) -> None:
        is_follower = link.target is not None
        if link.member is None:
            (self._handle_answer if is_follower else self._handle_call)(link, message)
        elif isinstance(message, Heartbeat):
            self.heartbeats.process(link, message)
            if is_follower:
                self.leader_has_majority = message.majority
        elif isinstance(message, (EndOrder, AttemptDecision, *(FROM_LEADER if is_follower else TO_LEADER))):
            self.handle(MessageReceived(link.member, message))
        else:
            raise ProtocolError("a %s is not for us" % type(message).__name__)

    def _send_frame(self, link: PeerConnection, frame: Frame) -> None:
        if not link.send_frame(frame):
            self._drop(link)
        self._update_events(link)

    def _update_events(self, link: PeerConnection) -> None:
        """Have the loop watch a connection for reading and, while bytes are queued, for writing."""
        if not link.dropped:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.unsent else 0)
            key = self.selector.get_key(link.socket)
            if key.events != events:
                self.selector.modify(link.socket, events, key.data)

    def _drop(self, link: PeerConnection, *, quiet: bool = False) -> None:
        if link.dropped:
            return
        link.dropped = True
        if link.target is not None and link.member is not None:
            self.contact.leave(link.majority_at)
            self.lost_leader, self.lost_at = link.member, boot_clock()
            self.searching_since = self.lost_at
        self.links.remove(link)
        self.selector.unregister(link.socket)
        link.socket.close()
        if link.refused and link.member is None and link.target == self.leader:  # its supervisor is gone: call the next
            self.called_at = 0.0  # at once
            self._follow((self.leader + 1) % len(self.addresses))
        if link.member is not None and not quiet:
            self.handle(Lost(link.member, link.received_at))
