"""The operation ``stop``: order a node's run to end, wait, and prove that none of its processes is left.

It needs only files and /proc, so it works without the supervisor too. What it could not check is reported as
``unknown``.
"""

import os
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from ..helper.request import Request
from ..shared.processes.exit_codes import EXIT_NOT_THE_SCRIPT, EXIT_STOPPED
from ..shared.run.run_state import RunState
from ..shared.run.spool_records import ExitRecord, LeftProcess
from ..shared.run.stop_records import NodeProof, StopRequest, stop_answer
from ..shared.schema.record import to_fields
from ..spool.layout import Spool, all_spools, rebooted
from ..spool.quoted import redaction_of
from ..system import procfs
from ..system.bootstrap import Refused, remove_abandoned_temporaries
from . import gpu_holders, terminate
from .ownership import NodeProcesses
from .roster import remove_roster

SUPERVISOR_SLACK = 20.0  # seconds beyond the grace that the supervisor gets before we do its work here


def stop(request: Request) -> Dict[str, Any]:
    """Operation: stop the run's nodes of this host.

    Takes a ``StopRequest``, returns a ``StopAnswer`` (shared/run/stop_records.py). Raises Refused if no spool of the
    run is here.
    """
    order = request.read_args(StopRequest)
    hosts = {spool.host for spool in all_spools(request.state, order.run)} & {*order.hosts}
    if not hosts:
        raise Refused("run %s is not known here: it was never started, or its folder was removed" % order.run)
    stops = [NodeStop(request.state, order, host) for host in sorted(hosts)]
    nodes = tuple(node.finish() for node in stops)
    for node in stops:
        for spool in node.spools():
            remove_abandoned_temporaries(spool.folder)
    return to_fields(stop_answer(nodes))


class NodeStop:
    """The stop of one node in all its attempts; making it gives the order."""

    def __init__(self, state: str, order: StopRequest, host: str) -> None:
        self.state, self.order, self.host = state, order, host
        self.deadline = time.monotonic() + order.grace + SUPERVISOR_SLACK
        self.killed: Set[Tuple[int, int]] = set()
        spools = self.spools()
        self.redaction = redaction_of(spools[-1].folder)  # read now: the values are removed when the node ends
        self.processes = NodeProcesses.of(spools[-1], _supervisor(spools))
        self.found_before = len(self.remaining())
        self.ended = {spool.folder for spool in spools if spool.exit_record()}
        self.in_other_namespace = any(spool.alive() and rebooted(spool) for spool in spools)
        self.lost = {spool.folder: _why_lost(spool) for spool in spools}
        self.give_order()

    def spools(self) -> List[Spool]:
        """The node's spools, one an attempt, the last attempt's last."""
        return [spool for spool in all_spools(self.state, self.order.run) if spool.host == self.host]

    def give_order(self) -> None:
        """Write the stop order to every attempt that has not ended, or may be followed by another.

        A supervisor whose spool cannot be written gets a signal that means the same.
        """
        for spool in self.spools():
            if spool.alive() or not spool.exit_record():
                try:
                    spool.write_stop_order(self.order.reason, self.order.grace)
                except OSError:  # read-only, or full with the reserved space used up
                    _signal_stop(spool)

    def remaining(self) -> List[LeftProcess]:
        """The node's processes, its supervisor included."""
        found = [terminate.describe(stat) for stat in self.processes.find()]
        own = terminate.describe_pid(self.processes.supervisor) if self.processes.supervisor else None
        return found + ([own] if own else [])

    def finish(self) -> NodeProof:
        """Wait for the supervisor, end the processes that it left, and return what was found and what is left."""
        while self.has_supervisor() and time.monotonic() < self.deadline:
            time.sleep(terminate.POLL_INTERVAL)
            self.give_order()  # it may just have begun another attempt
        spools = self.spools()
        self.processes = NodeProcesses.of(spools[-1], _supervisor(spools), self.processes.known)  # reads its roster
        survivors = terminate.terminate_all(self.remaining, 0.0, killed=self.killed)
        gpus = gpu_holders.find_gpu_holders(self.processes.known)
        survivors += [process for process in gpus.holders if process.pid not in {left.pid for left in survivors}]
        left = self.redaction.value([to_fields(process) for process in survivors], 0)
        killed = len(self.killed - {process.identity for process in survivors})
        for spool in spools:
            if spool.folder not in self.ended:
                self.write_missing_exit(spool, left)
                ended = spool.exit_record()
                killed += ended.killed if ended else 0
        last = spools[-1].exit_record()
        unknown = self.unchecked(last, gpus.error)
        if not left and not unknown:
            for spool in spools:
                remove_roster(spool)  # its pids will be reused one day
        return NodeProof(
            host=self.host,
            found=max(self.found_before, killed + len(left)),
            killed=killed,
            survivors=tuple(LeftProcess(**process) for process in left),
            unknown=tuple(unknown),
            gpus=gpus.devices,
            exit=to_fields(last) if last else {},
        )

    def has_supervisor(self) -> bool:
        """Whether a supervisor holds a lock of this node."""
        return any(spool.alive() for spool in self.spools())

    def write_missing_exit(self, spool: Spool, left: List[Dict[str, Any]]) -> None:
        """Write the exit record that no supervisor wrote; a node that was lost before the order stays ``lost``."""
        if spool.exit_record():
            return
        lost = self.lost.get(spool.folder)
        if lost:
            spool.write_exit(RunState.LOST, EXIT_NOT_THE_SCRIPT, lost, agent_exit=None, survivors=left, by_stop=True)
        else:
            order = spool.stop_order()
            reason = order.reason if order else "stopped"
            spool.write_exit(RunState.STOPPED, EXIT_STOPPED, reason, agent_exit=None, survivors=left, by_stop=True)

    def unchecked(self, record: Optional[ExitRecord], gpus: str) -> List[str]:
        """What could not be checked, one line each."""
        found = [gpus] if gpus else []
        without_supervisor = record is not None and record.by_stop  # no supervisor saw its last child end
        if self.in_other_namespace and without_supervisor:
            found.append("its supervisor lived where this connection cannot see all (another pid namespace)")
        for stat in self.processes.uncertain(procfs.snapshot()):
            line = self.redaction.text(procfs.command_line(stat), ends=False)
            found.append("process %d (%s) may be the run's or a stranger's" % (stat.pid, line))
        hidden = filter(procfs.exists, record.unseen if record else ())
        found += ["process %d is another user's now, and hidden from this one" % pid for pid in hidden]
        if procfs.hides_other_users() and without_supervisor:
            found.append("other users' processes are hidden here (hidepid), so one that changed its user may be left")
        return found


def _signal_stop(spool: Spool) -> None:
    """Order the supervisor by a signal to end the run."""
    supervisor = spool.supervisor()
    if supervisor:
        os.kill(supervisor, terminate.STOP_SIGNAL)


def _supervisor(spools: List[Spool]) -> Optional[int]:
    """The pid of the node's live supervisor."""
    return next(filter(None, (spool.supervisor() for spool in reversed(spools))), None)


def _why_lost(spool: Spool) -> str:
    """Why the node was lost before: its supervisor started and is dead. Empty where it lives or never started."""
    if spool.alive() or spool.exit_record() or not spool.recorded_supervisor():
        return ""
    return "the host was started anew" if rebooted(spool) else "its supervisor was killed"
