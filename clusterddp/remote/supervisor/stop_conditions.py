"""A node's own reasons to end its part: limits, signals, a store that died, nodes out of reach.

An order is ``{reason, grace, ours}``; with ``attempt`` it ends that attempt only, and another may follow.
Not here: orders that others give (tombstones in the spool, run control), and carrying them out (supervisor/main.py).
"""

import time
from typing import Any, Dict, NamedTuple, Optional

from ..control.leader import Control
from ..control.membership import Peers
from ..shared.failures import LEASE, TIME_LIMIT
from ..shared.plan import NodePlan
from ..spool.layout import Spool
from .children import Children

COMMIT_LIMIT = 60.0  # seconds within which the operator must say that all nodes are ready
GRACE = 10.0  # seconds for the agent
Order = Dict[str, Any]


class Limits(NamedTuple):
    """Seconds."""

    lost: float  # a node out of reach is lost; with relaunches later than its own fence and grace
    fence: float  # a node that reaches no majority ends its own part
    grace: float  # for its agent then


LIMITS = Limits(lost=60.0, fence=120.0, grace=GRACE)  # a cable out for half a minute ends nothing
LIMITS_RELAUNCH = Limits(lost=20.0, fence=12.0, grace=3.0)


def of_attempt(plan: NodePlan, reason: str, grace: float, *, ours: bool = True) -> Order:
    """An order that ends the plan's attempt; another one may follow."""
    return {"reason": reason, "grace": grace, "ours": ours, "attempt": plan.attempt}


class Orders:
    """One node's."""

    def __init__(self, control: Control, peers: Peers) -> None:
        self.control, self.peers = control, peers
        self.limits = LIMITS_RELAUNCH if peers.plan.relaunch else LIMITS
        self.born = time.monotonic()
        self.terminated = False  # SIGTERM came

    def begin(self, spool: Spool) -> None:
        """Turn to an attempt."""
        self.spool = spool

    @property
    def plan(self) -> NodePlan:
        """This node's plan of the attempt under way."""
        return self.peers.plan

    def own(self, now: float, children: Children) -> Optional[Order]:
        """A reason to end this attempt or the run."""
        if children.store_died:
            return of_attempt(self.plan, "the rendezvous store died: %s" % children.store_said(), 0.0)
        return self.final(now) or self._of_the_lost(now)

    def final(self, now: float) -> Optional[Order]:
        """A reason to end the run."""
        if self.terminated:
            return {"reason": "the supervisor was told to end (SIGTERM)", "grace": GRACE, "ours": True}
        if self.plan.time_limit and now - self.born > self.plan.time_limit:
            return {"reason": TIME_LIMIT, "grace": GRACE, "ours": False}
        if now - self.born > COMMIT_LIMIT and not self.spool.committed():
            return {"reason": "the operator was lost before every node had started", "grace": 0.0, "ours": True}
        if self.plan.lease and self.control.leading and self.peers.operator_age > self.plan.lease:
            return {"reason": LEASE, "grace": GRACE, "ours": False}
        return None

    def _of_the_lost(self, now: float) -> Optional[Order]:
        """Nodes that are lost end a job of a fixed size; in an elastic one as many may be as MIN leaves.

        But for the one that has the store: without it no agent starts anything again. A node that reaches no
        majority ends its own part where another attempt may start without it.
        """
        places = self.plan.places
        lost = [place for place in self.peers.lost(now, self.limits.lost) if place in places]
        here = self.peers.names[self.peers.place]
        few = len(places) - len(lost) < self.plan.min_nodes
        if lost and (few or not self.plan.elastic or self.plan.store_place in lost):
            names = ", ".join(self.peers.names[place] for place in lost)
            reason = "%s %s lost" % (names, "was" if len(lost) == 1 else "were")
            if not self.control.settled:
                reason = "%s lost contact with %s" % (here, names)
            return of_attempt(self.plan, reason, self.limits.grace)
        fenced = self.plan.relaunch or not self.plan.elastic
        if fenced and now - self.control.unsettled > self.limits.fence and self.peers.others_at_work():
            return of_attempt(self.plan, "%s lost contact with the other hosts" % here, self.limits.grace)
        return None
