"""What other processes write into a supervisor's spool: an order to stop, the record that all are ready, the lease.

The file thread reads it (supervisor/file_work.py); the loop uses what was read last, so a disk that does not answer
delays nothing else.
"""

from typing import Callable, Dict, Optional

from ..control.messages import EndOrder
from ..shared.run.spool_records import Ready
from ..spool.layout import Spool
from ..system.clock import boot_clock

STOP_RECORD = "record of a stop"  # name of its reader in the loop


class Inbox:
    """The orders and records for one attempt, as last read.

    ``leased``: the run ends with its terminal. ``ready`` is the commit record where an earlier attempt has it.
    """

    def __init__(self, spool: Spool, *, leased: bool, ready: Optional[Ready] = None) -> None:
        self.spool, self.leased = spool, leased
        self.stop: Optional[EndOrder] = None  # the order to stop
        self.ready = ready  # the commit record; None while not all nodes are ready
        # boot clock time when a renewal of the attached operator, or its commit, was first seen; 0: never
        self.lease = 0.0
        self._token: Optional[str] = None  # which that renewal wrote

    def readers(self, changed: Callable[[], object]) -> Dict[str, Callable[[], None]]:
        """The functions that the file thread calls at every turn, by name; each calls ``changed`` after a change."""

        def reporting(read: Callable[[], object]) -> Callable[[], None]:
            def read_and_compare() -> None:
                before = (self.stop, self.ready, self.lease)
                read()
                if before != (self.stop, self.ready, self.lease):
                    changed()

            return read_and_compare

        return {
            STOP_RECORD: reporting(self._read_stop),
            "readiness": reporting(self._read_ready),
            "lease file": reporting(self._read_lease),
        }

    def _read_stop(self) -> None:
        order = self.spool.stop_order()
        self.stop = EndOrder(order.reason, order.grace, ours=False) if order else None

    def _read_ready(self) -> None:
        ready = self.ready or self.spool.committed()
        if self.leased and ready and not self.ready:
            self.lease = boot_clock()
        self.ready = ready

    def _read_lease(self) -> None:
        token = self.spool.lease() if self.leased else None
        if token and token != self._token:
            self._token, self.lease = token, boot_clock()
