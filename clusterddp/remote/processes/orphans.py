"""The operation ``orphans``: processes of runs whose supervisor is dead, so that only a user's stop ends them."""

import os
from typing import Any, Dict, List

from ..helper.request import Request
from ..shared.logs.log_frames import is_run
from ..shared.processes.process_records import OrphanedRun, OrphansRequest
from ..shared.run.run_state import RunState
from ..shared.schema.record import to_fields
from ..spool.layout import Spool, all_spools, is_starting
from ..system import procfs
from ..system.procfs import ProcStat
from . import terminate
from .ownership import NodeProcesses

WORKER_PROGRAM = b"PYTHON_EXEC="  # names a file of the spool, in the agent's and the supervisor's environment


def orphans(request: Request) -> List[Dict[str, Any]]:
    """Operation: the processes that ended or lost runs have left on this host, each run's as an ``OrphanedRun``.

    Takes an ``OrphansRequest``.
    """
    hosts, state = request.read_args(OrphansRequest).hosts, request.state
    table = procfs.snapshot()
    found = filter(None, map(procfs.run_and_host, table.values()))
    marked = {(run, host) for run, host in found if host in hosts and is_run(run)}  # another user's may be any
    spools: Dict[Any, List[Spool]] = {}
    for spool in all_spools(state):
        if spool.host in hosts:
            spools.setdefault((spool.run, spool.host), []).append(spool)
    replies = []
    for run, host in sorted(marked | {node for node, node_spools in spools.items() if _may_have_left(node_spools)}):
        node_spools = spools.get((run, host), [])
        if any(spool.alive() or is_starting(spool) for spool in node_spools):
            continue
        left = NodeProcesses(node_spools or [Spool.of(state, run, 1, "0-" + host)], None).find(table)
        if not node_spools:  # the run's files are in another state folder, or removed
            left = [
                stat for stat in left if not procfs.other_user(stat)
            ]  # first: their environment may name any path, and root would open it
            left = [] if any(map(_is_supervised, left)) else left
        if left:
            described = tuple(map(terminate.describe, left))
            replies.append(to_fields(OrphanedRun(run=run, host=host, known=bool(node_spools), processes=described)))
    return replies


def _may_have_left(spools: List[Spool]) -> bool:
    """Whether a node of these spools was lost, or ended with survivors."""
    records = [spool.exit_record() for spool in spools]
    return any(not record or record.state == RunState.LOST or record.survivors or record.unseen for record in records)


def _is_supervised(process: ProcStat) -> bool:
    """Whether a process is of a node whose supervisor is alive, by the spool that its environment names."""
    (program,) = procfs.variables(process, WORKER_PROGRAM)
    try:
        return bool(program) and Spool(os.path.dirname(program)).alive()
    except OSError:  # it names something else
        return False
