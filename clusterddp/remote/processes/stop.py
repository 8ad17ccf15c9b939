"""stop: order a node's run to end, wait, and prove that nothing of it is left.

Works from files and /proc alone, so it does its work when the supervisor is gone too. What it could not look at is
said as ``unknown``: never a proof that was not made.
"""

import time
from typing import Any, Dict, List, Optional, Set, Tuple

from ..helper.request import Request
from ..spool.layout import Spool, all_spools, rebooted
from ..system import procfs
from ..system.bootstrap import Refused, clear_halves, read_json
from . import gpu_holders, terminate
from .ownership import Kin
from .roster import drop_roll

SLACK = 20.0  # seconds beyond the grace that the supervisor gets before we do its work
NOT_THE_SCRIPT = 125


def stop(request: Request) -> Dict[str, Any]:
    """Stop the run's nodes of this host.

    Args of the request: ``run``, ``hosts`` (the inventory names this connection stands for), ``grace`` (s),
    ``reason``. Returns ``{nodes: [{host, found, killed, exit, survivors, unknown, gpus}], proved_empty}``: how many
    processes were found and how many of them needed SIGKILL, who is left (``{pid, command, state, user}``), what
    could not be looked at, and the number of NVIDIA GPUs that none of them uses (null: there is none).

    Raises:
        Refused: no spool of the run is here.
    """
    args = request.args
    hosts = {spool.host for spool in all_spools(args["state"], args["run"])} & set(args["hosts"])
    if not hosts:
        raise Refused("run %s was never started here" % args["run"])
    stops = [Stop(args, host) for host in sorted(hosts)]
    told = [node.finish() for node in stops]
    for node in stops:
        for spool in node.spools():
            clear_halves(spool.folder)
    return {"nodes": told, "proved_empty": not any(node["survivors"] or node["unknown"] for node in told)}


class Stop:
    """The stop of one node, whatever attempt it is in; making it gives the order."""

    def __init__(self, args: Dict[str, Any], host: str) -> None:
        self.args, self.host = args, host
        self.deadline = time.monotonic() + args["grace"] + SLACK
        self.killed: Set[Tuple[int, int]] = set()
        spools = self.spools()
        self.kin = Kin.of(spools[-1], _supervisor(spools))
        self.before = len(self.look())
        self.ended = {spool.folder for spool in spools if spool.exit_record()}
        self.elsewhere = any(spool.alive() and rebooted(spool) for spool in spools)
        self.lost = {spool.folder: _why_lost(spool) for spool in spools}
        self.order()

    def spools(self) -> List[Spool]:
        """The node's, the last attempt's last."""
        return [spool for spool in all_spools(self.args["state"], self.args["run"]) if spool.host == self.host]

    def order(self) -> None:
        """Order every attempt to stop that has not ended, or may be followed by another."""
        for spool in self.spools():
            if spool.alive() or not spool.exit_record():
                spool.write_tombstone(self.args["reason"], self.args["grace"])

    def look(self) -> List[terminate.Process]:
        """All that is left of the node, its supervisor too."""
        found = [terminate.of(seen) for seen in self.kin.find()]
        own = terminate.describe(self.kin.supervisor) if self.kin.supervisor else None
        return found + ([own] if own else [])

    def finish(self) -> Dict[str, Any]:
        """Wait for the supervisor, do its work if it does not, and say what is proved."""
        while self.alive() and time.monotonic() < self.deadline:
            time.sleep(terminate.LOOK)
            self.order()  # it may have turned to another attempt in this moment
        spools = self.spools()
        self.kin = Kin.of(spools[-1], _supervisor(spools), self.kin.known)  # by what it has left on the roll
        survivors = terminate.end(self.look, 0.0, killed=self.killed)
        gpus = gpu_holders.look(self.kin.known)
        survivors += [process for process in gpus.held if process.pid not in {left.pid for left in survivors}]
        left = [process.told() for process in survivors]
        killed = len(self.killed - {process.name for process in survivors})
        for spool in spools:
            if spool.folder not in self.ended:
                self.close(spool, left)
                killed += (spool.exit_record() or {}).get("killed", 0)
        last = spools[-1].exit_record() or {}
        unknown = self.unknown(last, gpus.error)
        if not left and not unknown:
            for spool in spools:
                drop_roll(spool)  # its numbers will be others' one day
        return {
            "host": self.host,
            "found": max(self.before, killed + len(left)),
            "killed": killed,
            "exit": last,
            "survivors": left,
            "unknown": unknown,
            "gpus": gpus.devices,
        }

    def alive(self) -> bool:
        """Whether a supervisor holds a lock of this node."""
        return any(spool.alive() for spool in self.spools())

    def close(self, spool: Spool, left: List[Dict[str, Any]]) -> None:
        """Write the exit record that no supervisor wrote: one that was lost before the order stays lost."""
        if spool.exit_record():
            return
        lost = self.lost.get(spool.folder)
        if lost:
            spool.write_exit("lost", NOT_THE_SCRIPT, lost, agent_exit=None, survivors=left, by_stop=True)
        else:
            order = spool.tombstone() or {"reason": "stopped"}
            spool.write_exit("stopped", 143, order["reason"], agent_exit=None, survivors=left, by_stop=True)

    def unknown(self, record: Dict[str, Any], gpus: str) -> List[str]:
        """What could not be looked at; a line each."""
        found = [gpus] if gpus else []
        unvouched = record.get("by_stop", False)  # no supervisor saw its last child end
        if self.elsewhere and unvouched:
            found.append("its supervisor lived where this connection cannot see all (another pid namespace)")
        found += [
            "process %d (%s) may be the run's or a stranger's" % (seen.pid, procfs.command(seen))
            for seen in self.kin.doubtful(procfs.table())
        ]
        for pid in filter(procfs.there, record.get("unseen") or ()):
            found.append("process %d is another user's now, and hidden from this one" % pid)
        if procfs.hidden() and unvouched:
            found.append("other users' processes are hidden here (hidepid), so one that changed its user may be left")
        return found


def _supervisor(spools: List[Spool]) -> Optional[int]:
    """The pid of the node's live supervisor."""
    return next(filter(None, (spool.supervisor() for spool in reversed(spools))), None)


def _why_lost(spool: Spool) -> str:
    """Why the node was lost already: its supervisor began and is gone. Empty for one that lives or never began."""
    if spool.alive() or spool.exit_record() or not read_json(spool.path("supervisor.json")):
        return ""
    return "the host was started anew" if rebooted(spool) else "its supervisor was killed"
