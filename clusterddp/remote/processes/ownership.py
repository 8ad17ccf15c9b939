"""Which processes of this host belong to one node of one run.

A process belongs to the node if any of these holds:
- it descends from the supervisor, or from a process of the node;
- its environment names the run and the host (``env -i`` and setproctitle wipe that);
- it is on the supervisor's roster (processes/roster.py), or in the session of one that is;
- it is an orphan (its parent is init, or whoever adopts on this host), and writes to or works in a folder of the run.
  With another living parent it is unrelated: a shell in which a user looks at the run's files.

Names are never used. A process whose environment names another run or node is unrelated, and so are its descendants,
whatever else holds: also where a worker starts runs of its own. So is a process older than the supervisor.
"""

import os
from typing import Dict, Iterable, List, Optional, Set, Tuple

from ..shared.run.spool_records import LeftProcess
from ..spool.layout import Spool, all_spools
from ..system import procfs
from ..system.procfs import ProcStat
from .roster import read_roster
from .terminate import describe

# Not the whole spool: a process that gives an order writes briefly into the rest of it.
OUTPUT_FOLDERS = ("logs", "errors", "torch")


def find_processes(spool: Spool, supervisor: Optional[int]) -> List[LeftProcess]:
    """Every process of the spool's node, without the supervisor itself and the caller's own."""
    return [describe(stat) for stat in NodeProcesses.of(spool, supervisor).find()]


class NodeProcesses:
    """The processes of one node of one run, in all its attempts."""

    def __init__(self, spools: List[Spool], supervisor: Optional[int]) -> None:
        self.marks = (spools[0].run, spools[0].host)
        self.supervisor = supervisor
        recorded = [record for record in (spool.recorded_supervisor() for spool in spools) if record]
        records = [record for record in recorded if record.boot == procfs.boot_identity()]
        self.rebooted = bool(recorded) and not records and not any(spool.alive() for spool in spools)
        live_spools = spools if records else []  # no process of an earlier boot lives
        self.since_ticks = min((record.start_ticks or 0 for record in records), default=0)
        rosters = [roster for roster in map(read_roster, live_spools) if roster]
        self.on_roster = {(pid, ticks) for roster in rosters for pid, ticks, _ in roster.members}
        self.known = set(self.on_roster)  # a process once found to be the node's remains so
        self.sessions = {session for roster in rosters for _, _, session in roster.members}
        self.adopters = {1, *(roster.adopter[0] for roster in rosters if procfs.is_process(*roster.adopter))}
        runs = [_run_dir(spool) for spool in live_spools]
        self.folders = [spool.folder for spool in live_spools] + list(filter(None, runs))
        self.written_paths = [spool.path(name) for spool in live_spools for name in OUTPUT_FOLDERS] + list(
            filter(None, runs)
        )

    @classmethod
    def of(cls, spool: Spool, supervisor: Optional[int], known: Iterable[Tuple[int, int]] = ()) -> "NodeProcesses":
        """The processes of the spool's node.

        ``known``: (pid, start ticks) of processes that were found to be its earlier.
        """
        state = spool.state
        spools = [other for other in all_spools(state, spool.run) if other.host == spool.host]
        node = cls(spools or [spool], supervisor)
        node.known.update(known)
        return node

    def find(self, table: Optional[Dict[int, ProcStat]] = None) -> List[ProcStat]:
        """Every process of the node, without the supervisor itself and the caller's own."""
        if self.rebooted:
            return []
        return self._classify(procfs.snapshot() if table is None else table)[0]

    def uncertain(self, table: Dict[int, ProcStat]) -> List[ProcStat]:
        """Processes in a session whose number is on the roster, where no roster member is left to confirm it.

        The session's first process has ended, so another session can have the number by now: too little to end them,
        too much to claim that nothing is left. Another user's process counts as unrelated: most of a machine's services
        look like this.
        """
        if self.rebooted:
            return []
        own_processes, unrelated = self._classify(table)
        sessions = {sid for sid in self.sessions - self._roster_sessions(table) if sid not in table}
        decided = unrelated | {process.pid for process in own_processes}
        inside = [process for process in table.values() if process.session in sessions and process.pid not in decided]
        return [process for process in inside if process.ticks >= self.since_ticks and not procfs.other_user(process)]

    def _classify(self, table: Dict[int, ProcStat]) -> Tuple[List[ProcStat], Set[int]]:
        """The node's processes, and the pids of those that certainly are not the node's."""
        own = {self.supervisor} if self.supervisor else set()
        callers = {os.getpid(), os.getppid()} - own  # also where a worker of the run is the caller
        callers.update(self._fence(table))
        unrelated, roots = set(callers), set()
        sessions = self._roster_sessions(table)
        for process in table.values():
            if process.pid in callers:
                continue
            marks = procfs.run_and_host(process) if process.ticks >= self.since_ticks else None
            if marks:
                (own if marks == self.marks else unrelated).add(process.pid)
            elif process.identity in self.known or process.session in sessions or self._is_orphan_of_run(process):
                roots.add(process.pid)
        unrelated = procfs.subtree(unrelated, table, own)
        found = procfs.subtree(own | roots, table, unrelated) - {self.supervisor}
        own_processes = [table[pid] for pid in sorted(found) if pid in table and table[pid].ticks >= self.since_ticks]
        self.known.update(process.identity for process in own_processes)
        return own_processes, unrelated

    def _fence(self, table: Dict[int, ProcStat]) -> List[int]:
        """The parent of a live supervisor (supervisor/fence.py): it ends with it, so it does not count as left over."""
        supervisor = table.get(self.supervisor) if self.supervisor else None
        above = table.get(supervisor.parent) if supervisor else None
        return [above.pid] if above and procfs.run_and_host(above) == self.marks else []

    def _roster_sessions(self, table: Dict[int, ProcStat]) -> Set[int]:
        """The sessions of live processes on the roster: all their members belong to the run.

        No other session gets the number while any member lives, and a process enters only by being born in it.
        Processes that merely name the run in their environment do not count here: they may be in a user's own session.
        """
        return {process.session for process in table.values() if process.identity in self.on_roster}

    def _is_orphan_of_run(self, process: ProcStat) -> bool:
        """Whether a process is an orphan, and writes to or works in a folder of the run."""
        orphan = process.parent in self.adopters and process.pid != 1 and process.ticks >= self.since_ticks
        return orphan and (procfs.cwd_below(process, self.folders) or procfs.writes_below(process, self.written_paths))


def _run_dir(spool: Spool) -> str:
    """The run's folder; empty where the plan is missing or damaged."""
    plan = spool.readable_plan()
    return plan.run_dir if plan else ""
