"""Run control: the supervisors of one run connected in a star around the lead, the rendezvous host's.

Each side of a connection proves the run's key (HMAC over both sides' nonces; the key itself came inside SSH and
never goes on this wire). Then the frames of wire.py, without bodies:

    beat                    both ways, every BEAT seconds
    stop    reason, grace   both ways: the run is to end; the lead passes it on to all
    failed  reason          to the lead: this node's agent has failed, which ends a job of a fixed size
    done                    to the lead: this node has ended and needs the store no more

Not here: what an order does (supervisor.py); a new lead when the lead is lost.
"""

import hashlib
import hmac
import os
import selectors
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Set

from .wire import Decoder, ProtocolError, encode

BEAT = 2.0  # seconds between heartbeats
SILENCE = 15.0  # seconds without a word after which a connection is given up
RETRY = 1.0  # seconds between attempts to reach the lead
MOST_STRANGERS = 64  # connections that have not proved the key yet
NONCE = 16  # bytes

Handler = Callable[[Dict[str, Any]], None]


def proof(key: bytes, role: str, theirs: str, ours: str, rank: int) -> str:
    """What shows that one side knows the key: HMAC-SHA256 over its role, both nonces and the node's rank."""
    return hmac.new(key, "|".join((role, theirs, ours, str(rank))).encode(), hashlib.sha256).hexdigest()


class Link:
    """One connection: bytes in and out, and whether the other side has proved itself."""

    def __init__(self, connection: socket.socket, nonce: str) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.nonce = nonce  # ours
        self.lead_nonce = ""
        self.rank: Optional[int] = None  # the other side's, once proved
        self.decoder = Decoder()
        self.unsent = bytearray()
        self.heard = time.monotonic()
        self.beat = self.heard


