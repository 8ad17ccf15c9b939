"""The request and the answer of ``traces``: each worker's last collective operations, cut to what a judge needs.

They come from torch's flight recorder by a server inside the worker, which is the user's process: the host reads them
by a total decoder (remote/processes/trace_decoder.py) and sends at most ``MAX_WORKER_BYTES`` of each worker.
"""

from typing import List, NamedTuple, Tuple

from ..schema.fields import Fields
from ..schema.record import bulk, field, many, record

MAX_WORKER_BYTES = 4096  # of one worker's part of the answer
MAX_WORLD = 1 << 16  # ranks; each costs whoever judges memory
LAST_ENTRIES = 64  # of a group's entries that are sent at most
HUGE = 1 << 63  # no number of an entry is so large

NCCL = " nccl"  # behind the name of a group in NCCL's own recorder
SAME_SHAPE = ("all_reduce", "reduce", "broadcast")  # operations whose input has to have the same shape on all ranks

MAKING_GROUPS = "c10d."  # how the names of waits begin that end when other ranks make the same call

# The third value of a row: how far the operation is. Gloo never says that one has started.
CREATED, STARTED, DONE = range(3)

# How a thread waits: for a lock or another thread, for its timer, or for data that nothing but a peer or a disk sends.
LOCK, SLEEP, READ = "lock", "sleep", "read"


@record
class TracesRequest(NamedTuple):
    """``traces``: the collective operations of the live workers of a node."""

    spool: str = field(Fields.text)  # the node's folder


@record
class Operation(NamedTuple):
    """One kind of collective operation, as several entries of a group may have it in common."""

    name: str = field(Fields.text)  # as ``all_reduce``
    shape: str = field(Fields.text)  # of its input, for people: ``float32 [4]``; may be cut
    key: str = field(Fields.text)  # equal for two operations with equal name, shapes and types


def _read_entries(fields: Fields, name: str) -> List[List[int]]:
    """Check each row: what is read here is read as it is by the judge, the sentence and others."""
    rows, operations = fields.long_list(name), len(fields.long_list("operations"))
    for row in rows:
        if type(row) is not list or [type(value) for value in row] != [int] * 4 or not 0 <= min(row) <= max(row) < HUGE:
            raise fields.wrong(name, row, "rows of four whole numbers")
        if row[1] >= operations or row[2] > DONE:
            raise fields.wrong(name, row, "rows of sequence number, operation, progress and age")
    return rows


@record
class GroupTrace(NamedTuple):
    """The last operations of one worker in one process group."""

    name: str = field(Fields.text)  # torch's: a number, ``0`` for the default group
    description: str = field(Fields.text)  # the user's, ``default_pg`` for the default group
    ident: int = field(Fields.number)  # grows with each group the worker makes, though names begin anew
    operations: Tuple[Operation, ...] = field(many(Operation))
    # Rows in ascending order of their sequence number: [sequence number, index in ``operations``, CREATED, STARTED or
    # DONE, microseconds from its creation to the look].
    entries: List[List[int]] = bulk(_read_entries)

    @property
    def title(self) -> str:
        """The group's name for people: the user's description, ``default``, or torch's name where there is neither."""
        if self.description in ("", "undefined"):  # the latter is what torch writes where the user gave none
            return self.name.partition(NCCL)[0]
        return "default" if self.description == "default_pg" else self.description


@record
class ThreadWait(NamedTuple):
    """A thread of a worker that waits."""

    thread: int = field(Fields.number)  # its number; the main thread's is the worker's pid
    how: str = field(Fields.text)  # LOCK, SLEEP or READ
    switches: int = field(Fields.number)  # how often it has begun to wait so far


@record
class WorkerTrace(NamedTuple):
    """One worker at the time of a look; the answer is a list of these."""

    rank: int = field(Fields.number)
    local_rank: int = field(Fields.number)
    start: int = field(Fields.number)  # of the workers, within the attempt
    pid: int = field(Fields.number)
    state: str = field(Fields.text)  # the kernel's letter; empty: it has ended
    wchan: str = field(Fields.text)  # where the kernel waits for it
    # CPU time of it and its descendants so far, without that of a look itself, and its main thread's waits for a core
    cpu_ms: int = field(Fields.number)
    io_bytes: int = field(Fields.number)  # what it and its descendants have read and written so far
    children: Tuple[str, ...] = field(Fields.texts)  # the names of its live children, a few
    waits: Tuple[str, ...] = field(Fields.texts, default=())  # the waits outside groups it is in, as ``TCPStore__wait``
    groups: Tuple[GroupTrace, ...] = field(many(GroupTrace), default=())
    why: str = field(Fields.text, default="")  # there are no groups; empty if they were read
    threads: Tuple[ThreadWait, ...] = field(many(ThreadWait), default=())  # that wait: a few, the main one first
    calls: Tuple[int, ...] = field(Fields.numbers, default=())  # how often each of ``waits`` has begun so far
    restarts: int = field(Fields.number, default=0)  # of --max-restarts, those that its agent has made

    @property
    def ended(self) -> bool:
        """Whether the worker's process has exited."""
        return self.state in ("", "Z", "X")
