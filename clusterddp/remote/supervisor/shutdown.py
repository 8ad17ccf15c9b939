"""The order that ends a node's part of an attempt, and when it ends by force. Pure."""

from typing import Optional

from ..control.messages import EndOrder

NEVER = float("inf")


class Shutdown:
    """What was ordered in one attempt.

    Attributes:
        order: The first order: its reason is the one on record. None: the node works on.
        told: What run control ordered for this attempt alone; not carried out where no agent runs.
        kill_at: When what is left gets SIGKILL, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.order: Optional[EndOrder] = None
        self.told: Optional[EndOrder] = None
        self.kill_at = NEVER
        self._newest: Optional[EndOrder] = None

    def take(self, order: EndOrder, now: float) -> bool:
        """Take an order; whether it is the first. A later one may only shorten the grace."""
        if order == self._newest:
            return False
        self._newest = order
        self.kill_at = min(self.kill_at, now + order.grace)
        first = self.order is None
        self.order = self.order or order
        return first