class Control:
    """One supervisor's side of the star.

    Args:
        rank: This node's rank in the plan.
        key: The run's.
        selector: The supervisor's loop; callbacks stand in its keys' data.
        handle: Called with each message but ``beat``, with the sender's ``rank`` in it; and with the kinds
            ``joined`` and ``lost`` when a link has proved itself or ends.
        listener: The lead's listening socket; None on the others.
        lead: The lead's (address, port) on the others.
    """

    def __init__(
        self,
        rank: int,
        key: bytes,
        selector: selectors.BaseSelector,
        handle: Handler,
        *,
        listener: Optional[socket.socket] = None,
        lead: "Optional[tuple[str, int]]" = None,
    ) -> None:
        self.rank, self.key, self.selector, self.handle = rank, key, selector, handle
        self.listener, self.lead = listener, lead
        self.links: List[Link] = []
        self.last_try = 0.0
        self.waiting: List[Dict[str, Any]] = []  # said before the lead was reached
        self.closed = False
        if listener:
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ, self._accept)

    @property
    def connected(self) -> Set[int]:
        """The ranks on the other ends."""
        return {link.rank for link in self.links if link.rank is not None}

    def say(self, kind: str, but: Optional[int] = None, **fields: Any) -> None:
        """Send a message to everyone connected (on the others: to the lead, now or when it is reached)."""
        message = dict(fields, kind=kind)
        proved = [link for link in self.links if link.rank is not None]
        if self.lead and not proved:
            self.waiting.append(message)
        for link in proved:
            if link.rank != but:
                self._send(link, message)

    def turn(self) -> None:
        """What time asks for: connect, beat, give up the silent. Called by every tick of the loop."""
        now = time.monotonic()
        if self.lead and not self.links and not self.closed and now - self.last_try > RETRY:
            self.last_try = now
            self._connect(self.lead)
        for link in list(self.links):
            if now - link.heard > SILENCE:
                self._drop(link)
            elif link.rank is not None and now - link.beat > BEAT:
                link.beat = now
                self._send(link, {"kind": "beat"})

    def close(self, patience: float = 2.0) -> None:
        """Send what waits, for at most ``patience`` seconds; then end all connections."""
        self.closed = True
        deadline = time.monotonic() + patience
        while any(link.unsent for link in self.links) and time.monotonic() < deadline:
            for link in list(self.links):
                self._flush(link)
            time.sleep(0.01)
        for link in list(self.links):
            self._drop(link, quiet=True)
        if self.listener:
            self.selector.unregister(self.listener)
            self.listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = (self.listener or socket.socket()).accept()
        except OSError:
            return
        if sum(link.rank is None for link in self.links) >= MOST_STRANGERS:
            connection.close()
            return
        link = self._add(connection)
        self._send(link, {"kind": "hello", "nonce": link.nonce})

    def _connect(self, lead: "tuple[str, int]") -> None:
        try:
            connection = socket.create_connection(lead, timeout=RETRY)
        except OSError:
            return  # tried again by a later turn
        self._add(connection)

    def _add(self, connection: socket.socket) -> Link:
        link = Link(connection, os.urandom(NONCE).hex())
        self.links.append(link)
        self.selector.register(connection, selectors.EVENT_READ, lambda: self._read(link))
        return link

    def _read(self, link: Link) -> None:
        if link not in self.links:
            return
        try:
            data = link.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(link)
            return
        link.heard = time.monotonic()
        try:
            for frame in link.decoder.feed(data):
                self._take(link, frame.header)
        except (ProtocolError, KeyError, TypeError, ValueError):
            self._drop(link)  # a stranger, or a broken stream; ours connect again

    def _take(self, link: Link, message: Dict[str, Any]) -> None:
        if link.rank is not None:
            if message["kind"] != "beat":
                self.handle(dict(message, rank=link.rank))
        elif self.lead:
            self._prove_to_lead(link, message)
        else:
            self._check(link, message)

    def _prove_to_lead(self, link: Link, message: Dict[str, Any]) -> None:
        """On the others: answer the lead's nonce, then check its answer to ours."""
        if message["kind"] == "hello":
            link.lead_nonce = str(message["nonce"])
            mine = proof(self.key, "node", link.lead_nonce, link.nonce, self.rank)
            self._send(link, {"kind": "node", "rank": self.rank, "nonce": link.nonce, "proof": mine})
            return
        expected = proof(self.key, "lead", link.nonce, link.lead_nonce, self.rank)
        if message["kind"] != "lead" or not hmac.compare_digest(expected, str(message["proof"])):
            raise ProtocolError("the lead does not know the key")
        link.rank = 0
        for said in self.waiting:
            self._send(link, said)
        self.waiting.clear()
        self.handle({"kind": "joined", "rank": 0})

    def _check(self, link: Link, message: Dict[str, Any]) -> None:
        """On the lead: does the node know the key?"""
        rank, theirs = int(message["rank"]), str(message["nonce"])
        expected = proof(self.key, "node", link.nonce, theirs, rank)
        if message["kind"] != "node" or not hmac.compare_digest(expected, str(message["proof"])):
            raise ProtocolError("a stranger")
        link.rank = rank
        self._send(link, {"kind": "lead", "proof": proof(self.key, "lead", theirs, link.nonce, rank)})
        self.handle({"kind": "joined", "rank": rank})

    def _send(self, link: Link, message: Dict[str, Any]) -> None:
        link.unsent += encode(message)
        self._flush(link)

    def _flush(self, link: Link) -> None:
        try:
            sent = link.socket.send(link.unsent) if link.unsent else 0
            del link.unsent[:sent]
        except BlockingIOError:
            return  # the next beat or message tries again
        except OSError:
            self._drop(link)

    def _drop(self, link: Link, *, quiet: bool = False) -> None:
        if link not in self.links:
            return
        self.links.remove(link)
        self.selector.unregister(link.socket)
        link.socket.close()
        if link.rank is not None and not quiet:
            self.handle({"kind": "lost", "rank": link.rank})
