"""The operation ``ended_traces``: the last collective operations of workers that have ended by themselves.

Each wrote them down itself, by its start-up hook: torch's record as JSON, compressed. A worker is the user's process:
its file is read within limits of bytes and by a total decoder.
"""

import os
import time
import zlib
from typing import Any, Dict, List, Tuple

from ..helper.request import Request
from ..shared.collectives.trace_records import TracesRequest, WorkerTrace
from ..shared.run.event_schema import WORKER_STARTED, NodeEvent, of_kind
from ..shared.schema.fields import DamagedError
from ..shared.schema.record import to_fields
from ..spool.layout import Spool
from ..system.small_files import open_regular_in
from . import trace_decoder
from .traces import MAX_TRACE, Look


def ended_traces(request: Request) -> List[Dict[str, Any]]:
    """Operation: the workers of the last start of ``spool`` that wrote their operations down, as ``WorkerTrace``s."""
    spool = Spool(request.read_args(TracesRequest).spool)
    events = of_kind(spool.events(), WORKER_STARTED)
    last = max((event.start for event in events), default=0)
    found = [(event, _groups(spool, event)) for event in events if event.start == last]
    trace_decoder.mark_mismatches(groups for _, groups in found)
    now = time.time_ns()  # one moment for all, as if they had been looked at together
    return [to_fields(Look(_trace(event), groups, now).cut()) for event, groups in found if groups]


def _trace(event: NodeEvent) -> WorkerTrace:
    return WorkerTrace(event.rank, event.local_rank, event.start, event.pid or 0, "", "", 0, 0, ())


def _groups(spool: Spool, event: NodeEvent) -> Tuple[trace_decoder.RecordedGroup, ...]:
    """All groups of a worker; none if it wrote nothing, or nothing that can be read."""
    path = os.path.join(spool.ended_traces, "%d.%d" % (event.start, event.local_rank))
    try:
        with open(path, "rb", opener=open_regular_in) as file:
            return trace_decoder.read_groups(zlib.decompressobj().decompress(file.read(MAX_TRACE), MAX_TRACE))
    except (OSError, zlib.error, DamagedError):
        return ()
