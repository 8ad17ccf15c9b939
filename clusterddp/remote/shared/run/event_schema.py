"""A node's events (``events.jsonl``): which kinds there are, the fields of each, and the value that both sides read.

An event lies on the disk and travels as a JSON object with ``event`` (its kind), ``time`` (ns, the host's clock) and
the fields of its kind. An object with a wrong field is no event, since a full disk can truncate records. Fields of
unknown kinds, and unknown fields, come from a newer version and are kept in ``more``.
"""

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from ..schema.fields import DamagedError, Fields
from ..schema.record import MAX_LENGTH, field, readers_of, record, to_plain
from .plan import worker_key

WORKER_STARTED, WORKER_EXITED, AGENT_EXITED, STOPPING = "worker_started", "worker_exited", "agent_exited", "stopping"
STALLED_EVENT = "stalled"


@record
class NodeEvent(NamedTuple):
    """One event. A field that its kind does not have, or that is missing or null, has its default."""

    kind: str = field(lambda fields, _: fields.text("event"))
    time: int = field(Fields.integer)  # ns
    start: int = field(Fields.number, default=0)  # of the workers, within the attempt
    local_rank: int = field(Fields.number, default=0)
    rank: int = field(Fields.number, default=0)
    pid: Optional[int] = field(Fields.number, default=None)
    agent_bytes: Optional[int] = field(Fields.number, default=None)  # of output that the agent had written by then
    round: Optional[int] = field(Fields.number, default=None)
    world_size: Optional[int] = field(Fields.number, default=None)
    group_world_size: Optional[int] = field(Fields.number, default=None)  # hosts
    restart_count: Optional[int] = field(Fields.number, default=None)  # of --max-restarts, by its agent
    exit_code: int = field(Fields.number, default=0)
    signal: Optional[int] = field(Fields.number, default=None)
    # the signals that told it to end: [number, ns]
    signals_received: Optional[Tuple[Tuple[int, int], ...]] = field(Fields.pairs, default=None)
    oom_kills: Optional[int] = field(Fields.number, default=None)  # OOM kills in its memory cgroup while it ran
    orphan: Optional[bool] = field(Fields.flag, default=None)  # its parent, a process of ours, was killed first
    reason: str = field(Fields.text, default="")
    packages: str = field(Fields.text, default="")
    modules: Tuple[str, ...] = field(Fields.texts, default=())
    seconds: float = field(Fields.real, default=0.0)
    bytes: int = field(Fields.number, default=0)
    limit: int = field(Fields.number, default=0)
    error: str = field(Fields.text, default="")
    more: Mapping[str, Any] = {}

    @property
    def key(self) -> str:
        """The key of the worker that the event is about: its files begin with it."""
        return worker_key(self.start, self.local_rank)


# A field in OPTIONAL may be missing or null.
OPTIONAL = (
    "round",
    "pid",
    "signal",
    "signals_received",
    "oom_kills",
    "orphan",
    "reason",
    "error",
    "agent_bytes",
    "world_size",
    "group_world_size",
    "restart_count",
)
_WORKER = ("start", "local_rank", "pid", "agent_bytes", "rank")
EVENTS: Mapping[str, Tuple[str, ...]] = {
    WORKER_STARTED: (*_WORKER, "round", "world_size", "group_world_size", "restart_count"),
    WORKER_EXITED: (*_WORKER, "exit_code", "signal", "signals_received", "oom_kills", "orphan"),
    "agent_started": ("pid",),
    AGENT_EXITED: ("exit_code",),
    "carried": ("reason",),
    "not_forked": ("reason",),
    "not_warm": ("reason",),
    "preloaded": ("packages",),
    "not_preloaded": ("reason",),
    "slow_imports": ("start", "local_rank", "modules", "seconds"),
    STOPPING: ("reason", "agent_bytes"),
    STALLED_EVENT: ("reason", "start", "local_rank", "pid"),  # pid: of the worker that was killed to start all anew
    "log_dropped": ("bytes", "limit"),
    "log_limit_failed": ("limit", "error"),
    "output_lost": ("bytes",),
}


def read_event(data: Any) -> NodeEvent:
    """Read an event from its JSON object; raises DamagedError."""
    fields, readers = Fields(data, "event.", most=MAX_LENGTH), readers_of(NodeEvent)
    kind = fields.text("event")
    names = EVENTS.get(kind, ())
    found = {name: readers[name](fields, name) for name in names if fields.given(name) or name not in OPTIONAL}
    more = fields.rest(("event", "time", *names))
    return NodeEvent(kind=kind, time=fields.integer("time"), more=more, **found)


def maybe_event(data: Any) -> Optional[NodeEvent]:
    """Like ``read_event``, but None for a damaged event."""
    try:
        return read_event(data)
    except DamagedError:
        return None


def event_json(event: NodeEvent) -> Dict[str, Any]:
    """Return an event as its JSON object."""
    found = {"event": event.kind, "time": event.time, **event.more}
    for name in EVENTS.get(event.kind, ()):
        found[name] = to_plain(getattr(event, name))
    return found


def of_kind(events: Iterable[NodeEvent], kind: str) -> List[NodeEvent]:
    """Return the events of one kind."""
    return [event for event in events if event.kind == kind]


def last_start(events: Iterable[NodeEvent]) -> int:
    """Return the number of a node's newest start of workers; 0 before the first."""
    return max((event.start for event in events if event.kind == WORKER_STARTED), default=0)


def newest_start(events: Iterable[NodeEvent]) -> List[NodeEvent]:
    """Return the events ``worker_started`` of a node's newest start of workers."""
    started = of_kind(events, WORKER_STARTED)
    last = last_start(started)
    return [event for event in started if event.start == last]
