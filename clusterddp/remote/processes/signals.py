"""The operation ``signal``: signal a node's workers, those alone that handle it: a notice must not kill the others."""

import os
import signal as signals
from typing import Any, Dict, List, Set

from ..helper.request import Request
from ..spool.layout import Spool
from ..system import procfs
from ..system.bootstrap import Refused
from .ownership import NodeProcesses
from .stacks import live_workers


def signal(request: Request) -> List[Dict[str, Any]]:
    """Send ``signal`` (as ``SIGUSR1``) to the live workers of ``spool``; returns ``{rank, local_rank, pid, why}`` each.

    ``why`` says why it was not sent; empty where it was. Raises Refused if this host knows no such signal.
    """
    try:
        number = signals.Signals[request.args["signal"]]
    except KeyError:
        raise Refused("no signal is called %s here" % request.args["signal"]) from None
    spool = Spool(request.args["spool"])
    ours = {process.pid for process in NodeProcesses.of(spool, spool.supervisor()).find()}
    return [
        {
            "rank": event.rank,
            "local_rank": event.local_rank,
            "pid": event.pid,
            "why": _send(event.pid or 0, number, ours),
        }
        for event in live_workers(spool.events())
    ]


def _send(pid: int, number: signals.Signals, ours: Set[int]) -> str:
    """Send a signal to a worker; the reason if it was not sent, else empty."""
    if pid not in ours:  # it ended without a record of it; the pid may be another process's by now
        return "it has ended"
    if not procfs.has_handler(pid, number):
        return "it does not handle %s" % number.name
    try:
        os.kill(pid, number)
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""
