"""Decode what a worker's server says of its collective operations; total: whatever the bytes, groups or an error.

The format is torch's flight recorder as JSON (torch/csrc/distributed/c10d/FlightRecorder.hpp, version 2.10).
"""

import hashlib
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..shared.collectives.trace_records import (
    CREATED,
    DONE,
    LAST_ENTRIES,
    NCCL,
    SAME_SHAPE,
    STARTED,
    GroupTrace,
    Operation,
)
from ..shared.schema.fields import DamagedError, Fields
from ..shared.schema.json_text import to_json
from ..shared.schema.record import to_fields
from ..shared.wire.frames import parse_json

MAX_ENTRIES = 1 << 17  # of a whole trace
MAX_CONTAINERS = 1 << 18  # objects and lists of a whole trace: each takes 60 to 200 bytes of memory
MAX_NAME = 60  # bytes of JSON of a group's or an operation's name, and of an operation's shape
MAX_GROUPS = 16  # of a worker
MAX_WAITS = 4
COALESCED = "coalesced"  # NCCL's name of several operations in one
WAIT_PREFIX = "pytorch.wait_counter."
_TYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Int": "int32", "Long": "int64",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip


class TraceEntry(NamedTuple):
    """One entry of the flight recorder, as far as it is used."""

    operation: Operation
    progress: int
    created_ns: int
    retired: bool  # its end has been seen by torch itself


class RecordedGroup:
    """All that a worker's flight recorder holds of one process group."""

    def __init__(self, name: str, description: str, ident: int) -> None:
        self.name, self.description, self.ident = name, description, ident
        self.entries: Dict[int, TraceEntry] = {}  # by sequence number
        self.mismatch: Optional[int] = None  # the first sequence number where workers of this host differ

    def keep_order(self) -> List[int]:
        """The sequence numbers, those first that matter most.

        They are the oldest that waits, the newest, the others that wait, and then the finished ones from the newest.
        """
        ordered = sorted(self.entries)
        waiting = [sequence for sequence in ordered if self.entries[sequence].progress != DONE]
        return list(dict.fromkeys((*waiting[:1], ordered[-1], *waiting, *reversed(ordered))))


def read_waits(text: bytes) -> Dict[str, int]:
    """The waits that are active now, in ascending order, and how often each has begun so far; raises DamagedError."""
    active: Dict[str, int] = {}
    for name, counter in Fields({"counters": _parse(text)}, most=MAX_ENTRIES).raw("counters").items():
        fields = Fields(counter, "counters.")
        if fields.number("active_count") and name.startswith(WAIT_PREFIX):
            active[clean(name[len(WAIT_PREFIX) :])] = fields.number("total_calls") if fields.there("total_calls") else 0
    return dict(sorted(active.items())[:MAX_WAITS])


def read_groups(text: bytes, backend: str = "") -> Tuple[RecordedGroup, ...]:
    """All groups of a trace, each with all its operations; raises DamagedError.

    A group may have operations in the traces of two backends, each with numbers of its own: ``backend`` is put behind
    its name.
    """
    trace = Fields({"trace": _parse(text)}, most=MAX_ENTRIES).part("trace")
    groups: Dict[Tuple[str, int], RecordedGroup] = {}
    known: Dict[str, Operation] = {}
    sending: Set[Tuple[str, int]] = set()  # groups whose last entry is a send or a receive
    for entry in trace.array("entries") if trace.there("entries") else ():  # torch leaves out an empty list
        fields = Fields(entry, "trace.entries.", most=MAX_ENTRIES)
        name, description = _group_names(fields)
        ident = fields.number("pg_id")
        if fields.flag("is_p2p"):  # a send or a receive: they have sequence numbers of their own
            sending.add((name, ident))
            continue
        operation, after_send = _operation(fields, known), (name, ident) in sending
        sending.discard((name, ident))
        if operation.name == COALESCED and after_send:  # the end of a batch of sends, under a collective's number
            continue
        group = groups.get((name, ident))
        if group is None:
            group = groups[name, ident] = RecordedGroup(_identifier(name) + backend, clean(description), ident)
        retired = fields.flag("retired")
        done = retired or fields.text("state") == "completed"
        started = fields.text("state") == "started"
        # Of several entries with one number the last is of all of them: NCCL's coalesced operations.
        group.entries[fields.number("collective_seq_id")] = TraceEntry(
            operation=operation,
            progress=DONE if done else STARTED if started else CREATED,
            created_ns=fields.number("time_created_ns"),
            retired=retired,
        )
    return tuple(groups.values())


def keep_reached(groups: Sequence[RecordedGroup]) -> Tuple[RecordedGroup, ...]:
    """Drop a running worker's NCCL operations that are queued behind an unfinished one: the GPU has not begun them.

    A call of NCCL returns at once, and the GPU runs one operation after the other. An operation that is still being
    set up says "completed" (its CUDA event was never recorded), but torch has not retired it: it counts as created.
    """
    nccl = [group for group in groups if group.name.endswith(NCCL)]
    for group in nccl:
        for sequence, entry in group.entries.items():
            if entry.progress == DONE and not entry.retired:
                group.entries[sequence] = entry._replace(progress=CREATED)
    waiting = [entry.created_ns for group in nccl for entry in group.entries.values() if entry.progress != DONE]
    oldest = min(waiting, default=0)
    for group in nccl:
        queued = [n for n, each in group.entries.items() if each.progress == CREATED and each.created_ns > oldest]
        for sequence in queued:
            del group.entries[sequence]
    return tuple(group for group in groups if group.entries)


