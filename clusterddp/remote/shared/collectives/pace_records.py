"""The request and the answer of ``pace``: how often and when each worker calls collective operations.

A worker is the user's process: its host cuts what it tells to ``MAX_ENTRIES`` operations, and what arrives here is
checked again.
"""

from typing import Dict, List, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import bulk, field, many, record

MAX_ENTRIES = 640  # operations of a worker that are sent, about 5 KB
MAX_STEP = 1 << 53  # of a sequence number or of microseconds, from one operation to the next


@record
class PaceRequest(NamedTuple):
    """``pace``: the pace of the live workers of a node."""

    spool: str = field(Fields.text)  # the node's folder
    # operations of each worker that are sent at most; of many ranks fewer, or they fill the asker's memory
    most: int = field(Fields.number, default=MAX_ENTRIES)


def _steps(fields: Fields, name: str) -> List[int]:
    value = fields.long_list(name)
    whole = not {*map(type, value)} - {int} and len(value) % 2 == 0 and len(value) <= 2 * MAX_ENTRIES
    if not whole or any(abs(step) > MAX_STEP for step in value) or any(step < 1 for step in value[::2]):
        raise fields.wrong(name, value, "pairs of whole numbers")
    return value


@record
class GroupPace(NamedTuple):
    """When one worker called the last operations of one process group, by its host's wall clock."""

    name: str = field(Fields.text)  # torch's: a number, ``0`` for the default group
    ident: int = field(Fields.number)  # grows with each group the worker makes
    first: int = field(Fields.number)  # the sequence number of the first of these operations
    called_us: int = field(Fields.number)  # when it was called, in microseconds since 1970
    # For each that follows: its sequence number less the one before, its microseconds less those before.
    steps: List[int] = bulk(_steps)

    def calls(self) -> Dict[int, int]:
        """Sequence number → ns when the operation was called."""
        sequence, called_us = self.first, self.called_us
        found = {sequence: called_us * 1000}
        for further, later in zip(self.steps[::2], self.steps[1::2]):
            sequence, called_us = sequence + further, called_us + later
            found[sequence] = called_us * 1000
        return found


@record
class WorkerPace(NamedTuple):
    """One live worker."""

    rank: int = field(Fields.number)
    local_rank: int = field(Fields.number)
    start: int = field(Fields.number)  # of the workers, within the attempt
    pid: int = field(Fields.number)
    memory: int = field(Fields.number)  # bytes of its own process that are in memory
    per_second: float = field(Fields.real)  # collective operations that it has called lately
    output_ms: Optional[int] = field(Fields.maybe_number, default=None)  # since it printed; None if it never has
    waits: Tuple[str, ...] = field(Fields.texts, default=())  # the waits outside groups it is in
    groups: Tuple[GroupPace, ...] = field(many(GroupPace), default=())
    why: str = field(Fields.text, default="")  # there are no groups; empty if they were read


@record
class NodePace(NamedTuple):
    """The answer."""

    workers: Tuple[WorkerPace, ...] = field(many(WorkerPace))
    # seconds until the run's time limit; None if it has none
    time_left: Optional[float] = field(Fields.maybe_real, default=None)
