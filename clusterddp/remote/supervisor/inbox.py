"""What others leave for a supervisor in its spool: an order to stop, the record that all are ready, the lease.

The file thread reads it (supervisor/file_work.py); the loop uses what was read last, so a disk that does not answer
delays nothing else.
"""

from typing import Callable, Dict, Optional

from ..control.messages import EndOrder
from ..shared.run.spool_records import Ready
from ..spool.layout import Spool

STOP_RECORD = "record of a stop"  # its name in the loop


class Inbox:
    """The messages for one attempt.

    ``leased``: the run ends with its terminal. ``ready`` is what every node knows, where it is known from an earlier
    attempt.
    """

    def __init__(self, spool: Spool, *, leased: bool, ready: Optional[Ready] = None) -> None:
        self.spool, self.leased = spool, leased
        self.stop: Optional[EndOrder] = None  # the order to stop
        self.ready = ready  # what is known once every node is ready
        self.lease = 0.0  # boot clock time when the attached operator was last heard

    def readers(self, changed: Callable[[], object]) -> Dict[str, Callable[[], None]]:
        """The functions that the file thread calls at every turn, by name."""

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
