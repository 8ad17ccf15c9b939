"""The paths and records of a node's spool, and the node's state as far as its files show it.

    <state>/runs/<run>/<attempt>/<node_rank>-<host>/
        plan.json secrets.json quoted/ control.key worker remote.pyz hook/ lock supervisor.json
        events.jsonl logs/ errors/ bundles/ stacks/ traces/ ended/ debug/ torch/ program/ committed stop.json
        exit.json verdict.json claim.<member>

One node touches only its own folder: a home may be shared by all hosts, and two nodes may share a machine.
"""

import errno
import fcntl
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, TypeVar

from ..shared.run.event_schema import WORKER_STARTED, NodeEvent
from ..shared.run.plan import PEERS, PLAN, SECRETS, SUPERVISOR, NodePlan, read_plan
from ..shared.run.run_state import RunState
from ..shared.run.spool_records import (
    ExitRecord,
    PeersRecord,
    Ready,
    StopOrder,
    SupervisorRecord,
    read_exit,
    read_peers,
    read_ready,
    read_stop_order,
)
from ..shared.schema.json_text import read_json, to_json
from ..shared.schema.record import parse_record, read_record, to_fields
from ..system import disk_space, procfs
from ..system.bootstrap import RUNS, Refused, write_json, write_private
from ..system.small_files import is_locked, names_in, try_lock
from .events import append_event, read_events
from .quoted import drop_secrets, redaction_of
from .room import free_unneeded
from .supervisor_identity import clock_step, this_process

if TYPE_CHECKING:
    from ..shared.verdict.judge import VerdictRecord

STOP, EXIT, VERDICT, COMMITTED = "stop.json", "exit.json", "verdict.json", "committed"
CONTROL_KEY, LEASE = "control.key", "lease"
RECORDS = (STOP, EXIT)  # space is reserved for them: they must be written on a full disk too
LOCK_TIMEOUT = 0.5  # seconds: a process that tests whether the lock is held has it for a moment itself
T = TypeVar("T")


def record_at(path: str, read: Callable[[Any], T]) -> Optional[T]:
    """Read a record from a file of a run; None if the file is missing. Raises Refused if it is damaged."""
    try:
        with open(path, "rb") as stream:
            data = stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return parse_record(data, read)
    except ValueError as error:
        raise Refused("%s is damaged: %s" % (path, error), "remove that run's folder") from None


