"""runs: what the spools of this host tell of runs, live and past. The hosts are the truth; history is an index."""

import os
import signal
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..helper.request import Request
from ..logs.time_index import last_growth
from ..processes import terminate
from ..shared.run.event_schema import Event
from ..shared.run.plan import AGENT_LOG, NodePlan
from ..shared.schema.record import written
from ..shared.text.shortening import cut_in_the_middle
from ..shared.verdict.node_report import end_of, fitted
from ..shared.verdict.status_reply import changes
from ..spool.layout import Spool, all_spools, node_state, rebooted
from ..spool.quoted import exception_record, output_end
from ..system.bootstrap import Refused

LAST_BYTES = 8000  # of a worker's stderr, for the verdict's texts; C++ prints long stacks behind a message
MOST_WORKERS = 64  # failed workers of a node that are told of in detail, the last ones
OUTPUT_EVENTS = ("output_lost", "disk_full", "log_dropped", "log_limit_failed", "carried")
ERROR_FIELDS = ("exc_type", "exc_message", "file", "line", "time_ns")


def runs(request: Request) -> List[Dict[str, Any]]:
    """Every node of every run whose spool is here and belongs to ``hosts`` (null: to any); ``run``: ids that begin so.

    ``known``: digests of fields that the asker has, by spool: what is the same is left out
    (shared/verdict/status_reply.py). One whose files are damaged is ``{run, host, damaged}``: why it cannot be told of;
    the others are.
    """
    wanted = request.args["hosts"] and set(request.args["hosts"])
    prefix, brief = request.args.get("run") or "", bool(request.args.get("brief"))
    found = []
    for spool in all_spools(request.args["state"]):
        if (wanted is not None and spool.host not in wanted) or not spool.run.startswith(prefix):
            continue
        try:
            plan = spool.maybe_plan()
            if plan and _is_wanted(spool, plan, request.args):
                found.append(describe(spool, plan, brief=brief))
        except Refused as damaged:
            found.append({"run": spool.run, "host": spool.host, "damaged": str(damaged)})
    known = request.args.get("known")
    if known is None:
        return found
    return [node if "damaged" in node else changes(node, known.get(node["spool"]) or {}) for node in found]


def _is_wanted(spool: Spool, plan: NodePlan, args: Mapping[str, Any]) -> bool:
    """Whether the run is of the ``project``, and its id begins with the ``reference`` or its name is that."""
    project, reference = args.get("project"), args.get("reference")
    named = reference is None or spool.run.startswith(reference) or plan.record.name == reference
    return named and (project is None or plan.record.project == project)


def describe(spool: Spool, plan: NodePlan, *, brief: bool = False) -> Dict[str, Any]:
    """One node of one attempt as JSON: enough for a status and for the verdict; ``brief``, for a list and a verdict."""
    alive = spool.alive()  # before the record: who ends writes it first and lets the lock go then
    exit_record = spool.exit_record()
    events = spool.events()
    verdict = spool.verdict()
    value = {
        "run": spool.run,
        "attempt": spool.attempt,
        "host": spool.host,
        "node_rank": plan.node_rank,
        "spool": spool.folder,
        "record": written(plan.record),
        "state": node_state(spool, exit_record, events, alive=alive),
        "standby": plan.standby,
        "exit": written(exit_record) if exit_record else None,
        "events": events,
        "clock_offset_ns": plan.clock_offset_ns,
        "clock_error_ns": plan.clock_error_ns,
        "pids": [],
        "last_output": last_output(spool),
        "verdict": written(verdict) if verdict else None,
        "concluding": bool(alive and exit_record and not exit_record.pending and not verdict),
    }
    if value["state"] == "lost":
        value["rebooted"] = rebooted(spool)
        spool.drop_secrets()  # its supervisor could not
    if alive:
        peers = spool.peers()
        value["peers"] = written(peers) if peers else None
    if brief:
        return _shortened(value, spool, plan)
    if not exit_record:
        value["joined"] = _joined(spool) if plan.store else None
        found = terminate.find_processes(spool, spool.supervisor())
        value["pids"] = [process.pid for process in found]
    if not exit_record or exit_record.state != "succeeded" or _restarted(events):
        value.update(evidence(spool, events))
    return value


