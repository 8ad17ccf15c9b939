"""The operation ``signal``: signal a node's workers, those alone that handle it: a notice must not kill the others."""

import os
import signal as signals
from typing import Any, Dict, List, Set

from ..helper.request import Request
from ..processes.ownership import NodeProcesses
from ..processes.stacks import live_workers
from ..shared.processes.process_records import SignalReport, SignalRequest
from ..shared.schema.record import to_fields
from ..spool.layout import Spool
from ..system import procfs
from ..system.bootstrap import Refused


def signal(request: Request) -> List[Dict[str, Any]]:
    """Operation: send a signal to a node's live workers; a ``SignalReport`` of each.

    Takes a ``SignalRequest``. Raises Refused if this host knows no such signal.
    """
    order = request.read_args(SignalRequest)
    return [to_fields(report) for report in signal_workers(Spool(order.spool), order.signal)]


def signal_workers(spool: Spool, name: str) -> List[SignalReport]:
    """Send a signal to the spool's live workers; raises Refused if this host knows none of that name."""
    try:
        number = signals.Signals[name]
    except KeyError:
        raise Refused("no signal is called %s here" % name) from None
    pids = {process.pid for process in NodeProcesses.of(spool, spool.supervisor()).find()}
    return [
        SignalReport(
            rank=event.rank, local_rank=event.local_rank, pid=event.pid or 0, why=_send(event.pid or 0, number, pids)
        )
        for event in live_workers(spool.events())
    ]


def _send(pid: int, number: signals.Signals, pids: Set[int]) -> str:
    """Send a signal to a worker; the reason if it was not sent, else empty."""
    if pid not in pids:  # it ended without a record of it; the pid may be another process's by now
        return "it has ended"
    if not procfs.has_handler(pid, number):
        return "it does not handle %s" % number.name
    try:
        os.kill(pid, number)
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""
