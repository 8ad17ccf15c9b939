"""The operations behind ``clusterddp debug``: list a node's stopped workers, connect to one, mark the run as attended.

A worker stops at ``breakpoint()`` (worker/hook/rank_debugger.py). It is the user's process: what it says is decoded,
and where it listens is opened without following links.
"""

import contextlib
import fcntl
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ..helper.request import Request
from ..helper.tunnel import tunnel
from ..shared.processes.debug_records import AttendRequest, DebugRequest, StopRecord, StopReport, StopsRequest
from ..shared.schema.record import parse_record, read_record, to_fields
from ..spool.attention import attention
from ..spool.layout import Spool
from ..system.bootstrap import Refused
from ..system.clock import boot_clock
from ..system.small_files import open_regular, sorted_names, try_lock
from .stacks import live_workers
from .worker_server import NoAnswerError, is_open, open_socket

if TYPE_CHECKING:
    from ..shared.run.event_schema import NodeEvent

MOST_STOPS = 256  # of a node that are looked at
RECORD = ".json"  # after a socket's name: where its worker is
MAX_RECORD = 16 * 1024  # bytes
LOCK_TIMEOUT = 0.5  # seconds: who lists the stops has a lock for a moment
CONNECT_TIMEOUT = 5.0  # seconds
NAME = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})\.(\d{1,9})")  # start, local rank, pid, number of the stop
GONE = "it does not wait there any more"


def debug_stops(request: Request) -> List[Dict[str, Any]]:
    """Operation: the stopped workers of the node of a ``StopsRequest``, a ``StopReport`` each, by rank and age."""
    spool = Spool(request.read_args(StopsRequest).spool)
    return [to_fields(report) for report in stops_of(spool, live_workers(spool.events()))]


def stops_of(spool: Spool, live: "Sequence[NodeEvent]") -> List[StopReport]:
    """Which of a node's live workers, or children of theirs, have stopped at a breakpoint, attached to or not."""
    workers = {(event.start, event.local_rank): event for event in live}
    names = [name[: -len(RECORD)] for name in sorted_names(spool.debug) if name.endswith(RECORD)]
    found = filter(None, [_report(spool, workers, name) for name in names[:MOST_STOPS]])
    return sorted(found, key=lambda report: (report.rank, report.child, report.left))


def _report(spool: Spool, workers: "Dict[Tuple[int, int], NodeEvent]", name: str) -> Optional[StopReport]:
    """One stop; None if its worker has ended, or it is none."""
    match = NAME.fullmatch(name)
    worker = workers.get((int(match[1]), int(match[2]))) if match else None
    found = _read_stop(spool, name)
    if match is None or worker is None or found is None or not is_open(int(match[3]), os.path.join(spool.debug, name)):
        return None
    stop, attached = found
    return StopReport(
        name=name,
        rank=worker.rank,
        local_rank=worker.local_rank,
        pid=int(match[3]),
        child=int(match[3]) != worker.pid,
        cause=stop.cause,
        file=stop.file,
        line=stop.line,
        function=stop.function,
        left=max(0.0, stop.until - boot_clock()),
        attached=attached,
    )


def _read_stop(spool: Spool, name: str) -> Optional[Tuple[StopRecord, bool]]:
    """What a worker says of its stop, and whether somebody is attached; None if that is damaged, or gone."""
    try:
        handle = _open_record(spool, name)
        try:
            stop = parse_record(os.read(handle, MAX_RECORD), lambda value: read_record(StopRecord, value, "stop"))
            return stop, not try_lock(handle, fcntl.LOCK_SH)
        finally:
            os.close(handle)
    except (OSError, ValueError):
        return None


def debug(request: Request) -> Dict[str, Any]:
    """Operation: connect the request to the stopped worker of a ``DebugRequest``; raises Refused if that cannot be."""
    asked = request.read_args(DebugRequest)
    spool = Spool(asked.spool)
    with _only_one(spool, asked.name), _connected(os.path.join(spool.debug, asked.name)) as connection:
        tunnel(request, connection)
    return {}


@contextlib.contextmanager
def _only_one(spool: Spool, name: str) -> Iterator[None]:
    """Keep others from attaching to the same stop while the block runs: by a lock on its record."""
    try:
        handle = _open_record(spool, name)
    except OSError as error:
        raise Refused("%s (%s)" % (GONE, os.strerror(error.errno or 0))) from None
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT
        while not try_lock(handle, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise Refused("somebody else is attached there", "`clusterddp debug` lists who waits")
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def _open_record(spool: Spool, name: str) -> int:
    return open_regular(os.path.join(spool.debug, name + RECORD), os.O_RDONLY)


@contextlib.contextmanager
def _connected(path: str) -> Iterator[socket.socket]:
    """A connection to the socket at ``path`` itself; raises Refused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(CONNECT_TIMEOUT)
        try:
            handle = open_socket(path)
            try:
                # A socket's address has at most 107 bytes, and a spool's path may be longer.
                connection.connect("/proc/self/fd/%d" % handle)
            finally:
                os.close(handle)
        except (OSError, NoAnswerError) as error:
            raise Refused("%s (%s)" % (GONE, error)) from None
        yield connection


def attend(request: Request) -> Dict[str, Any]:
    """Operation: mark the run as attended on the node of an ``AttendRequest``, until the operator ends the request."""
    with attention(Spool(request.read_args(AttendRequest).spool)):
        request.send(b"")  # it is marked
        request.read_all()
    return {}
