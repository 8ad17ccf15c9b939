"""The orders to end a node's part of an attempt, and when it ends by force; without any input or output."""

from typing import Optional

from ..control.messages import EndOrder

NEVER = float("inf")


class Shutdown:
    """The orders to end this node's part that were given in one attempt."""

    def __init__(self) -> None:
        self.order: Optional[EndOrder] = None  # the first one, whose reason is recorded; None: the node works on
        self.attempt_order: Optional[EndOrder] = None  # run control's for this attempt; once its part has ended, unused
        self.kill_at = NEVER  # monotonic time at which the processes left get SIGKILL
        self._newest: Optional[EndOrder] = None

    @property
    def given(self) -> Optional[EndOrder]:
        """The order by which this node's part ends: the first one that it took, or else run control's; None: none."""
        return self.order or self.attempt_order

    def take(self, order: EndOrder, now: float) -> bool:
        """Take an order; return whether it is the first. A later one may only shorten the grace."""
        if order == self._newest:
            return False
        self._newest = order
        self.kill_at = min(self.kill_at, now + order.grace)
        first = self.order is None
        self.order = self.order or order
        return first