def mark_mismatches(workers: Iterable[Sequence[RecordedGroup]]) -> None:
    """Mark in the groups of a host's workers the first operation in which the workers differ.

    As for the judge (hang_judge.py), the first, second, … group of a name is the same group for all workers. Unequal
    shapes where operations allow them count only if nothing else differs.
    """
    found: Dict[Tuple[str, int], List[RecordedGroup]] = {}
    for groups in workers:
        counted: Dict[str, int] = {}
        for group in sorted(groups, key=lambda group: group.ident):
            number = counted[group.name] = counted.get(group.name, 0) + 1
            found.setdefault((group.name, number), []).append(group)
    for same in found.values():
        mismatch = _first_mismatch(same)
        for group in same:
            group.mismatch = mismatch if mismatch in group.entries else None


def _first_mismatch(groups: Sequence[RecordedGroup]) -> Optional[int]:
    operations: Dict[int, Set[Operation]] = {}
    for group in groups if len(groups) > 1 else ():
        for sequence, entry in group.entries.items():
            operations.setdefault(sequence, set()).add(entry.operation)
    differing = [
        (not _is_wrong(different), sequence) for sequence, different in operations.items() if len(different) > 1
    ]
    return min(differing)[1] if differing else None


def _is_wrong(operations: Set[Operation]) -> bool:
    """Whether operations that differ cannot belong together; else some have unequal shapes as they may."""
    names = {operation.name for operation in operations}
    return len(names) > 1 or names <= set(SAME_SHAPE)


def cut_groups(groups: Iterable[RecordedGroup], now_ns: int, room: int) -> Tuple[GroupTrace, ...]:
    """The groups that matter most, with as many of their last operations as ``room`` bytes of JSON hold.

    Operations that wait are kept before finished ones, and the one in which workers differ always. ``now_ns`` is the
    worker's wall clock at the look.
    """
    chosen = [(group, group.keep_order()) for group in sorted(groups, key=_urgency)[:MAX_GROUPS]]
    while chosen:
        best: Tuple[GroupTrace, ...] = ()
        low, high = 1, LAST_ENTRIES  # how many are kept: what holds the most is sought by halves
        while low <= high:
            kept = (low + high) // 2
            cut = tuple(_cut(group, order[:kept], now_ns) for group, order in chosen)
            if len(to_json([to_fields(group) for group in cut]).encode()) <= room:
                best, low = cut, kept + 1
            else:
                high = kept - 1
        if best:
            return best
        del chosen[-1]
    return ()


def _urgency(group: RecordedGroup) -> Tuple[bool, bool, int]:
    """Sort key: groups in which somebody waits, then those in which workers differ, then those used last."""
    entries = group.entries.values()
    waits = any(entry.progress != DONE for entry in entries)
    return not waits, group.mismatch is None, -max(entry.created_ns for entry in entries)


def _cut(group: RecordedGroup, kept: Sequence[int], now_ns: int) -> GroupTrace:
    sequences = sorted({*kept} if group.mismatch is None else {*kept, group.mismatch})
    rows = [(sequence, group.entries[sequence]) for sequence in sequences]
    operations = tuple(dict.fromkeys(entry.operation for _, entry in rows))
    indexes = {operation: index for index, operation in enumerate(operations)}
    return GroupTrace(
        name=group.name,
        description=group.description,
        ident=group.ident,
        operations=operations,
        entries=[
            [sequence, indexes[entry.operation], entry.progress, max(0, now_ns - entry.created_ns) // 1000]
            for sequence, entry in rows
        ],
    )


def _parse(text: bytes) -> Any:
    if text.count(b"{") + text.count(b"[") > MAX_CONTAINERS:
        raise DamagedError("it has too many parts")
    try:
        return parse_json(text)
    except ValueError as error:
        raise DamagedError("no JSON: %s" % error) from error


def _group_names(fields: Fields) -> Tuple[str, str]:
    """The group's name and description."""
    texts = fields.array("process_group")
    if {*map(type, texts)} - {str}:
        raise fields.wrong("process_group", texts, "a list of texts")
    name, description = (*texts[:2], "", "")[:2]
    return name, description


def _operation(fields: Fields, known: Dict[str, Operation]) -> Operation:
    """The operation with its shapes for people; its key is of the whole, however much of that is shown."""
    name = fields.any_text("profiling_name").rpartition(":")[2]
    sizes, types = fields.anything("input_sizes"), fields.anything("input_dtypes")
    whole = to_json([name, sizes, types])
    if whole not in known:
        key = hashlib.sha256(whole.encode()).hexdigest()[:8]
        known[whole] = Operation(clean(name), clean(_shape(sizes, types)), key)
    return known[whole]


def _shape(sizes: Any, types: Any) -> str:
    shown: List[str] = []
    if isinstance(sizes, list) and isinstance(types, list):
        for size, kind in zip(sizes[:3], types[:3]):
            shown.append("%s %s" % (_TYPES.get(str(kind), str(kind)), size))
        if len(sizes) > len(shown):
            shown.append("… %d tensors" % len(sizes))
    return ", ".join(shown)


def _identifier(name: str) -> str:
    """A group's name; of two long ones that differ only far behind, two names."""
    cleaned = clean(name)
    if cleaned == name:
        return name
    return clean(cleaned, MAX_NAME - 9) + "-" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def clean(text: str, most: int = MAX_NAME) -> str:
    """Text of a worker without what a terminal would obey, cut to ``most`` bytes of JSON."""
    shown = "".join(character if character.isprintable() else "?" for character in text[:most])
    while len(to_json(shown)) - 2 > most:
        shown = shown[:-1]
    return shown
