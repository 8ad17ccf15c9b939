"""The messages of the stall guard: the leader asks what all workers do, and says that the run is stalled."""

import json
from typing import List, NamedTuple, Optional, Tuple, Union

from ..shared.collectives.trace_records import MAX_WORLD, WorkerTrace
from ..shared.processes.worker_stacks import WorkerStack
from ..shared.schema.fields import Fields
from ..shared.schema.record import field, many, maybe, record, to_fields
from .message_fields import (
    ATTEMPT,
    COUNT,
    MAX_CAUSE,
    MAX_PARTS,
    MAX_REASON,
    MAX_TABLE_PART,
    MEMBER,
    number_in,
    text_up_to,
)


@record
class LookRequest(NamedTuple):
    """The leader asks what the workers do, and for the stacks of ``ranks``; ``number`` is of its looks."""

    attempt: int = field(ATTEMPT)
    number: int = field(COUNT)
    ranks: Tuple[int, ...] = field(Fields.numbers, default=())


@record
class LookPart(NamedTuple):
    """Part ``part`` (from 0) of the ``parts`` parts of what a node's workers do."""

    attempt: int = field(ATTEMPT)
    number: int = field(COUNT)  # the request's
    part: int = field(number_in(0, MAX_PARTS - 1))
    parts: int = field(number_in(1, MAX_PARTS))
    world_size: int = field(number_in(0, MAX_WORLD))  # as the newest workers know it; 0: none has started yet
    debugged: bool = field(Fields.flag)  # one of them is at a breakpoint, or somebody debugs it
    traces: Tuple[WorkerTrace, ...] = field(many(WorkerTrace))
    stacks: Tuple[WorkerStack, ...] = field(many(WorkerStack))


@record
class StallNotice(NamedTuple):
    """The leader says that the run is stalled, and why; a worker may be named that is killed, to start all anew."""

    attempt: int = field(ATTEMPT)
    stall: str = field(text_up_to(MAX_CAUSE))  # which one it is: of two notices of one stall the second is a repetition
    text: str = field(text_up_to(MAX_REASON))
    member: Optional[int] = field(maybe(MEMBER), default=None)  # whose worker is killed; None: nobody's
    start: int = field(COUNT, default=0)  # of that worker, or else of the workers that hang
    local_rank: int = field(COUNT, default=0)


def look_parts(look: LookPart) -> List[LookPart]:
    """Split what a node's workers do into parts that each fit in a frame."""
    empty = look._replace(traces=(), stacks=())
    parts, size = [empty], 0
    items: Tuple[Union[WorkerTrace, WorkerStack], ...] = (*look.traces, *look.stacks)
    for item in items:
        item_size = len(json.dumps(to_fields(item), separators=(",", ":")))
        if size and size + item_size > MAX_TABLE_PART:
            parts.append(empty)
            size = 0
        size += item_size
        last = parts[-1]
        if isinstance(item, WorkerTrace):
            parts[-1] = last._replace(traces=(*last.traces, item))
        elif isinstance(item, WorkerStack):
            parts[-1] = last._replace(stacks=(*last.stacks, item))
    return [part._replace(part=number, parts=len(parts)) for number, part in enumerate(parts)]
