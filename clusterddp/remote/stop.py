"""stop: order a node's run to end, wait, and prove that nothing of it is left.

Works from files and /proc alone, so it does its work when the supervisor is gone too.
"""

import os
import time
from typing import Any, Dict

from . import sweep
from .request import Request
from .spool import Spool, all_spools
from .state import Refused

SLACK = 20.0  # seconds beyond the grace that the supervisor gets before we do its work


def stop(request: Request) -> Dict[str, Any]:
    """Stop the run's nodes of this host.

    Args of the request: ``run``, ``hosts`` (the inventory names this connection stands for), ``grace`` (s),
    ``reason``. Returns ``{nodes: [{host, found, exit, survivors}], proved_empty}``.

    Raises:
        Refused: no spool of the run is here.
    """
    wanted = set(request.args["hosts"])
    spools = [spool for spool in all_spools(request.args["state"], request.args["run"]) if spool.host in wanted]
    if not spools:
        raise Refused("run %s was never started here" % request.args["run"])
    for spool in spools:
        if not spool.exit_record():
            spool.write_tombstone(request.args["reason"], request.args["grace"])
    nodes = [_stop_node(spool, request.args["grace"]) for spool in spools]
    return {"nodes": nodes, "proved_empty": not any(node["survivors"] for node in nodes)}


def _stop_node(spool: Spool, grace: float) -> Dict[str, Any]:
    before = _look(spool)
    deadline = time.monotonic() + grace + SLACK
    while spool.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    survivors = sweep.end(lambda: _look(spool), 0.0)
    left = [{"pid": process.pid, "command": process.command} for process in survivors]
    if not spool.exit_record():
        order = spool.tombstone() or {"reason": "stopped"}
        spool.write_exit("stopped", 143, order["reason"], agent_exit=None, survivors=left)
    return {"host": spool.host, "found": len(before), "exit": spool.exit_record(), "survivors": left}


def _look(spool: Spool) -> "list[sweep.Process]":
    supervisor = spool.supervisor()
    found = sweep.find(spool.run, spool.host, spool.folder, supervisor)
    own = sweep.describe(supervisor) if supervisor else None
    return [process for process in found + ([own] if own else []) if process.pid != os.getpid()]
