"""Run control: the supervisors of one run connected in a star around the one that leads.

A node's place is its number in the run's first plan, spares last; it never changes. The first leads. When it is
lost, the next in order does, if it reaches a majority of the places; one that reaches fewer goes on leading those
it reaches (an order to stop needs no majority) and looks for the others.

Whatever a peer sends, before the proof and after it, ends its own connection at most. Strangers, who have not proved
the key yet, have one deadline for all of it; where there are too many the oldest gives way, first of the same address.

Whom a lead misses it asks whether its part has ended for good.
"""

import selectors
import socket
import time
from typing import Callable, List, Optional, Sequence, Set

from ..shared.schema.fields import DamagedError
from ..system.clock import boot_clock
from .connection import Address, Broken, PeerConnection, Secret
from .control_events import Event, Lost, MemberJoined, NodeDone, Said
from .heartbeats import Beats
from .messages import (
    AttemptDecision,
    Beat,
    Call,
    Elsewhere,
    EndOrder,
    EndSaid,
    Gone,
    Hello,
    Lead,
    Message,
    StatusTable,
    VerdictPart,
    WordSaid,
)  # fmt: skip

FROM_LEAD, TO_LEAD = (StatusTable, VerdictPart), (WordSaid, EndSaid)
SILENCE = 2.5  # seconds without a word after which a connection is given up
SILENCE_TCP = 5.0  # the same where no datagram gets through: a lost segment holds up what follows
HOLD = 3.0  # seconds since the last contact with a majority in which a lead decides anything
ASK = 1.0  # seconds between questions to those a lead misses
RETRY = 0.5  # seconds between attempts to reach somebody
PATIENCE = 1.0  # seconds without a lead, or without a majority, after which others are asked
DIAL_LIMIT = 2.0  # seconds for a connection and its proofs
MOST_STRANGERS = 64  # connections that have not proved the key yet, and one more for each node
MOST_OF_ADDRESS = 16  # of them from one address
ACCEPT = 64  # connections taken in one turn of the loop
NO_DESCRIPTORS = 1.0  # seconds without listening when there is no descriptor left for one more connection


