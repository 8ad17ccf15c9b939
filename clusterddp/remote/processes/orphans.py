"""orphans: processes of runs whose supervisor is gone, so that nobody but a user's stop ends them."""

from typing import Any, Dict, List

from ..helper.request import Request
from ..spool.layout import Spool, all_spools, node_state
from ..system import procfs
from . import terminate
from .ownership import Kin


def orphans(request: Request) -> List[Dict[str, Any]]:
    """What runs that have ended, or were lost, have left running; args ``hosts``.

    Returns ``[{run, host, known, processes: [{pid, ticks, command, state, user}]}]``; ``known``: the run's spool is
    here, so a stop of it can end them.
    """
    hosts, state = set(request.args["hosts"]), request.args["state"]
    among = procfs.table()
    marked = {marks for marks in map(procfs.marks, among.values()) if marks and marks[1] in hosts}
    spools: Dict[Any, List[Spool]] = {}
    for spool in all_spools(state):
        if spool.host in hosts:
            spools.setdefault((spool.run, spool.host), []).append(spool)
    told = []
    for name in sorted(marked | {name for name, own in spools.items() if _unproved(own)}):
        own = spools.get(name, [])
        if any(spool.alive() or _begins(spool) for spool in own):
            continue
        left = Kin(own or [Spool.of(state, name[0], 1, "0-" + name[1])], None).find(among)
        if left:
            found = [terminate.of(seen).told() for seen in left]
            told.append({"run": name[0], "host": name[1], "known": bool(own), "processes": found})
    return told


def _unproved(spools: List[Spool]) -> bool:
    """Whether a node was lost, or ended with survivors."""
    records = [spool.exit_record() or {"state": "lost"} for spool in spools]
    return any(record["state"] == "lost" or record.get("survivors") or record.get("unseen") for record in records)


def _begins(spool: Spool) -> bool:
    """Whether its supervisor is about to come up."""
    return not spool.exit_record() and node_state(spool, None, [], alive=False) == "starting"
