"""The operations ``traces`` and ``ended_traces``: what a node's workers do, and their last collective operations.

A live worker is asked. One that has ended by itself wrote its operations down, by its start-up hook: torch's record as
JSON, compressed. A worker is the user's process: what it tells is read within limits and by a total decoder.
"""

import os
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..helper.request import Request
from ..shared.collectives.trace_records import MAX_WORKER_BYTES, NCCL, GroupTrace, TracesRequest, WorkerTrace
from ..shared.run.event_schema import WORKER_EXITED, NodeEvent, newest_start, of_kind
from ..shared.schema.fields import DamagedError
from ..shared.schema.json_text import to_json
from ..shared.schema.record import to_fields
from ..spool.layout import Spool
from ..system import procfs
from ..system.small_files import open_regular_in, text_of
from . import trace_decoder
from .server_threads import ServerThreads
from .stacks import kernel_state, live_workers
from .worker_server import NoAnswerError, UnknownHandlerError, ask, is_open
from .worker_threads import core_wait_ms, cpu_ms, look_at_threads

TIMEOUT = 2.0  # seconds for all questions to all workers of a node
MAX_COUNTERS = 1 << 18  # bytes
MAX_TRACE = 8 << 20  # bytes; 2,000 entries, of which torch keeps that many, are about 1 MB
# The recorders of a worker: the question to its server, the file that it leaves, the backend's name in a group's.
RECORDERS = (("fr_trace_json", "", ""), ("dump_nccl_trace_json", ".nccl", NCCL))
AT_ONCE = 32  # workers asked at a time: each trace takes up to 0.1 s of its CPU
MIN_THREADS = 8  # of a server, besides the one that accepts; more on more cores
MAX_PASSING = 1.0  # seconds of a look; on a machine that is not busy it takes some milliseconds
MAX_CHILDREN = 4  # whose names are sent
MAX_WHY = 160  # bytes of JSON
_decoding = threading.Lock()  # one trace at a time is in memory as a whole


class Look(NamedTuple):
    """What was learned of one worker, its trace not yet cut."""

    trace: WorkerTrace
    groups: Tuple[trace_decoder.RecordedGroup, ...] = ()
    at_ns: int = 0  # the wall clock when the worker answered

    def cut(self) -> WorkerTrace:
        """The worker's part of the answer, at most MAX_WORKER_BYTES of JSON."""
        room = MAX_WORKER_BYTES - len(to_json(to_fields(self.trace)).encode())
        groups: Tuple[GroupTrace, ...] = trace_decoder.cut_groups(self.groups, self.at_ns, room)
        return self.trace._replace(groups=groups)


def traces(request: Request) -> List[Dict[str, Any]]:
    """Operation: each worker of the node in ``spool`` that runs, or has exited with code 0, as a ``WorkerTrace``."""
    spool = Spool(request.read_args(TracesRequest).spool)
    return [to_fields(trace) for trace in worker_traces(spool, spool.events())]


def ended_traces(request: Request) -> List[Dict[str, Any]]:
    """Operation: the workers of the last start of ``spool`` that wrote their operations down, as ``WorkerTrace``s."""
    spool = Spool(request.read_args(TracesRequest).spool)
    looks = _look_at_ended(spool, newest_start(spool.events()))
    return [to_fields(trace) for trace in _cut([look for look in looks if look.groups])]


def worker_traces(spool: Spool, events: Sequence[NodeEvent]) -> List[WorkerTrace]:
    """Read the collectives of each running worker, and of those of the last start that have exited with code 0."""
    workers = live_workers(events)
    well = {(event.key, event.pid) for event in of_kind(events, WORKER_EXITED) if not event.exit_code}
    ended = [event for event in newest_start(events) if (event.key, event.pid) in well]
    deadline = time.monotonic() + TIMEOUT
    table = procfs.snapshot() if workers else {}
    with ThreadPoolExecutor(min(AT_ONCE, len(workers) or 1)) as pool:
        looks = list(pool.map(lambda event: look_at(spool, event, table, deadline), workers))
    reached = [look._replace(groups=trace_decoder.keep_reached(look.groups)) for look in looks]
    return _cut([*reached, *_look_at_ended(spool, ended)])


def _cut(looks: Sequence["Look"]) -> List[WorkerTrace]:
    trace_decoder.mark_mismatches(look.groups for look in looks)
    return [look.cut() for look in looks]


def _look_at_ended(spool: Spool, workers: Sequence[NodeEvent]) -> List["Look"]:
    """Read the traces that these exited workers left in files; a worker without a readable file has no groups."""
    now = time.time_ns()  # one moment for all, as if they had been looked at together
    found = []
    for event in workers:
        groups = _written(spool, event)
        why = "it has ended, and wrote nothing down" if groups is None else ""
        trace = WorkerTrace(event.rank, event.local_rank, event.start, event.pid or 0, "", "", 0, 0, (), why=why)
        found.append(Look(trace, groups or (), now))
    return found


def _written(spool: Spool, event: NodeEvent) -> Optional[Tuple[trace_decoder.RecordedGroup, ...]]:
    """All groups in a worker's files; None if it left none that can be read."""
    found: List[Tuple[trace_decoder.RecordedGroup, ...]] = []
    for _, suffix, backend in RECORDERS:
        path = os.path.join(spool.ended_traces, event.key + suffix)
        try:
            with open(path, "rb", opener=open_regular_in) as file:
                text = zlib.decompressobj().decompress(file.read(MAX_TRACE), MAX_TRACE)
            found.append(trace_decoder.read_groups(text, backend))
        except (OSError, zlib.error, DamagedError):
            continue
    return tuple(group for groups in found for group in groups) if found else None