class Spool:
    """One node's folder of one attempt: its paths, lock and records."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._lock: Optional[int] = None
        self._unwritten_exit: Optional[ExitRecord] = None  # the exit record, where it could not be written

    @classmethod
    def of(cls, state: str, run: str, attempt: int, node: str) -> "Spool":
        """The spool of ``node`` (``<node_rank>-<host>``)."""
        return cls(os.path.join(state, RUNS, run, str(attempt), node))

    def in_attempt(self, attempt: int, node: str) -> "Spool":
        """The spool of ``node`` in another attempt of the same run."""
        run = os.path.dirname(os.path.dirname(self.folder))
        return Spool(os.path.join(run, str(attempt), node))

    def path(self, *names: str) -> str:
        """A path inside the spool."""
        return os.path.join(self.folder, *names)

    @property
    def code(self) -> str:
        """Our code, as the run's own processes import it."""
        return self.path("remote.pyz")

    @property
    def logs(self) -> str:
        """The folder of the output files."""
        return self.path("logs")

    @property
    def traces(self) -> str:
        """The folder of the sockets at which workers answer for their collective operations; missing if they do not."""
        return self.path("traces")

    @property
    def ended_traces(self) -> str:
        """The folder of the operations that workers wrote down when they ended."""
        return self.path("ended")

    def trace_socket(self, worker: str) -> str:
        """The socket of the worker of this key."""
        return os.path.join(self.traces, worker)

    @property
    def debug(self) -> str:
        """The folder of the sockets at which stopped workers wait for `clusterddp debug`."""
        return self.path("debug")

    @property
    def events_file(self) -> str:
        """The file of all events, a line each."""
        return self.path("events.jsonl")

    @property
    def state(self) -> str:
        """The state folder, from the folder's path."""
        return os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(self.folder))))

    @property
    def run(self) -> str:
        """The run id, from the folder's path."""
        return self.folder.split(os.sep)[-3]

    @property
    def attempt(self) -> int:
        """The attempt's number, from the folder's path."""
        return int(self.folder.split(os.sep)[-2])

    @property
    def host(self) -> str:
        """The host's name in the inventory, by the folder's name."""
        return os.path.basename(self.folder).partition("-")[2]

    def plan(self) -> NodePlan:
        """The node's plan; raises Refused if there is none, or it is damaged."""
        plan = self.maybe_plan()
        if plan is None:
            raise Refused("%s has no plan" % self.folder, "its start was cut short; start a new run")
        return plan

    def maybe_plan(self) -> Optional[NodePlan]:
        """The node's plan; None while a start has not written it yet. Raises Refused if it is damaged."""
        return self._record(PLAN, read_plan)

    def readable_plan(self) -> Optional[NodePlan]:
        """The node's plan; None where it is missing or damaged, for callers that can do without it."""
        return self._readable(PLAN, read_plan)

    def write_plan(self, plan: NodePlan) -> None:
        """Replace the node's plan."""
        write_json(self.path(PLAN), to_fields(plan))

    def _record(self, name: str, read: Callable[[Any], T]) -> Optional[T]:
        """Read a record of the spool; None if it is missing."""
        return record_at(self.path(name), read)

    def _readable(self, name: str, read: Callable[[Any], T]) -> Optional[T]:
        """Read a record of the spool; None if it is missing or damaged."""
        try:
            return self._record(name, read)
        except Refused:
            return None

    def committed(self) -> Optional[Ready]:
        """The commit record: all nodes are ready; None before."""
        return self._record(COMMITTED, read_ready)

    def write_committed(self, ready: Ready) -> None:
        """Record that every node is ready."""
        write_json(self.path(COMMITTED), to_fields(ready))

    def peers(self) -> Optional[PeersRecord]:
        """What the node knows of the other nodes, or None."""
        return self._record(PEERS, read_peers)

    def write_peers(self, known: Dict[str, Any]) -> None:
        """Record what the node knows of the other nodes."""
        write_json(self.path(PEERS), known, durable=False)

    def store_port(self) -> int:
        """The port of the rendezvous store; 0 while unknown."""
        return (self.committed() or Ready()).store

    def exit_record(self) -> Optional[ExitRecord]:
        """How the node ended; None where it has not, or the record is damaged."""
        return self._unwritten_exit or self._readable(EXIT, read_exit)

    def verdict(self) -> "Optional[VerdictRecord]":
        """The run's verdict as recorded on this node; None where there is none, or it is damaged."""
        from ..shared.verdict.judge import read_verdict  # slow to import, and most processes never ask

        return self._readable(VERDICT, read_verdict)

    def write_verdict(self, verdict: "VerdictRecord") -> None:
        """Record the run's verdict on this node."""
        write_json(self.path(VERDICT), to_fields(verdict))

    def events(self) -> List[NodeEvent]:
        """All events so far."""
        return read_events(self.events_file)

    def event(self, name: str, **fields: Any) -> None:
        """Append an event."""
        append_event(self.events_file, name, **fields)

    def write_supervisor(self) -> None:
        """Record this process as the node's supervisor."""
        write_json(self.path(SUPERVISOR), to_fields(this_process()))

    def recorded_supervisor(self) -> Optional[SupervisorRecord]:
        """Who the supervisor is; None before one has started. It is written once the lock is held."""
        value = read_json(self.path(SUPERVISOR))
        return read_record(SupervisorRecord, value, "supervisor") if value else None

    def supervisor(self) -> Optional[int]:
        """The pid of the live supervisor, or None: pid, start time and boot must all be the recorded ones."""
        record = self.recorded_supervisor()
        here = record and record.boot == procfs.boot_identity() and procfs.is_process(record.pid, record.start_ticks)
        return record.pid if record and here else None

    def alive(self) -> bool:
        """Whether a supervisor holds the lock; it holds it as long as it runs. Raises OSError if a link is there."""
        return is_locked(self.path("lock"))

    def at_work(self) -> bool:
        """Whether a supervisor holds the lock and the node takes part in an attempt or still may."""
        alive, ended = self.alive(), self.exit_record()
        return alive and not (ended and not ended.pending)

    def take_lock(self) -> bool:
        """Take the lock for this process's life or until ``release_lock``; False if another process holds it."""
        handle = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + LOCK_TIMEOUT
        while not try_lock(handle, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                os.close(handle)
                return False
            time.sleep(0.02)
        self._lock = handle
        return True

    def release_lock(self) -> None:
        """Release the lock, after the last write to the spool."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def stop_order(self) -> Optional[StopOrder]:
        """The order to stop the run, or None. Every later start of this run refuses to go against it."""
        return self._record(STOP, read_stop_order)

    def write_stop_order(self, reason: str, grace: float) -> None:
        """Record an order to stop the run. The first order stands, but a shorter grace replaces a longer one."""
        earlier = self.stop_order()
        if earlier is None or grace < earlier.grace:
            self._write_record(STOP, to_fields(StopOrder(earlier.reason if earlier else reason, grace)))

    def _write_record(self, name: str, value: Any) -> None:
        """Write a record; on a full disk, into the space reserved for it."""
        try:
            write_json(self.path(name), value)
        except OSError as error:
            if error.errno not in disk_space.FULL_ERRNOS:
                raise
            try:
                disk_space.write_reserved(self.path(name), to_json(value).encode())
            except FileNotFoundError:  # the space was used already; an earlier order stands
                if name != STOP or not os.path.exists(self.path(name)):
                    raise error from None

    def control_key(self) -> bytes:
        """The run's key for run control."""
        with open(self.path(CONTROL_KEY), "rb") as stream:
            return stream.read()

    def write_control_key(self, key: bytes) -> None:
        """Write the run's key for run control."""
        write_private(self.path(CONTROL_KEY), key, durable=False)

    def lease(self) -> Optional[str]:
        """The random token that the operator's last renewal of the lease wrote; None where there was none."""
        token = read_json(self.path(LEASE))
        return token if isinstance(token, str) else None

    def renew_lease(self) -> None:
        """Renew the lease: write a new random token. Under Slurm the login host does it, whose boot clock is no use."""
        write_json(self.path(LEASE), os.urandom(8).hex(), durable=False)

    def secrets(self) -> Dict[str, str]:
        """The values of the run's secrets; empty where there are none, or no worker may start any more."""
        values: Dict[str, str] = read_json(self.path(SECRETS)) or {}
        return values

    def drop_secrets(self) -> None:
        """Remove the files with secrets, which are needed only while workers may start and orders may come."""
        key = self.path(CONTROL_KEY)
        removals: List[Callable[[], None]] = [lambda: drop_secrets(self.folder), lambda: os.unlink(key)]
        for remove in removals:
            try:
                remove()
            except OSError as error:  # none are left; or a read-only disk: retention and `down` remove the folder later
                if error.errno not in (errno.ENOENT, errno.EROFS):
                    raise

    def write_exit(self, state: str, exit_code: int, reason: str, **fields: Any) -> None:
        """Write the exit record and an ``ended`` event, and free the reserved space."""
        record = dict(fields, state=state, exit_code=exit_code, reason=reason, ended=time.time_ns())
        record["clock_step"] = clock_step(self.recorded_supervisor())
        # A process may have put a secret into its command line.
        record["survivors"] = redaction_of(self.folder).value(fields.get("survivors", []), longest=0)
        if not fields.get("pending"):
            self.drop_secrets()
        self._keep_exit(record)
        if self._unwritten_exit:
            return
        self.event("ended", **record)
        for name in RECORDS:
            disk_space.free_reserved(self.path(name))
        if not fields.get("pending"):
            free_unneeded(self.folder)

    def make_exit_final(self, reason: str) -> None:
        """Mark the exit record as final: ``reason`` says why no attempt follows, or which one."""
        record = self.exit_record()
        if record:
            self._keep_exit(to_fields(record._replace(pending=False, final=reason)))

    def _keep_exit(self, record: Any) -> None:
        """Write the exit record; where that fails for good this process alone answers with it."""
        unwritten = None
        try:
            self._write_record(EXIT, record)
        except OSError as error:
            if error.errno not in disk_space.LASTING_ERRNOS:
                raise
            unwritten = read_exit(record)
        self._unwritten_exit = unwritten


def all_spools(state: str, run: str = "") -> Iterator[Spool]:
    """Every spool on this host, or of one run; where hosts share a home, the other hosts' spools too."""
    runs = os.path.join(state, RUNS)
    for name in sorted(names_in(runs)) if not run else [run]:
        for attempt in sorted(filter(str.isdigit, names_in(os.path.join(runs, name))), key=int):
            for node in sorted(names_in(os.path.join(runs, name, attempt))):
                yield Spool(os.path.join(runs, name, attempt, node))


def node_state(spool: Spool, exit_record: Optional[ExitRecord], events: Sequence[NodeEvent], *, alive: bool) -> str:
    """The node's state, as docs/status.md names them; ``lost``: the supervisor ended without an exit record."""
    if exit_record and not (exit_record.pending and alive):
        return exit_record.state
    if exit_record or (alive and spool.plan().standby):
        return RunState.QUEUED  # between two attempts, or a spare
    if not alive:
        record = spool.recorded_supervisor()
        return RunState.LOST if record or is_stale(spool) else RunState.STARTING
    started = any(event.kind == WORKER_STARTED for event in events)
    return RunState.RUNNING if started else RunState.STARTING


def rebooted(spool: Spool) -> bool:
    """Whether this machine was rebooted since the node's supervisor started."""
    record = spool.recorded_supervisor()
    return record is not None and record.boot != procfs.boot_identity()


def is_starting(spool: Spool) -> bool:
    """Whether a run's folder may be that of a start in progress: less than a minute old, without a supervisor yet."""
    try:
        return not (is_stale(spool) or spool.recorded_supervisor() or spool.exit_record() or is_stale(spool))
    except FileNotFoundError:  # another connection has just removed it: before, or as the last look shows, meanwhile
        return False


def is_stale(spool: Spool) -> bool:
    """Whether a spool is older than a minute: without a supervisor it is then an interrupted start."""
    return time.time() - os.stat(spool.folder).st_mtime > 60
