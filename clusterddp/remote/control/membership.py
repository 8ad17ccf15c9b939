"""What one node knows of all nodes of its run: their last words, who is missing since when, when an operator was heard.

The lead gathers it and tells everyone, so whoever leads next, and whoever is asked for the run's status, knows it too.
Times are kept by this host's own clocks; between hosts only ages travel.

Not here: how it travels (control/leader.py), what follows from it (supervisor/main.py, supervisor/next_attempt.py).
"""

import time
from typing import Any, Dict, Iterable, List, Set

from ..shared.plan import NodePlan

ENDED = "ended"  # a node's word: its part of the attempt is over


def boot_clock() -> float:
    """Seconds since this boot, those of a suspended machine included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Peers:
    """One node's knowledge.

    Args:
        plan: This node's, of its first attempt.
    """

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan  # of the attempt under way, with the hosts that have joined
        self.names, self.place = [peer.host for peer in plan.peers], plan.place
        self.told: Dict[int, Dict[str, Any]] = {}  # place → its last word on itself
        self.heard: Dict[int, float] = {}  # place → when, by the monotonic clock
        self.missing: Dict[int, float] = {}  # place → since when it is out of reach
        self.operator = boot_clock()  # when an operator was last heard by any node
        self.left: Set[int] = set()  # places that are done for good

    def note(self, place: int, word: Dict[str, Any], age: float = 0.0) -> None:
        """A node's word on itself, ``age`` seconds old."""
        at = time.monotonic() - age
        if at >= self.heard.get(place, 0.0):
            self.told[place], self.heard[place] = word, at
            if word.get("left"):
                self.left.add(place)

    def ending(self, attempt: int) -> Dict[int, Dict[str, Any]]:
        """The words of those whose part of an attempt is over or nearly so, by place."""
        return {
            place: word
            for place, word in self.told.items()
            if word["attempt"] == attempt and word["state"] in {"ending", ENDED}
        }

    def look(self, connected: Iterable[int], now: float) -> None:
        """Keep account of who is missing, where nobody else does (on a lead, or without one)."""
        there = {self.place, *connected}
        for place in range(len(self.names)):
            if place in there or place in self.left:
                self.missing.pop(place, None)
            else:
                self.missing.setdefault(place, now)

    def lost(self, now: float, limit: float) -> List[int]:
        """Places that have been missing for longer than ``limit`` seconds."""
        return sorted(place for place, since in self.missing.items() if now - since > limit)

    def others_at_work(self) -> bool:
        """Whether any other node has not left for good."""
        return len(self.left - {self.place}) < len(self.names) - 1

    def operator_heard(self, age: float) -> None:
        """An operator was heard ``age`` seconds ago, here or elsewhere."""
        self.operator = max(self.operator, boot_clock() - age)

    @property
    def operator_age(self) -> float:
        """Seconds since an operator was heard."""
        return boot_clock() - self.operator

    def table(self) -> List[List[Any]]:
        """All that is known, for the others: [place, age in seconds, word]."""
        now = time.monotonic()
        return [[place, round(now - self.heard[place], 3), word] for place, word in self.told.items()]

    def take(self, table: List[List[Any]]) -> None:
        """The lead's table; of ourselves we know better."""
        for place, age, word in table:
            if int(place) != self.place:
                self.note(int(place), dict(word), float(age))

    def as_json(self) -> Dict[str, Any]:
        """For this host's spool: what is known, by host name."""
        known = {self.names[place]: dict(word, age=age) for place, age, word in self.table()}
        return {"time": time.time_ns(), "nodes": known, "missing": [self.names[place] for place in self.missing]}
