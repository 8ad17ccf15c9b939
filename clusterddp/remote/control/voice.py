"""What a node says of itself over run control, and what it hears of the others.

    word    word, operator    a node's last word on itself, to the lead; seconds since it heard an operator
    table   table, operator   the lead's knowledge of all, to everyone
    stop    reason, grace …   the run is to end
    end     the same, attempt the attempt is to end; another may follow

Not here: the connections (control/leader.py), what follows from what was heard (supervisor/main.py).
"""

from typing import Any, Dict, Optional

from ..shared.plan import read_peer, with_peer
from ..spool.layout import Spool
from ..system.bootstrap import read_json, write_json
from .leader import Control
from .membership import ENDED, Peers

TELL = 5.0  # seconds between two tables of the lead to all, if nothing changes


class Voice:
    """One node's."""

    def __init__(self, control: Control, peers: Peers) -> None:
        self.control, self.peers = control, peers
        self.told_at = 0.0
        self.order: Optional[Dict[str, Any]] = None  # what ends our part; who joins later hears it too

    def begin(self, spool: Spool) -> None:
        """Turn to an attempt."""
        self.spool, self.order = spool, None

    def take_message(self, message: Dict[str, Any]) -> None:
        """A message of run control that tells of nodes."""
        kind, place = message["kind"], int(message["place"])
        if kind == "word":
            self._take_in(place, message["word"])
            self.peers.note(place, message["word"])
            self.peers.operator_heard(float(message["operator"]))
            self.told_at = 0.0
        elif kind == "table":
            for other, _, word in message["table"]:
                self._take_in(int(other), word)
            self.peers.take(message["table"])
            self.peers.operator_heard(float(message["operator"]))
            self.save()
        elif kind == "lost":
            self.peers.missing[place] = message["heard"]
        elif kind == "joined":
            self.peers.missing.pop(place, None)
            self.say_word()
            if self.order:
                self.pass_on(self.order)

    def _take_in(self, place: int, word: Dict[str, Any]) -> None:
        """A host that joined after the start: from now on it is a node like all others."""
        joined = word.get("joined")
        if joined and place == len(self.peers.names):
            peer = read_peer(joined["peer"])
            self.peers.names.append(peer.host)
            self.control.addresses.append((peer.address, int(joined["control"])))
            self.peers.plan = with_peer(self.peers.plan, peer)
            try:
                self.spool.write_plan(self.peers.plan)  # who joins next is invited by what it says
            except OSError:
                pass  # a full disk: until there is room, this node can invite nobody

    def tell(self, word: Dict[str, Any]) -> None:
        """Our new word on ourselves, to whom is connected or will be."""
        self.peers.note(self.peers.place, word)
        self.say_word()

    def say_word(self) -> None:
        """Our last word again."""
        word = self.peers.told.get(self.peers.place)
        if word and not self.control.leading:
            self.control.say("word", word=word, operator=self.peers.operator_age)
        self.told_at = 0.0

    def pass_on(self, order: Dict[str, Any]) -> None:
        """Let an order reach all nodes: the lead tells everyone, the others tell the lead."""
        self.control.say("end" if "attempt" in order else "stop", **order)

    def turn(self, now: float) -> None:
        """What time asks for: the operator's last word to the lead, the lead's table to everyone."""
        self._hear_operator()
        if self.control.leading and now - self.told_at > TELL:
            self.told_at = now
            self.control.say("table", table=self.peers.table(), operator=self.peers.operator_age)
            self.save()

    def leave(self) -> None:
        """This node is done for good."""
        word = dict(self.peers.told.get(self.peers.place) or {"state": ENDED, "attempt": self.peers.plan.attempt})
        self.control.say("word", word=dict(word, left=True), operator=self.peers.operator_age)
        self.control.close()

    def save(self) -> None:
        """Keep what is known of the others, for who asks this host alone."""
        try:
            lead = self.peers.names[self.control.lead] if self.control.settled else None
            known = dict(self.peers.as_json(), lead=lead, addresses=self.control.addresses)
            write_json(self.spool.path("peers.json"), known)
        except OSError:
            pass  # a full disk; the next table may find room

    def _hear_operator(self) -> None:
        """The operator who is attached leaves the time of his last word in the spool."""
        renewed = read_json(self.spool.path("lease")) if self.peers.plan.lease else None
        if renewed and renewed > self.peers.operator:
            self.peers.operator = renewed
            self.say_word()
