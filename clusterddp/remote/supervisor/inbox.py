"""What others leave for a supervisor in its spool: an order to stop, the word that all are ready, the operator's lease.

Read by the file thread (supervisor/file_work.py); the loop looks at what was read last, so a disk that does not answer
holds up nothing but what would have come from there.
"""

from typing import Callable, Dict, Optional

from ..control.messages import EndOrder
from ..shared.run.spool_records import Ready
from ..spool.layout import Spool

STOP_RECORD = "record of a stop"  # the name under which it is read


class Inbox:
    """One attempt's.

    Args:
        spool: The node's.
        leased: Whether the run ends with its terminal.
        ready: What every node knows, where an earlier attempt has shown it.

    Attributes:
        stop: The order to stop.
        ready: What is known once every node is ready.
        lease: When an operator who is attached was heard last, by the boot clock.
    """

    def __init__(self, spool: Spool, *, leased: bool, ready: Optional[Ready] = None) -> None:
        self.spool, self.leased = spool, leased
        self.stop: Optional[EndOrder] = None
        self.ready = ready
        self.lease = 0.0

    def readers(self, changed: Callable[[], object]) -> Dict[str, Callable[[], None]]:
        """What the file thread is to call at every turn, by name; ``changed`` is called when something is new."""

        def noting(read: Callable[[], object]) -> Callable[[], None]:
            def look() -> None:
                before = (self.stop, self.ready, self.lease)
                read()
                if before != (self.stop, self.ready, self.lease):
                    changed()

            return look

        return {
            STOP_RECORD: noting(self._read_stop),
            "readiness": noting(self._read_ready),
            "lease file": noting(self._read_lease),
        }

    def _read_stop(self) -> None:
        order = self.spool.stop_order()
        self.stop = EndOrder(order.reason, order.grace, ours=False) if order else None

    def _read_ready(self) -> None:
        self.ready = self.ready or self.spool.committed()

    def _read_lease(self) -> None:
        if self.leased:
            self.lease = self.spool.lease() or self.lease
