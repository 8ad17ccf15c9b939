"""Run control: the supervisors of one run connected in a star around the one that leads.

A node's place is its number in the run's first plan, spares last; it never changes. The first leads. When it is
lost, the next in order does, if it reaches a majority of the places; one that reaches fewer goes on leading those
it reaches (an order to stop needs no majority) and looks for the others. Over the connections go:

    beat    majority         both ways, every BEAT seconds
    stop    reason, grace …  both ways: the run is to end; the lead passes it on to all
    …                        whatever else the supervisor says (supervisor/main.py)

Not here: proving the key (control/connection.py), what an order does (supervisor/main.py).
"""

import selectors
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..shared.frames import ProtocolError
from .connection import Link

BEAT = 1.0  # seconds between heartbeats
SILENCE = 6.0  # seconds without a word after which a connection is given up
RETRY = 0.5  # seconds between attempts to reach somebody
PATIENCE = 2.5  # seconds without a lead, or without a majority, after which others are asked
DIAL_LIMIT = 2.0  # seconds for a connection and its proofs
MOST_STRANGERS = 64  # connections that have not proved the key yet

Handler = Callable[[Dict[str, Any]], None]
Address = Tuple[str, int]


class Control:
    """One supervisor's side of the star.

    Args:
        place: This node's.
        key: The run's.
        selector: The supervisor's loop; callbacks stand in its keys' data.
        handle: Called with each message but ``beat``, with the sender's ``place`` in it; and with the kinds
            ``joined`` and ``lost`` when a link has proved itself or ends (``heard``: when it was last heard,
            by the monotonic clock).
        listener: A listening socket; None where there is only one node.
    """

    def __init__(
        self,
        place: int,
        key: bytes,
        selector: selectors.BaseSelector,
        handle: Handler,
        listener: Optional[socket.socket] = None,
    ) -> None:
        self.place, self.key, self.selector, self.handle = place, key, selector, handle
        self.listener = listener
        self.addresses: List[Address] = []
        self.lead = 0
        self.links: List[Link] = []
        self.call: Optional[Link] = None  # our own, being proved
        self.called = 0.0  # when we last tried to reach somebody
        self.asked = place  # the place that was tried last when looking for others
        self.since = time.monotonic()  # since when this way to find a lead is tried
        self.unsettled = self.since  # since when there was no lead with a majority
        self.lead_has_majority = True
        self.waiting: List[Dict[str, Any]] = []  # said before a lead was reached
        self.closed = False
        if listener:
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ, self._accept)

    def begin(self, addresses: Sequence[Address]) -> None:
        """The addresses of all places are known: who is not the first calls it."""
        self.addresses = list(addresses)
        self.since = self.unsettled = time.monotonic()

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

    def say(self, kind: str, **fields: Any) -> None:
        """Send a message: the lead to everyone, the others to the lead, now or when there is one."""
        message = dict(fields, kind=kind)
        proved = [link for link in self.links if link.place is not None]
        if not proved and self.lead != self.place:
            self.waiting.append(message)
        for link in proved:
            self._send(link, message)

    def turn(self) -> None:
        """What time asks for: call, beat, give up the silent. Called by every tick of the loop."""
        now = time.monotonic()
        for link in list(self.links):
            if now - link.heard > (SILENCE if link.place is not None else DIAL_LIMIT):
                self._drop(link)
            elif link.place is not None and now - link.beat > BEAT:
                link.beat = now
                self._send(link, {"kind": "beat", "majority": self.settled})
        if self.settled:
            self.since = self.unsettled = now
        elif self.addresses and not self.closed and not self._upstream():
            self._look_around(now)

    def close(self, patience: float = 2.0) -> None:
        """Send what waits, for at most ``patience`` seconds; then end all connections."""
        self.closed = True
        deadline = time.monotonic() + patience
        while any(link.unsent for link in self.links) and time.monotonic() < deadline:
            for link in list(self.links):
                if not link.flush():
                    self._drop(link, quiet=True)
            time.sleep(0.01)
        for link in list(self.links):
            self._drop(link, quiet=True)
        if self.listener:
            self.selector.unregister(self.listener)
            self.listener.close()

    # Who leads

    def _upstream(self) -> Optional[Link]:
        """The connection to our lead."""
        return next((link for link in self.links if link.target is not None and link.place is not None), None)

    def _look_around(self, now: float) -> None:
        """Call the lead; after a while without one be it; without a majority for a while call the missing in turn."""
        patient = now - self.since < PATIENCE
        if self.lead != self.place and not patient:
            self._turn_to_next()
            if self.call:
                self._drop(self.call)  # it took our call, or its host did, and says nothing
        if self.call or now - self.called < RETRY:
            return
        if self.lead != self.place:
            self._call(self.lead, now)
        elif not patient:
            missing = [place for place in range(len(self.addresses)) if place not in {self.place, *self.connected}]
            self.asked = next((place for place in missing if place > self.asked), min(missing, default=self.place))
            self._call(self.asked, now)

    def _turn_to_next(self) -> None:
        self.lead, self.since = (self.lead + 1) % len(self.addresses), time.monotonic()

    def _call(self, place: int, now: float) -> None:
        self.called = now
        try:
            self.call = self._add(Link.to(self.addresses[place], self.key, place))
        except OSError:
            return  # tried again by a later turn

    def _answered(self, link: Link, message: Dict[str, Any]) -> None:
        """The answer of whom we called; too late if we lead a majority by now."""
        if self.settled:
            self._drop(link)
            return
        if message["kind"] == "hello":
            link.introduce(message, self.place)
            return
        link.check_answer(message, self.place)
        if message["kind"] == "elsewhere":
            self._drop(link)
            if int(message["place"]) != self.lead:
                self.lead, self.since = int(message["place"]) % len(self.addresses), time.monotonic()
            return
        for follower in [other for other in self.links if other is not link]:
            self._drop(follower)  # they call again, and are sent on
        self.call = None
        self.lead = link.place = link.target or 0
        self.lead_has_majority = True
        for said in self.waiting:
            self._send(link, said)
        self.waiting.clear()
        self.handle({"kind": "joined", "place": self.lead})

    def _calls(self, link: Link, message: Dict[str, Any]) -> None:
        """Somebody calls us: take him in, send him on, or let him lead."""
        place = link.check_node(message)
        for old in [old for old in self.links if old.place == place]:
            self._drop(old)  # it has noticed the end of its connection before we did
        if self._upstream() or (place < self.place and not self.majority):
            if not self._upstream():
                self.lead = place
            link.send_elsewhere(self.lead)
            self._drop(link)
            return
        self.lead = self.place
        link.welcome(place)
        self.handle({"kind": "joined", "place": place})

    # Bytes

    def _accept(self) -> None:
        try:
            connection, _ = (self.listener or socket.socket()).accept()
        except OSError:
            return
        if sum(link.place is None for link in self.links) >= MOST_STRANGERS:
            connection.close()
            return
        self._add(Link(connection, self.key)).greet()

    def _add(self, link: Link) -> Link:
        self.links.append(link)
        self.selector.register(link.socket, selectors.EVENT_READ, lambda: self._read(link))
        return link

    def _read(self, link: Link) -> None:
        if link not in self.links:
            return
        try:
            messages = link.receive()
            for message in messages or ():
                if link in self.links:
                    self._take(link, message)
        except (ProtocolError, KeyError, TypeError, ValueError):
            messages = None  # a stranger, or a broken stream; ours connect again
        if messages is None:
            self._drop(link)

    def _take(self, link: Link, message: Dict[str, Any]) -> None:
        if link.place is None:
            (self._calls if link.target is None else self._answered)(link, message)
        elif message["kind"] == "beat":
            if link.target is not None:
                self.lead_has_majority = bool(message["majority"])
        else:
            self.handle(dict(message, place=link.place))

    def _send(self, link: Link, message: Dict[str, Any]) -> None:
        if not link.send(message):
            self._drop(link)

    def _drop(self, link: Link, *, quiet: bool = False) -> None:
        if link not in self.links:
            return
        settled = self.settled
        self.links.remove(link)
        self.selector.unregister(link.socket)
        link.socket.close()
        if link is self.call:
            self.call = None
            if link.refused and link.target == self.lead:  # its supervisor is gone: on to the next at once
                self.called = 0.0
                self._turn_to_next()
        if settled and not self.settled:
            self.unsettled = link.heard
        if link.place is not None and not quiet:
            self.handle({"kind": "lost", "place": link.place, "heard": link.heard})
