"""What one node knows of all nodes of its run, and how the nodes tell each other.

Each says a word on itself to the lead; the lead tells everyone what is new, so whoever leads next, and whoever is asked
for the run's status, knows it too. What holds now (words, the order that ends the attempt or the run, the decision on
what follows) is told on every connection anew and by the lead again and again: no message lost is missed for long.
Times are kept by this host's own clocks; between hosts only ages travel.
"""

import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..system.clock import boot_clock
from .control_events import Event, Lost, MemberJoined, NodeDone
from .leader import Control
from .messages import (
    AttemptDecision,
    EndOrder,
    NodeState,
    NodeStatusRow,
    StatusTable,
    TakingPart,
    Word,
    WordSaid,
    in_parts,
)
from .messages import Joined as Newcomer

TELL = 5.0  # seconds after which the lead tells all again what holds, and each other node tells the lead
START = 30.0  # seconds that a node gets at least to be heard for the first time
SLOWER = 2.5  # seconds more for a node that beats over TCP alone, until its fence and until it is lost
GATHER = 0.1  # seconds in which it gathers new words: one table then tells of all of them
OVER = (NodeState.ENDING, NodeState.ENDED)


class Membership:
    """One node's knowledge of all.

    Args:
        control: This node's connections.
        names: The hosts' names, by place.
        welcome: Called for a host that joins after the start, when its place is the next one.
        keep: Called with what is known of the others, for who asks this host alone (``peers.json``).
    """

    def __init__(
        self,
        control: Control,
        names: List[str],
        welcome: Callable[[Newcomer], None],
        keep: Callable[[Dict[str, Any]], None],
    ) -> None:
        self.control, self.names, self.place, self.welcome, self.keep = control, names, control.place, welcome, keep
        self.words: Dict[int, Word] = {}  # place → its last word on itself
        self.heard: Dict[int, float] = {}  # place → when, by the monotonic clock
        self.missing: Dict[int, float] = {}  # place → since when it is out of reach
        self.met: Set[int] = set()  # places that have been connected to this node
        self.left: Set[int] = set()  # places that are done for good
        self.ended: Set[int] = set()  # places whose supervisor is gone, and nothing else is there any more
        self.operator = boot_clock()  # when an operator was last heard by any node
        self.decision: Optional[AttemptDecision] = None  # the newest: what follows an attempt
        self.order: Optional[EndOrder] = None  # what ends the attempt or the run; who connects later hears it too
        self.part: Optional[TakingPart] = None  # who takes part in the attempt, as its leader says
        self.epoch = 0  # the newest that is known, of whatever attempt
        self.carry = 0  # the port where new nodes get what is carried from here, or 0
        self.unheard = False  # whether our last word has reached nobody yet
        self._new: Set[int] = set()  # places whose words the others have not heard yet
        self._told_at = 0.0
        self._begun = boot_clock()

    def begin(
        self, attempt: int, places: Sequence[int], *, limit: float, by_majority: bool = False, store: int = 0
    ) -> None:
        """Turn to an attempt.

        Args:
            attempt: Its number.
            places: Who takes part.
            limit: Seconds out of reach after which a node takes no part any more.
            by_majority: Whether only a leader with a majority says so.
            store: The place that has the rendezvous store.
        """
        self.attempt, self.places, self.order, self.part = attempt, places, None, None
        self.limit, self.by_majority, self.store = limit, by_majority, store
        self._begun = boot_clock()

    def begin_part(self) -> None:
        """This node's part of the attempt begins: from now on others are waited for."""
        self._begun = boot_clock()

    # What is known

    def over(self, attempt: int) -> Dict[int, Word]:
        """The words of those whose part of an attempt is over or nearly so, by place."""
        return {p: word for p, word in self.words.items() if word.attempt == attempt and word.state in OVER}

    def lost(self, now: float, limit: float) -> List[int]:
        """Places that have been out of reach for longer than ``limit`` seconds for certain, or have ended for good.

        Not earlier than so long after any other lead can have told them of a majority (control/contact.py).
        """
        floor = self.control.contact.elsewhere
        late = {p for p, since in self.missing.items() if now - max(since, floor) > self._patience(p, limit)}
        return sorted(late | self.ended)

    def _patience(self, place: int, limit: float) -> float:
        word = self.words.get(place)
        if word:
            return limit + SLOWER if word.slow else limit
        # Never connected: it may still be on its way. Connected: without contact to a majority it starts no agent.
        return limit + SLOWER if place in self.met else max(limit, START)

    def behind(self, now: float, limit: float) -> List[int]:
        """Connected places that ``limit`` seconds after this attempt began still speak of an older one, or of none."""
        if now - self._begun <= limit:
            return []
        there = self.control.connected - {self.place}
        return sorted(p for p in there if p not in self.words or self.words[p].attempt < self.attempt)

    def others_at_work(self) -> bool:
        """Whether any other node has not left for good."""
        return len(self.left - {self.place}) < len(self.names) - 1

    def over_without_us(self, limit: float) -> bool:
        """Whether others have left for good, with the verdict they keep, and no other node is there any more."""
        gone = self.left.union(self.lost(boot_clock(), limit)) - {self.place}
        return bool(self.left - {self.place}) and len(gone) == len(self.names) - 1

    @property
    def operator_age(self) -> float:
        """Seconds since an operator was heard."""
        return max(0.0, boot_clock() - self.operator)

    # What this node tells

    def tell(self, word: Word) -> None:
        """Our new word on ourselves, to whom is connected or will be."""
        self._note(self.place, word._replace(carry=self.carry))
        self.unheard = True
        self._say_word()

    def pass_on(self, order: EndOrder) -> None:
        """Let an order reach all nodes: the lead tells everyone, the others tell the lead."""
        if self.order is None or self.order.attempt is not None:  # what ends the run stands
            self.order = order
        self.control.say(order)

    def decide(self, decision: AttemptDecision) -> None:
        """What follows the attempt; we lead."""
        self.decision = decision
        self.control.say(decision)

    def turn(self, now: float) -> None:
        """What time asks for: who is missing, the operator's last word, the lead's table to everyone."""
        if self.control.leading:
            self.unheard = False
            self._look(now)
        elif self.control.settled:
            self.missing.clear()  # the lead keeps account
        if self.control.leading:
            changed = self._decide_part(now)
            if changed or now - self._told_at > (GATHER if self._new else TELL):
                self._tell_all(now)
            return
        self._new.clear()
        if now - self._told_at > TELL:
            self._tell_lead(now)

    def leave(self) -> None:
        """This node is done for good."""
        word = (self.words.get(self.place) or Word(NodeState.ENDED, self.attempt))._replace(left=True)
        if self.control.leading:
            self._note(self.place, word)
            for part in self._table({self.place}):
                self.control.say(part)
        else:
            self.control.say(WordSaid(word, self.operator_age, self.epoch))
        self.control.close()

    # What it hears

    def take(self, event: Event) -> None:
        """An event of run control, but orders, which are for the supervisor."""
        if isinstance(event, MemberJoined):
            self.met.add(event.place)
            self.missing.pop(event.place, None)
            self._tell_one(event.place)
        elif isinstance(event, Lost):
            self.met.add(event.place)
            self.missing[event.place] = event.heard
        elif isinstance(event, NodeDone):
            self.ended.add(event.place)
        elif isinstance(event.message, WordSaid):
            self._hear(event.place, event.message.word)
            self._operator_heard(event.message.operator)
            self.epoch = max(self.epoch, event.message.epoch)
        elif isinstance(event.message, StatusTable):
            for row in event.message.rows:
                if row.place != self.place:  # of ourselves we know better
                    self._hear(row.place, row.word, row.age)
            self._operator_heard(event.message.operator)
            self._take_part(event.message.part)
            self.save()
        elif isinstance(event.message, AttemptDecision):
            self._take_decision(event.message)

    def save(self) -> None:
        """Keep what is known of the others, for who asks this host alone."""
        now = boot_clock()
        nodes = {self.names[p]: dict(w.to_json(), age=round(now - self.heard[p], 3)) for p, w in self.words.items()}
        known: Dict[str, Any] = {"time": time.time_ns(), "nodes": nodes}
        known["missing"] = [self.names[place] for place in self.missing]
        known["gone"] = [self.names[place] for place in self.excluded if place < len(self.names)]
        known["lead"] = self.names[self.control.lead] if self.control.settled else None
        self.keep(dict(known, addresses=list(self.control.addresses)))

    def _hear(self, place: int, word: Word, age: float = 0.0) -> None:
        """A node's word on itself; that of a host that joined after the start makes it a node like all others."""
        if word.joined and place == len(self.names):
            self.names.append(word.joined.host)
            self.control.addresses.append((word.joined.address, word.joined.control))
            self.welcome(word.joined)
        if place < len(self.names):
            self._note(place, word, age)

    def _note(self, place: int, word: Word, age: float = 0.0) -> None:
        at = boot_clock() - age
        if at >= self.heard.get(place, 0.0):
            if word != self.words.get(place):
                self._new.add(place)
            self.words[place], self.heard[place] = word, at
            if word.left:
                self.left.add(place)

    def _take_decision(self, decision: AttemptDecision) -> None:
        """The newer stands; of two for the same attempt that of who leads, which has the majority."""
        known = self.decision.attempt if self.decision else 0
        if decision.attempt > known or (decision.attempt == known and not self.control.leading):
            self.decision = decision
        if self.control.leading and self.decision and decision.attempt > known:
            self.control.say(self.decision)

    # How it is told

    def _say_word(self) -> None:
        word = self.words.get(self.place)
        if word and not self.control.leading:
            self.control.say(WordSaid(word, self.operator_age, self.epoch))
        if self.control.leading or self.control.connected:
            self.unheard = False

    def _tell_one(self, place: int) -> None:
        """All that holds now, to who has just connected."""
        if self.control.leading:
            for part in self._table(set(self.words)):
                self.control.say(part, to=place)
        self._say_word()
        for message in (self.order, self.decision):
            if message:
                self.control.say(message, to=place)

    def _tell_lead(self, now: float) -> None:
        """What holds here, again: what the lead missed costs seconds."""
        self._say_word()
        for message in (self.order, self.decision):
            if message:
                self.control.say(message)
        self._told_at = now

    def _tell_all(self, now: float) -> None:
        """The lead's: words that are new, or else what holds now."""
        parts = self._table(self._new)
        for message in parts if self._new else (*parts, self.order, self.decision):
            if message:
                self.control.say(message)
        self._told_at = now
        self._new.clear()
        self.save()

    def _table(self, places: Set[int]) -> List[StatusTable]:
        now = boot_clock()
        rows = [NodeStatusRow(place, now - self.heard[place], self.words[place]) for place in sorted(places)]
        return in_parts(rows, self.operator_age, self.part)

    # Who takes part

    @property
    def excluded(self) -> Tuple[int, ...]:
        """Places of the attempt that take no part in it any more: lost, or failed."""
        if self.part is None:
            return ()
        return tuple(sorted(set(self.places).difference(self.part.places, self.part.ended)))

    def _decide_part(self, now: float) -> bool:
        """The leader's: who takes part in the attempt; whether that has changed.

        A leader without a majority leaves it as it is where others may begin another attempt, and where it misses the
        store's host: those that reach the store go on.
        """
        if self.by_majority and not (self.control.majority and self.control.in_contact):
            return False
        over = self.over(self.attempt)
        excluded = {place for place, word in over.items() if word.code}.union(self.lost(now, self.limit))
        if self.store in excluded and not self.control.majority:
            return False
        there = [place for place in self.places if place not in excluded]
        ended = tuple(place for place in there if place in over)
        places = tuple(place for place in there if place not in over)
        known = self.part
        if known and (known.places, known.ended, known.epoch) == (places, ended, self.epoch):
            return False
        self.epoch += 1
        self.part = TakingPart(self.attempt, self.epoch, places, ended)
        return True

    def _take_part(self, part: Optional[TakingPart]) -> None:
        """What the leader says; a leader that knows an older epoch than we do hears of ours, and says it anew."""
        if part is None:
            return
        if part.epoch < self.epoch:
            self._say_word()
            return
        self.epoch = part.epoch
        if part.attempt == self.attempt:
            self.part = part

    def _look(self, now: float) -> None:
        """Keep account of who is missing, where nobody else does (on a lead, or without one)."""
        there = {self.place, *self.control.connected}
        for place in range(len(self.names)):
            if place in there or place in self.left:
                self.missing.pop(place, None)
            else:
                self.missing.setdefault(place, now)
        self.control.missed = set(self.missing) - self.ended

    def _operator_heard(self, age: float) -> None:
        self.operator = max(self.operator, boot_clock() - age)

    def hear_operator(self, renewed: float) -> None:
        """The operator who is attached to this host was there at that time."""
        if renewed > self.operator:
            self.operator = min(renewed, boot_clock())
            self._say_word()
            self._new.add(self.place)
