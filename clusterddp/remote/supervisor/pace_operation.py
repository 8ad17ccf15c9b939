"""The operation ``pace``: how often and when each live worker of a node calls collective operations, for ``top``."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from ..helper.request import Request
from ..logs.time_index import last_growth
from ..processes.stacks import live_workers
from ..processes.trace_decoder import RecordedGroup
from ..processes.traces import AT_ONCE, TIMEOUT, Look, look_at
from ..shared.collectives.pace_records import MAX_ENTRIES, MAX_STEP, GroupPace, NodePace, PaceRequest, WorkerPace
from ..shared.run.event_schema import NodeEvent
from ..shared.schema.record import to_fields
from ..spool.layout import Spool
from ..system import procfs
from ..system.small_files import text_of

RATE_NS = 10_000_000_000  # over which operations are counted
MAX_GROUPS = 16  # of a worker that are sent


def pace(request: Request) -> Dict[str, Any]:
    """Operation: the live workers of ``spool``; takes a ``PaceRequest``, returns a ``NodePace``."""
    deadline = time.monotonic() + TIMEOUT
    asked = request.read_args(PaceRequest)
    spool, most = Spool(asked.spool), min(asked.most, MAX_ENTRIES)
    workers = live_workers(spool.events())
    table = procfs.snapshot() if workers else {}
    with ThreadPoolExecutor(min(AT_ONCE, len(workers) or 1)) as pool:
        found = pool.map(lambda event: _pace_of(spool, event, look_at(spool, event, table, deadline), most), workers)
        return to_fields(NodePace(tuple(found), _time_left(spool)))


def _pace_of(spool: Spool, event: NodeEvent, look: Look, most: int) -> WorkerPace:
    trace = look.trace
    return WorkerPace(
        rank=trace.rank,
        local_rank=trace.local_rank,
        start=trace.start,
        pid=trace.pid,
        memory=_resident_bytes(trace.pid),
        per_second=calls_per_second(look.groups, look.at_ns),
        output_ms=_output_age(spool, event),
        waits=trace.waits,
        groups=cut(look.groups, most),
        why=trace.why,
    )


def calls_per_second(groups: Iterable[RecordedGroup], now_ns: int) -> float:
    """How many operations were called a second, over RATE_NS or as far back as the recorder goes."""
    called = [entry.created_ns for group in groups for entry in group.entries.values()]
    ages = [max(0, now_ns - time_ns) for time_ns in called]
    seconds = max(min(max(ages, default=0), RATE_NS), 1_000_000) / 1e9
    return round(sum(age <= RATE_NS for age in ages) / seconds, 3)


def cut(groups: Sequence[RecordedGroup], most: int = MAX_ENTRIES) -> Tuple[GroupPace, ...]:
    """The last operations of the groups used last: of several with one name, as after a new start, only the newest."""
    newest: Dict[str, RecordedGroup] = {}
    for group in sorted(groups, key=lambda group: group.ident):
        if group.entries:
            newest[group.name] = group
    kept = sorted(newest.values(), key=_last_call)[-MAX_GROUPS:]
    return tuple(_cut_group(group, max(1, most // len(kept))) for group in kept)


def _last_call(group: RecordedGroup) -> int:
    return max(entry.created_ns for entry in group.entries.values())


def _cut_group(group: RecordedGroup, most: int) -> GroupPace:
    sequences = sorted(group.entries)[-most:]
    called = [group.entries[sequence].created_ns // 1000 for sequence in sequences]
    steps: List[int] = []
    for number in range(1, len(sequences)):
        further, later = sequences[number] - sequences[number - 1], called[number] - called[number - 1]
        if further > MAX_STEP or abs(later) > MAX_STEP:  # no recorder writes such numbers
            break
        steps += (further, later)
    return GroupPace(group.name, group.ident, sequences[0], called[0], steps)


def _resident_bytes(pid: int) -> int:
    """The memory of a process that is in RAM; 0 if it has ended."""
    fields = text_of("/proc/%d/statm" % pid).split()
    return int(fields[1]) * os.sysconf("SC_PAGESIZE") if len(fields) > 1 else 0


def _output_age(spool: Spool, event: NodeEvent) -> Optional[int]:
    """Milliseconds since a worker printed; None if it never has."""
    base = os.path.join(spool.logs, event.key)
    times = [last_growth(base + end) for end in (".out", ".err")]
    last = max((time_ns for time_ns in times if time_ns is not None), default=None)
    return None if last is None else max(0, time.time_ns() - last) // 1_000_000


def _time_left(spool: Spool) -> Optional[float]:
    """Seconds until the run's time limit, which its supervisor counts from its own start; None without one."""
    plan, record = spool.readable_plan(), spool.recorded_supervisor()
    if not plan or not plan.settings.time_limit or not record or record.start_ticks is None:
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - record.start_ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, round(plan.settings.time_limit - age, 1))
