"""The schema of a node's events (``events.jsonl``): which kinds there are and the fields of each.

Both sides read events with it. An event is a JSON object with ``event`` and ``time`` (ns, the host's clock) and the
fields of its kind below. An object with a wrong field is no event, since a full disk can truncate records. Unknown
kinds and fields come from a newer version and are kept.
"""

from typing import Any, Dict, Mapping, Optional

from ..schema.fields import DamagedError, Fields
from ..schema.record import MOST, Reader

Event = Dict[str, Any]


def _told(fields: Fields, name: str) -> object:
    return fields.pairs(name) if fields.given(name) else None


# A field in OPTIONAL may be missing or null.
OPTIONAL = (
    "round",
    "pid",
    "signal",
    "told",
    "oom_kills",
    "orphan",
    "reason",
    "error",
    "agent_bytes",
    "world_size",
    "group_world_size",
)
_WORKER: Mapping[str, Reader[Any]] = {
    "start": Fields.number,  # of the workers, within the attempt
    "local_rank": Fields.number,
    "pid": Fields.number,
    "agent_bytes": Fields.number,  # bytes of output that the agent had written by then
}
EVENTS: Mapping[str, Mapping[str, Reader[Any]]] = {
    "worker_started": dict(
        _WORKER,
        rank=Fields.number,
        round=Fields.number,
        world_size=Fields.number,
        group_world_size=Fields.number,  # hosts
    ),
    "worker_exited": dict(
        _WORKER,
        rank=Fields.number,
        exit_code=Fields.number,
        signal=Fields.number,
        told=_told,  # the signals that told it to end: [number, ns]
        oom_kills=Fields.number,  # OOM kills in its memory cgroup while it ran
        orphan=Fields.flag,  # its parent, a process of ours, was killed first
    ),
    "agent_started": {"pid": Fields.number},
    "agent_exited": {"exit_code": Fields.number},
    "carried": {"reason": Fields.text},
    "not_forked": {"reason": Fields.text},
    "not_warm": {"reason": Fields.text},
    "preloaded": {"packages": Fields.text},
    "not_preloaded": {"reason": Fields.text},
    "slow_imports": {
        "start": Fields.number,
        "local_rank": Fields.number,
        "modules": Fields.texts,
        "seconds": Fields.real,
    },
    "stopping": {"reason": Fields.text, "agent_bytes": Fields.number},
    "log_dropped": {"bytes": Fields.number, "limit": Fields.number},
    "log_limit_failed": {"limit": Fields.number, "error": Fields.text},
    "output_lost": {"bytes": Fields.number},
}


def read_event(data: Any) -> Event:
    """Check an event's JSON object and return it.

    Raises:
        DamagedError: it is no event, or a field of its kind is missing or wrong.
    """
    fields = Fields(data, "event.", most=MOST)
    readers = EVENTS.get(fields.text("event"), {})
    fields.integer("time")
    for name, read in readers.items():
        if fields.given(name) or name not in OPTIONAL:
            read(fields, name)
    found: Event = data
    return found


def maybe_event(data: Any) -> Optional[Event]:
    """Like ``read_event``, but None for a damaged event."""
    try:
        return read_event(data)
    except DamagedError:
        return None
