"""The operation ``runs``: the state of runs, live and past, by the spools of this host, which are authoritative."""

import os
from typing import Any, Dict, List, Optional, Sequence

from ..helper.request import Request
from ..logs.time_index import last_growth
from ..processes.ownership import find_processes
from ..shared.run.event_schema import STALLED_EVENT, WORKER_STARTED, NodeEvent, of_kind
from ..shared.run.plan import AGENT_LOG, NodePlan
from ..shared.run.run_state import RunState
from ..shared.run.spool_records import PeersRecord
from ..shared.schema.record import to_fields
from ..shared.verdict.node_end import end_of, fit
from ..shared.verdict.node_report import NodeReport, to_json
from ..shared.verdict.status_reply import (
    DamagedNode,
    StatusRequest,
    without_common_fields,
    without_known_fields,
)
from ..spool.layout import Spool, all_spools, node_state, rebooted
from ..spool.worker_traces import evidence
from ..system.bootstrap import Refused
from ..system.small_files import names_in

TOLD_EVENTS = (
    "output_lost",
    "disk_full",
    "log_dropped",
    "log_limit_failed",
    "carried",
    STALLED_EVENT,
)  # in a brief report
MAX_TOLD_BY_ALL = 32  # nodes of a run of which each tells what it knows of all others
MANY_TELL = 3  # nodes that tell that in a larger run, the first ones, besides the leader


def runs(request: Request) -> List[Dict[str, Any]]:
    """Operation: the nodes of runs whose spools are here, which a ``StatusRequest`` asks for.

    Fields that the operator has are left out (shared/verdict/status_reply.py). A node whose files are damaged is a
    ``DamagedNode``; the others are still reported.
    """
    asked = request.read_args(StatusRequest)
    hosts, known = None if asked.hosts is None else {*asked.hosts}, asked.known
    replies: List[Dict[str, Any]] = []
    for spool in all_spools(request.state):
        if (hosts is not None and spool.host not in hosts) or not spool.run.startswith(asked.run):
            continue
        try:
            plan = spool.maybe_plan()
            if plan and _is_asked_for(spool, plan, asked):
                answer = without_common_fields(to_json(describe(spool, plan, brief=asked.brief)), asked.common)
                replies.append(answer if known is None else without_known_fields(answer, known.get(spool.folder) or {}))
        except Refused as damaged:
            replies.append(to_fields(DamagedNode(spool.run, spool.host, str(damaged))))
        except FileNotFoundError:
            if os.path.isdir(spool.folder):
                raise  # else another command has removed it meanwhile
    return replies


def _is_asked_for(spool: Spool, plan: NodePlan, asked: StatusRequest) -> bool:
    """Whether the run is of the ``project``, and its id begins with ``reference`` or its name equals that."""
    reference = asked.reference
    named = reference is None or spool.run.startswith(reference) or plan.record.name == reference
    return named and (asked.project is None or plan.record.project == asked.project)


def describe(spool: Spool, plan: NodePlan, *, brief: bool = False) -> NodeReport:
    """One node of one attempt, enough for a status and for the verdict; ``brief``: see ``_brief``."""
    alive = spool.alive()  # read before the record: a supervisor that ends writes that, and then releases the lock
    exit_record = spool.exit_record()
    events = spool.events()
    verdict = spool.verdict()
    report = NodeReport(
        run=spool.run,
        attempt=spool.attempt,
        host=spool.host,
        node_rank=plan.node_rank,
        spool=spool.folder,
        record=plan.record,
        state=node_state(spool, exit_record, events, alive=alive),
        events=tuple(events),
        clock_offset_ns=plan.clock_offset_ns,
        pids=(),
        clock_error_ns=plan.clock_error_ns,
        standby=plan.standby,
        exit=exit_record,
        last_output=last_output(spool),
        verdict=verdict,
        concluding=bool(alive and exit_record and not exit_record.pending and not verdict),
        peers=_told_peers(spool.peers(), plan) if alive else None,
    )
    if report.state == RunState.LOST:
        report = report._replace(rebooted=rebooted(spool))
    if not alive and (report.state == RunState.LOST or (exit_record and exit_record.pending)):
        spool.drop_secrets()  # its supervisor died before it could, perhaps between two attempts
    if brief:
        return _brief(report, spool, plan)
    if not exit_record:
        found = find_processes(spool, spool.supervisor())
        pids, joined = tuple(process.pid for process in found), _agents_connected(spool) if plan.store else None
        report = report._replace(pids=pids, joined=joined)
    if not exit_record or exit_record.state != RunState.SUCCEEDED or _has_restarts(events):
        report = _with_evidence(report, spool)
    return report


def _told_peers(known: Optional[PeersRecord], plan: NodePlan) -> Optional[PeersRecord]:
    """What a node says of the others: of many, only a few nodes tell each one's state, or all would tell of all."""
    if known is None:
        return None
    tells = len(known.nodes) <= MAX_TOLD_BY_ALL or plan.host == known.leader or plan.member < MANY_TELL
    return known._replace(nodes=known.nodes if tells else {}, addresses=())


def _with_evidence(report: NodeReport, spool: Spool) -> NodeReport:
    """The report with its failed workers' exceptions and ends of stderr."""
    found = evidence(spool, report.events)
    return report._replace(errors=found.errors, stderr=found.stderr)


def _agents_connected(spool: Spool) -> Optional[int]:
    """How many agents have connected to the store of a live run."""
    from ..rendezvous.store import count_clients  # imports socket

    return count_clients(spool.store_port())


def _brief(report: NodeReport, spool: Spool, plan: NodePlan) -> NodeReport:
    """What a list and a verdict need: where no verdict was recorded, the node's end in place of its evidence."""
    events, verdict, peers = report.events, report.verdict, report.peers
    end = None
    if (report.exit or report.state == RunState.LOST) and not verdict:
        end = fit(end_of(_with_evidence(report, spool).part, member=plan.member, workdir=plan.workdir))
    started = of_kind(events, WORKER_STARTED)
    output = [event for event in events if event.kind in TOLD_EVENTS]
    return report._replace(
        record=report.record._replace(gpus={}),
        events=(*started[-1:], *output),
        verdict=verdict.brief() if verdict else None,
        peers=peers._replace(nodes={}) if peers else None,
        joined=_agents_connected(spool) if not report.exit and plan.store else None,
        end=end,
    )


def last_output(spool: Spool) -> Optional[int]:
    """When a worker of the node last printed (ns, by its own clock); None if none ever has."""
    folder = spool.logs
    names = names_in(folder)
    times = [last_growth(os.path.join(folder, n)) for n in names if n.endswith((".out", ".err")) and n != AGENT_LOG]
    return max((time_ns for time_ns in times if time_ns is not None), default=None)


def _has_restarts(events: Sequence[NodeEvent]) -> bool:
    """Whether workers were started again: ``start`` counts from 0."""
    return any(event.kind == WORKER_STARTED and event.start for event in events)
