"""Which processes of this host belong to one node of one run.

A process is ours if any of these holds:
- it descends from the supervisor, or from a process that is ours;
- it carries the marks of the run and the host in its environment (``env -i`` and setproctitle wipe them);
- the supervisor has put it on its roll (processes/roster.py), or it is in a session of one that is on it;
- it is nobody's child (init's, or whoever adopts on this host), and writes to or stands in a folder of the run.
  With a living parent that is not ours it is a stranger: a shell that looks at the run's files.

Never by name. What carries another run's or node's marks is a stranger, and all below it, whatever else holds: also
where a worker starts runs of its own. A process older than the supervisor is a stranger too.

Not here: the workdir is no folder of the run, it persists. How processes are ended: processes/terminate.py.
"""

import os
from typing import Dict, Iterable, List, Optional, Set, Tuple

from ..spool.layout import Spool, all_spools
from ..system import procfs
from ..system.bootstrap import read_json
from ..system.procfs import Seen
from .roster import read_roll

# Not the whole spool: whoever gives an order writes for a moment beside these.
WRITTEN_BY_THE_RUN = ("logs", "errors", "torch")


class Kin:
    """The processes of one node of one run, of all its attempts.

    Args:
        spools: The node's, one an attempt.
        supervisor: Its live supervisor, or None.
    """

    def __init__(self, spools: List[Spool], supervisor: Optional[int]) -> None:
        self.mine = (spools[0].run, spools[0].host)
        self.supervisor = supervisor
        known = [record for record in (read_json(spool.path("supervisor.json")) for spool in spools) if record]
        records = [record for record in known if record["boot"] == procfs.boot_identity()]
        self.rebooted = bool(known) and not records and not any(spool.alive() for spool in spools)
        here = spools if records else []  # of an earlier boot nothing lives
        self.born = min((int(record["start_ticks"]) for record in records), default=0)
        rolls = [roll for roll in map(read_roll, here) if roll]
        self.rolled = {(pid, ticks) for roll in rolls for pid, ticks, _ in roll.members}
        self.known = set(self.rolled)  # ours once, ours for ever
        self.sessions = {session for roll in rolls for _, _, session in roll.members}
        self.adopters = {1, *(roll.adopter[0] for roll in rolls if _lives(roll.adopter))}
        runs = [str(spool.plan().get("run_dir") or "") for spool in here]
        self.stood_in = [spool.folder for spool in here] + list(filter(None, runs))
        self.written = [spool.path(name) for spool in here for name in WRITTEN_BY_THE_RUN] + list(filter(None, runs))

    @classmethod
    def of(cls, spool: Spool, supervisor: Optional[int], known: Iterable[Tuple[int, int]] = ()) -> "Kin":
        """The kin of the node that this is a spool of; ``known``: processes found to be its earlier."""
        state = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(spool.folder))))
        spools = [other for other in all_spools(state, spool.run) if other.host == spool.host]
        kin = cls(spools or [spool], supervisor)
        kin.known.update(known)
        return kin

    def find(self, among: Optional[Dict[int, Seen]] = None) -> List[Seen]:
        """Every process of the node but the supervisor itself and the caller's own.

        Args:
            among: A table of processes; None takes a new one.
        """
        if self.rebooted:
            return []
        return self._split(procfs.table() if among is None else among)[0]

    def doubtful(self, among: Dict[int, Seen]) -> List[Seen]:
        """Processes in a session whose number is on the roll, with nobody left who proves that it is the same one.

        Its first process is gone, so the number can be another's by now: too little to end them, too much to say
        that nothing is left. Another user's is taken for a stranger: most of a machine's services look like this.
        """
        if self.rebooted:
            return []
        kin, strangers = self._split(among)
        sessions = {sid for sid in self.sessions - self._proved_sessions(among) if sid not in among}
        settled = strangers | {seen.pid for seen in kin}
        inside = [seen for seen in among.values() if seen.session in sessions and seen.pid not in settled]
        return [seen for seen in inside if seen.ticks >= self.born and not procfs.other_user(seen)]

    def _split(self, among: Dict[int, Seen]) -> Tuple[List[Seen], Set[int]]:
        """What is ours, and the pids of what certainly is not."""
        own = {self.supervisor} if self.supervisor else set()
        callers = {os.getpid(), os.getppid()} - own  # also where a worker of the run asks
        strangers, roots = set(callers), set()
        sessions = self._proved_sessions(among)
        for seen in among.values():
            if seen.pid in callers:
                continue
            marks = procfs.marks(seen) if seen.ticks >= self.born else None
            if marks:
                (own if marks == self.mine else strangers).add(seen.pid)
            elif seen.name in self.known or seen.session in sessions or self._left_behind(seen):
                roots.add(seen.pid)
        strangers = procfs.below(strangers, among, own)
        found = procfs.below(own | roots, among, strangers) - {self.supervisor}
        kin = [among[pid] for pid in sorted(found) if pid in among and among[pid].ticks >= self.born]
        self.known.update(seen.name for seen in kin)
        return kin, strangers

    def _proved_sessions(self, among: Dict[int, Seen]) -> Set[int]:
        """The sessions of processes on the roll, which are the run's own.

        A session keeps its number from others while any member lives, and is entered only by being born in it. What
        carries the marks alone may stand in a user's own session.
        """
        return {seen.session for seen in among.values() if seen.name in self.rolled}

    def _left_behind(self, seen: Seen) -> bool:
        """Whether it is nobody's child and uses a folder of the run."""
        orphan = seen.parent in self.adopters and seen.pid != 1 and seen.ticks >= self.born
        return orphan and (procfs.stands_below(seen, self.stood_in) or procfs.writes_below(seen, self.written))


def _lives(name: Tuple[int, int]) -> bool:
    return procfs.start_ticks(name[0]) == name[1]