def _joined(spool: Spool) -> Optional[int]:
    """How many agents have come to the store of a run that lives."""
    from ..rendezvous.store import clients  # imports socket

    return clients(spool.store_port())


def _shortened(value: Dict[str, Any], spool: Spool, plan: NodePlan) -> Dict[str, Any]:
    """What a list and a verdict need: where no verdict was kept, the node's end in place of its evidence."""
    verdict, over = spool.verdict(), value["exit"] or value["state"] == "lost"
    if over and not verdict:
        seen = evidence(spool, value["events"])
        value["end"] = written(fitted(end_of(dict(value, **seen), place=plan.place, workdir=plan.workdir)))
    started = [event for event in value["events"] if event["event"] == "worker_started"]
    told = [event for event in value["events"] if event["event"] in OUTPUT_EVENTS]
    if value.get("peers"):
        value["peers"] = dict(value["peers"], nodes={}, addresses=[])
    if not value["exit"] and plan.store:
        value["joined"] = _joined(spool)
    record = written(plan.record._replace(gpus={}))
    return dict(
        value, record=record, events=[*started[-1:], *told], verdict=written(verdict.brief()) if verdict else None
    )


def last_output(spool: Spool) -> Optional[int]:
    """When a worker of the node printed last (ns, by its own clock); None if none ever has."""
    folder = spool.logs
    names = os.listdir(folder) if os.path.isdir(folder) else []
    times = [last_growth(os.path.join(folder, n)) for n in names if n.endswith((".out", ".err")) and n != AGENT_LOG]
    return max((time_ns for time_ns in times if time_ns is not None), default=None)


def evidence(spool: Spool, events: Optional[Sequence[Event]] = None) -> Dict[str, Any]:
    """What is known of the node's failed workers, as shared/verdict/failures.py reads it: ``{events, errors, stderr}``.

    Args:
        spool: The node's.
        events: Its events, where they were read already.
    """
    known = spool.events() if events is None else events
    failed = [event for event in known if event["event"] == "worker_exited" and event["exit_code"]][-MOST_WORKERS:]
    keys = {"%d.%d" % (event["start"], event["local_rank"]): event for event in failed}
    errors = {key + ".json": _error(spool, key) for key in keys}
    stderr = {
        key: output_end(spool.folder, key + ".err", LAST_BYTES)
        for key, event in keys.items()  # where nothing better is known
        if not (errors[key + ".json"] or event["signal"] == signal.SIGTERM)
    }
    stderr["agent"] = output_end(spool.folder, AGENT_LOG, LAST_BYTES)
    return {"events": known, "errors": errors, "stderr": stderr}


def _restarted(events: Sequence[Event]) -> bool:
    return any(event["event"] == "worker_started" and event["start"] for event in events)


def _error(spool: Spool, key: str) -> Optional[Dict[str, Any]]:
    """The worker's record of its exception without the traceback, or None."""
    try:
        record = exception_record(spool.folder, key)
    except ValueError:  # the worker was killed while writing it
        return None
    if not isinstance(record, dict):
        return None
    if not record.get("exc_type"):  # torch's own: its one text has both, and its time only whole seconds
        text = record.get("message")
        text = text.get("message") if isinstance(text, dict) else text
        record["exc_type"], _, record["exc_message"] = str(text or "").partition(": ")
    record["exc_message"] = cut_in_the_middle(str(record.get("exc_message") or ""), LAST_BYTES)
    return {name: record.get(name) for name in ERROR_FIELDS} if record["exc_type"] else None