class Control:
    """One supervisor's side of the star.

    Args:
        secret: This node's place, and the run's key.
        selector: The supervisor's loop; callbacks stand in its keys' data.
        handle: Called with each event; raises nothing.
        listener: A listening socket; None where there is only one node.
    """

    def __init__(
        self,
        secret: Secret,
        selector: selectors.BaseSelector,
        handle: Callable[[Event], None],
        listener: Optional[socket.socket] = None,
    ) -> None:
        self.place, self.secret, self.selector, self.handle = secret.place, secret, selector, handle
        self.listener = listener
        self.listening = False
        self.addresses: List[Address] = []
        self.lead = 0
        self.links: List[PeerConnection] = []
        self.called = 0.0  # when we last tried to reach somebody
        self.asked = secret.place  # the place that was tried last when looking for others
        self.since = self.began = boot_clock()  # since when this way to find a lead is tried; when all were known
        self.beats = Beats(self.links, self._send, selector, listener)
        self.contact = self.beats.contact
        self.missed: Set[int] = set()  # places to ask whether their part has ended
        self.lead_has_majority = True
        self.listen_at = 0.0  # when to listen again
        self.closed = False
        self._listen()

    def begin(self, addresses: Sequence[Address]) -> None:
        """The addresses of all places are known: who is not the first calls it."""
        self.addresses = self.beats.addresses = list(addresses)
        self.since = self.began = boot_clock()

    @property
    def leading(self) -> bool:
        """Whether nobody else leads us."""
        return self._upstream() is None and self.lead == self.place

    @property
    def connected(self) -> Set[int]:
        """The places on the other ends."""
        return {link.place for link in self.links if link.place is not None}

    @property
    def majority(self) -> bool:
        """Whether we and who is connected to us are more than half of all."""
        if self.listener is None:  # there is no other node
            return True
        return bool(self.addresses) and 2 * (len(self.connected) + 1) > len(self.addresses)

    @property
    def settled(self) -> bool:
        """Whether there is a lead with a majority, as far as is known here."""
        return self.lead_has_majority if self._upstream() else self.lead == self.place and self.majority

    @property
    def last_contact(self) -> float:
        """When this node was last in contact with a majority, for certain; at first when it began."""
        return boot_clock() if self.listener is None else max(self.contact.proved, self.began)

    @property
    def in_contact(self) -> bool:
        """Whether it is now: what came late, after a stop of ours, proves nothing."""
        return self.listener is None or boot_clock() - self.contact.proved < HOLD

    @property
    def slow(self) -> bool:
        """Whether beats go over TCP alone, where lost packets hold them up for seconds."""
        return any(not link.datagrams for link in self.links if link.place is not None)

    def say(self, message: Message, to: Optional[int] = None) -> None:
        """Send a message to who is connected now (the lead to everyone, the others to the lead), or to one place."""
        for link in [link for link in self.links if link.place is not None]:
            if to is None or link.place == to:
                self._send(link, message)

    def turn(self) -> None:
        """What time asks for: call, beat, give up the silent. Called by every tick of the loop."""
        now = boot_clock()
        for link in list(self.links):
            silence = SILENCE if link.datagrams else SILENCE_TCP
            if (now - link.began > DIAL_LIMIT) if link.place is None else (now - link.heard > silence):
                if link is self._upstream():  # it was silent for long: half the patience is over
                    self.since = now - PATIENCE / 2
                self._drop(link)
        self.beats.turn(now, self._upstream(), settled=self.settled)
        if not self.listening and now >= self.listen_at:
            self._listen()
        if self.settled:
            self.since = now
            self._ask(now)
        elif self.addresses and not self.closed and not self._upstream():
            self._look_around(now)

    def close(self, patience: float = 2.0) -> None:
        """Send what waits, for at most ``patience`` seconds; then end all connections."""
        self.closed = True
        deadline = boot_clock() + patience
        while any(link.unsent for link in self.links) and boot_clock() < deadline:
            for link in list(self.links):
                if not link.flush():
                    self._drop(link, quiet=True)
            time.sleep(0.01)
        for link in list(self.links):
            self._drop(link, quiet=True)
        self.beats.close()
        if self.listener:
            self._pause()
            self.listener.close()

    # Who leads

    def _ask(self, now: float) -> None:
        """Ask one of the missed whose address is known."""
        missed = self.missed - {self.place, *self.connected} if self.lead == self.place else set()
        missing = sorted(place for place in missed if place < len(self.addresses))
        if missing and not self._calls() and now - self.called >= ASK:
            self._call_next(missing, now, asks=True)

    def _upstream(self) -> Optional[PeerConnection]:
        """The connection to our lead."""
        return next((link for link in self.links if link.target is not None and link.place is not None), None)

    def _look_around(self, now: float) -> None:
        """Call the lead; after a while without one be it; without a majority for a while call the missing in turn.

        Who leads waits for no answer before it calls the next: a host without power gives none.
        """
        patient = now - self.since < PATIENCE
        if self.lead != self.place and not patient:
            self._follow((self.lead + 1) % len(self.addresses))
        if now - self.called < RETRY:
            return
        if self.lead != self.place:
            if not self._calls():
                self._call(self.lead, now)
        elif not patient:
            there = {self.place, *self.connected, *(link.target for link in self._calls())}
            self._call_next([place for place in range(len(self.addresses)) if place not in there], now)

    def _calls(self) -> List[PeerConnection]:
        """Our own that are not proved yet."""
        return [link for link in self.links if link.target is not None and link.place is None]

    def _follow(self, place: int) -> None:
        """Take another one for the lead; who was called before and says nothing is waited for no longer."""
        self.lead, self.since = place, boot_clock()
        for link in self._calls():
            self._drop(link)

    def _call_next(self, places: Sequence[int], now: float, *, asks: bool = False) -> None:
        """Call the next of these places, in turn."""
        if places:
            self.asked = next((place for place in places if place > self.asked), places[0])
            self._call(self.asked, now, asks=asks)

    def _call(self, place: int, now: float, *, asks: bool = False) -> None:
        self.called = now
        try:
            link = self._add(PeerConnection.to(self.addresses[place], self.secret, place))
        except OSError:
            return  # tried again by a later turn
        link.asks = asks

    def _answered(self, link: PeerConnection, message: Message) -> None:
        """The answer of whom we called; too late if we lead a majority by now."""
        if self.settled and not link.asks:
            self._drop(link)
        elif isinstance(message, Hello) and not link.theirs:
            link.introduce(message)
        elif isinstance(message, Gone):
            link.check_gone(message)
            self._is_gone(link, link.target or 0)
        elif link.asks:
            raise Broken("it was asked, not called")
        elif isinstance(message, Elsewhere):
            link.check_elsewhere(message)
            if message.place >= len(self.addresses):
                raise Broken("there is no place %d" % message.place)
            self._drop(link)
            if message.place != self.lead:
                self._follow(message.place)
        elif isinstance(message, Lead):
            link.follow(message)
            self._is_led(link)
        else:
            raise Broken("a stranger")

    def _is_gone(self, link: PeerConnection, place: int) -> None:
        self._drop(link)
        self.missed.discard(place)
        if place == self.lead and place != self.place:
            self._follow((place + 1) % len(self.addresses))
        self.handle(NodeDone(place))

    def _is_led(self, link: PeerConnection) -> None:
        self.contact.leave(self.contact.proved)  # of our own, if we led
        for follower in [other for other in self.links if other is not link]:
            self._drop(follower)  # they call again, and are sent on
        self.lead = link.target or 0
        self.lead_has_majority = True
        self.handle(MemberJoined(self.lead))

    def _is_called(self, link: PeerConnection, message: Message) -> None:
        """Somebody calls us: take him in, send him on, or let him lead."""
        if not isinstance(message, Call):  # who asks may know by this that our part goes on
            raise Broken("a stranger")
        place = link.check_call(message)
        if self.addresses and place > len(self.addresses):  # a host that joins is the next one
            raise Broken("there is no place %d" % place)
        for old in [old for old in self.links if old.place == place]:
            self._drop(old)  # it has noticed the end of its connection before we did
        if self._upstream() or (place < self.place and not self.majority):
            if not self._upstream() and place != self.lead:
                self._follow(place)
                self.called = 0.0  # at once
            link.send_elsewhere(place, self.lead)
            self._drop(link)
            return
        self.lead = self.place
        link.welcome(place)
        self.handle(MemberJoined(place))

    # Bytes

    def _listen(self) -> None:
        if self.listener and not self.closed:
            self.listener.setblocking(False)
            self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
            self.listening = True

    def _pause(self) -> None:
        """Do not look at the listener; who calls waits in its backlog."""
        if self.listening and self.listener:
            self.selector.unregister(self.listener)
        self.listening, self.listen_at = False, boot_clock() + NO_DESCRIPTORS

    def _accept(self) -> None:
        for _ in range(ACCEPT):
            try:
                connection, address = (self.listener or socket.socket()).accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:  # no descriptor is left
                self._make_room(0)
                self._pause()
                return
            link = PeerConnection(connection, self.secret, address=str(address[0]))
            self._make_room(MOST_OF_ADDRESS - 1, link.address)
            self._make_room(MOST_STRANGERS + len(self.addresses) - 1)
            if not self._add(link).greet():
                self._drop(link)

    def _make_room(self, most: int, address: str = "") -> None:
        """End the oldest of the strangers (of one address) that are more than ``most``."""
        strangers = [link for link in self.links if link.place is None and link.target is None]
        told = [link for link in strangers if not address or link.address == address]
        for link in told[: max(0, len(told) - most)]:
            self._drop(link)

    def _add(self, link: PeerConnection) -> PeerConnection:
        self.links.append(link)
        self.selector.register(link.socket, selectors.EVENT_READ, lambda: self._ready(link))
        return link

    def _ready(self, link: PeerConnection) -> None:
        """There is something to read, or room for what waits to be sent."""
        if link not in self.links:
            return
        alive = link.flush() and link.receive()
        try:
            while link in self.links:
                message = link.next()
                if message is None:
                    break
                self._take(link, message)
        except (Broken, DamagedError):
            alive = False
        except Exception:
            self._drop(link)  # a mistake of ours: ours call again, and the loop has it on record
            raise
        if not alive:
            self._drop(link)
        self._watch(link)

    def _take(self, link: PeerConnection, message: Message) -> None:
        led = link.target is not None
        if link.place is None:
            (self._answered if led else self._is_called)(link, message)
        elif isinstance(message, Beat):
            self.beats.hear(link, message)
            if led:
                self.lead_has_majority = message.majority
        elif isinstance(message, (EndOrder, AttemptDecision, *(FROM_LEAD if led else TO_LEAD))):
            self.handle(Said(link.place, message))
        else:
            raise Broken("a %s is not for us" % type(message).__name__)

    def _send(self, link: PeerConnection, message: Message) -> None:
        if not link.send(message):
            self._drop(link)
        self._watch(link)

    def _watch(self, link: PeerConnection) -> None:
        """Wake the loop when there is something to read, and while something waits to be sent when there is room."""
        if link in self.links:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.unsent else 0)
            key = self.selector.get_key(link.socket)
            if key.events != wanted:
                self.selector.modify(link.socket, wanted, key.data)

    def _drop(self, link: PeerConnection, *, quiet: bool = False) -> None:
        if link not in self.links:
            return
        if link.target is not None and link.place is not None:
            self.contact.leave(link.heard)
        self.links.remove(link)
        self.selector.unregister(link.socket)
        link.socket.close()
        if link.refused and link.place is None and link.target == self.lead:  # its supervisor is gone: on to the next
            self.called = 0.0  # at once
            self._follow((self.lead + 1) % len(self.addresses))
        if link.place is not None and not quiet:
            self.handle(Lost(link.place, link.heard))
