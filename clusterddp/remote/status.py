"""runs: what the spools of this host tell of runs, live and past. The hosts are the truth; history is an index."""

import os
import time
from typing import Any, Dict, List, Optional

from . import sweep
from .request import Request
from .spool import Spool, all_spools
from .state import read_json
from .store import clients


def runs(request: Request) -> List[Dict[str, Any]]:
    """Every node of every run whose spool is here and belongs to ``hosts``; ``run`` narrows to ids that begin so."""
    wanted = set(request.args["hosts"])
    prefix = request.args.get("run") or ""
    found = []
    for spool in all_spools(request.args["state"]):
        plan = spool.plan() if spool.host in wanted and spool.run.startswith(prefix) else None
        if plan:
            found.append(describe(spool, plan))
    return found


def describe(spool: Spool, plan: Dict[str, Any]) -> Dict[str, Any]:
    """One node of one attempt as JSON: enough for a status and for the verdict."""
    alive = spool.alive()  # before the record: who ends writes it first and lets the lock go then
    exit_record = spool.exit_record()
    events = spool.events()
    value = {
        "run": spool.run,
        "attempt": spool.attempt,
        "host": spool.host,
        "node_rank": plan["node_rank"],
        "spool": spool.folder,
        "record": plan["record"],
        "state": node_state(spool, exit_record, events, alive=alive),
        "exit": exit_record,
        "events": events,
        "clock_offset_ns": plan["clock_offset_ns"],
        "clock_error_ns": plan["clock_error_ns"],
        "pids": [],
    }
    if value["state"] == "lost":
        spool.drop_secrets()  # its supervisor could not
    if not exit_record:
        value["joined"] = clients(plan["store"]["port"]) if plan.get("store") else None
        found = sweep.find(spool.run, spool.host, spool.folder, spool.supervisor())
        value["pids"] = [process.pid for process in found]
    elif exit_record["state"] != "succeeded":
        value["errors"] = _errors(spool)
        value["stderr"] = _last_lines(spool, events)
    return value


def node_state(
    spool: Spool, exit_record: Optional[Dict[str, Any]], events: List[Dict[str, Any]], *, alive: bool
) -> str:
    """The node's state in the contract's words; a dead supervisor without a record is ``lost``."""
    if exit_record:
        return str(exit_record["state"])
    if not alive:
        record = read_json(spool.path("supervisor.json"))
        return "lost" if record or _old(spool) else "starting"
    started = any(event["event"] == "worker_started" for event in events)
    return "running" if started else "starting"


def _old(spool: Spool) -> bool:
    """A start takes seconds; a spool without a supervisor after a minute is a start that was cut short."""
    return time.time() - os.stat(spool.folder).st_mtime > 60


def _errors(spool: Spool) -> Dict[str, Any]:
    folder = spool.path("errors")
    found = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():  # a start may have been cut short
        try:
            found[name] = read_json(os.path.join(folder, name))
        except ValueError:  # a worker was killed while writing it
            continue
    return found


def _last_lines(spool: Spool, events: List[Dict[str, Any]]) -> Dict[str, str]:
    """The end of stderr of every worker of the last start that failed, and of the agent's, for the verdict's texts."""
    said = {"agent": _tail(spool.path("logs", "agent.out"), 4000)}
    failed = [event for event in events if event["event"] == "worker_exited" and event["exit_code"]]
    last = max((event["start"] for event in failed), default=0)
    for event in failed:
        if event["start"] == last:
            name = "%d.%d" % (last, event["local_rank"])
            said[name] = _tail(spool.path("logs", name + ".err"), 4000)
    return said


def _tail(path: str, limit: int) -> str:
    """The last ``limit`` bytes of a file as text; empty if it is not there."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - limit))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
