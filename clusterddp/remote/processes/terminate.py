"""End a node's processes: SIGTERM, a grace period, SIGKILL, until none is found."""

import os
import time
from typing import Callable, List, Optional, Set, Tuple

from ..shared.processes.signal_numbers import signal
from ..shared.run.spool_records import LeftProcess
from ..system import procfs
from ..system.procfs import ProcStat

STOP_SIGNAL = signal.SIGUSR2  # to a supervisor: end the run, where no order can be written into its spool
POLL_INTERVAL = 0.02  # seconds between searches while processes end
PATIENCE = 5.0  # seconds for a process to end after SIGKILL


def describe(stat: ProcStat) -> LeftProcess:
    """A process with its command line and user, from its entry in a snapshot."""
    return LeftProcess(stat.pid, stat.ticks, procfs.command_line(stat), stat.state, procfs.other_user(stat))


def describe_pid(pid: int) -> Optional[LeftProcess]:
    """The process with this pid, or None if it is dead."""
    stat = procfs.read_process(pid)
    return describe(stat) if stat else None


def terminate_all(
    find: Callable[[], List[LeftProcess]],
    grace: float,
    killed: Optional[Set[Tuple[int, int]]] = None,
) -> List[LeftProcess]:
    """Run a ``Termination`` to its end; returns the survivors."""
    ending = Termination(find, grace, killed)
    while True:
        left = ending.step()
        if left is not None:
            return left
        time.sleep(POLL_INTERVAL)


class Termination:
    """SIGTERM to all that ``find`` finds, SIGKILL to those left after ``grace`` s, again until nothing is found.

    ``find`` is called each time: a process may fork while it is being ended. Processes that live ``PATIENCE`` longer
    (in uninterruptible sleep) count as survivors. ``killed`` collects pid and start time of each that needed SIGKILL.
    """

    def __init__(
        self,
        find: Callable[[], List[LeftProcess]],
        grace: float,
        killed: Optional[Set[Tuple[int, int]]] = None,
    ) -> None:
        self.find, self.killed = find, killed
        self.deadline = time.monotonic() + grace
        self.signalled: Set[int] = set()

    def step(self) -> Optional[List[LeftProcess]]:
        """Search once and send the signals; returns the survivors once it is over, None before."""
        left = self.find()
        now = time.monotonic()
        if not left or now > self.deadline + PATIENCE:
            return left
        for process in left:
            if now >= self.deadline:
                kill(process, self.killed)
            elif process.pid not in self.signalled:
                self.signalled.add(process.pid)
                send_signal(process, signal.SIGTERM)
        return None


def kill(process: LeftProcess, killed: Optional[Set[Tuple[int, int]]] = None) -> None:
    """Send SIGKILL; add the process to ``killed`` if it took the signal."""
    if send_signal(process, signal.SIGKILL) and killed is not None:
        killed.add(process.identity)


def send_signal(process: LeftProcess, number: int) -> bool:
    """Signal a process if its pid still is the same process; return whether the signal was sent."""
    if not procfs.is_process(*process.identity):
        return False
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):  # it has ended, or is not ours to end: then it is found again
        return False
    return True


def kill_group(group: int) -> None:
    """SIGKILL the processes left in a process group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # nothing is left
        pass