def look_at(spool: Spool, event: NodeEvent, table: Dict[int, procfs.ProcStat], deadline: float) -> Look:
    """One worker's state and operations at this moment, asked for until ``deadline`` of the monotonic clock."""
    pid = event.pid or 0
    state = kernel_state(pid)
    dead = state in ("", *procfs.DEAD_STATES)  # its children may have its socket, but do not answer
    tree = () if dead else (pid, *sorted(procfs.subtree([pid], table, ()) - {pid}))
    threads = look_at_threads(pid)
    used_ms = sum(cpu_ms("/proc/%d" % process, children=True) for process in tree) - threads.idle_ms
    trace = WorkerTrace(
        rank=event.rank,
        local_rank=event.local_rank,
        start=event.start,
        pid=pid,
        state=state,
        wchan=trace_decoder.clean(text_of("/proc/%d/wchan" % pid)),
        cpu_ms=max(0, used_ms) + (0 if dead else core_wait_ms(pid)),
        io_bytes=sum(map(io_bytes, tree)),
        children=tuple(
            trace_decoder.clean(text_of("/proc/%d/comm" % child).strip()) for child in tree[1 : MAX_CHILDREN + 1]
        ),
        threads=threads.waits,
        restarts=event.start if event.restart_count is None else event.restart_count,
        why="it has just ended" if dead else "it is stopped (SIGSTOP)" if state == "T" else "",
    )
    if trace.why:
        return Look(trace)
    path = spool.trace_socket(event.key)
    if not os.path.lexists(path):
        return Look(trace._replace(why="it has not loaded torch.distributed, or this torch has no server for traces"))
    if not is_open(pid, path):
        return Look(trace._replace(why="its script has closed the socket of its server"))
    try:
        server = TraceServer(path, ServerThreads(pid, threads.server[: 1 + _pool_size()]), deadline)
        waits = _waits(server)
        trace = trace._replace(waits=tuple(waits), calls=tuple(waits.values()))
        _pass_threads(server)
        groups = _recorded(server)
        return Look(trace, groups, time.time_ns())
    except NoAnswerError as error:
        why = str(error)
    except DamagedError as error:
        why = "what it tells of itself is damaged: %s" % error
    return Look(trace._replace(why=trace_decoder.clean(why, MAX_WHY)))


class TraceServer:
    """A worker's server, asked until ``deadline``; its threads answer in turn, if they come to it in time."""

    def __init__(self, path: str, threads: ServerThreads, deadline: float) -> None:
        self.path, self.threads, self.deadline = path, threads, deadline
        self.pass_until = min(deadline, time.monotonic() + MAX_PASSING)
        threads.rest(self.pass_until)

    def ask(self, handler: str, limit: int, until: Optional[float] = None) -> bytes:
        """The answer, as ``worker_server.ask``."""
        try:
            return ask(self.path, handler, timeout=(until or self.deadline) - time.monotonic(), limit=limit)
        finally:
            self.threads.rest_again(self.pass_until)


def _pool_size() -> int:
    """How many threads of a server answer."""
    return max(MIN_THREADS, os.sysconf("SC_NPROCESSORS_ONLN") - 1)


def _waits(server: TraceServer) -> Dict[str, int]:
    try:
        return trace_decoder.read_waits(server.ask("wait_counter_values", MAX_COUNTERS))
    except UnknownHandlerError:  # torch before 2.10
        return {}


def _recorded(server: TraceServer) -> Tuple[trace_decoder.RecordedGroup, ...]:
    """All groups of both flight recorders: NCCL has its own, and gloo's may be unknown to a torch that has that."""
    found: List[Tuple[trace_decoder.RecordedGroup, ...]] = []
    unknown = NoAnswerError("")
    for handler, _, backend in RECORDERS:
        try:
            text = server.ask(handler, MAX_TRACE)
        except UnknownHandlerError as error:
            unknown = error
            continue
        with _decoding:
            found.append(trace_decoder.read_groups(text, backend))
    if not found:
        raise unknown
    return tuple(group for groups in found for group in groups)


def _pass_threads(server: TraceServer) -> None:
    """Call the server's other threads, so that those that made the last traces make the next.

    Torch's server has a pool of threads that answer in turn, and each keeps the memory of its largest answer: 4 MB for
    as many entries as the hook has torch keep. With one trace by each, a worker on 64 cores would grow by 0.3 GB.
    """
    for _ in range(_pool_size() - 1 - len(RECORDERS)):  # without those of the questions
        try:
            server.ask("ping", MAX_COUNTERS, server.pass_until)
        except UnknownHandlerError:
            pass  # one of the threads said so
        except NoAnswerError:
            break


def io_bytes(pid: int) -> int:
    """The bytes that a process has read and written so far; 0 if that is not known."""
    values: Dict[str, int] = {}
    for line in text_of("/proc/%d/io" % pid).splitlines():
        name, _, value = line.partition(": ")
        values[name] = int(value) if value.isdigit() else 0
    return values.get("rchar", 0) + values.get("wchar", 0)
