"""The events of a node (``events.jsonl``): which there are, and what each one says. Both sides read them by this.

An event is a JSON object with ``event`` and ``time`` (ns, the host's clock) and the fields of its kind below; what
has a wrong field is no event, for a full disk tears records. Other kinds and fields are a newer version's, and stay.
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
    "agent_bytes": Fields.number,  # so much the agent had written then
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
        oom_kills=Fields.number,  # by the kernel, in its memory group meanwhile
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
    """An event from its JSON object.

    Raises:
        DamagedError: it is none, or a field of its kind is missing or wrong.
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
    """An event, or None where it is damaged."""
    try:
        return read_event(data)
    except DamagedError:
        return None
