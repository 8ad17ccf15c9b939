"""The fence: the process above a node's supervisor, which ends the node's part where the supervisor cannot.

A supervisor may hang in a call that does not return (fsync on a disk that stalls), or be stopped or killed, while its
agent works on. The other nodes then consider it lost and may begin another attempt. So the fence is forked before
anything else of a node, and the supervisor is its child. It holds a lease (supervisor/fence_pipe.py) that the
supervisor renews while its loop turns and it is in contact with a majority:

    the lease ends           SIGTERM to the agent, after the grace SIGKILL to all of the node but the supervisor,
                             repeated until it is renewed. The supervisor, once it goes on, records this.
    the supervisor died      SIGKILL to all of the node; then, for a while, it answers on run control's port, under the
                             run's key, that this node's part has ended.
    the supervisor releases  the fence ends without acting.

It uses the boot clock, so when a host wakes from sleep it acts within ``CHECK_INTERVAL``. It opens only files of /proc,
writes none, and locks its memory where it may. It adopts what the supervisor leaves behind, so all processes of a node
descend from it; a descendant whose environment names another run is unrelated, as everywhere (processes/ownership.py).
If the fence dies, the supervisor ends the node's part (supervisor/stop_conditions.py).
"""

import os
import select
import signal
import socket
from typing import Callable, List, NoReturn, Optional, Sequence, Set, Tuple

from ..control.connection import Secret
from ..control.last_message import answer
from ..spool.layout import Spool
from ..system import prctl, procfs
from ..system.clock import boot_clock
from ..system.procfs import ProcStat
from ..system.wait_status import reap
from .fence_pipe import ACTED, ENDLESS_LEASE, RELEASE, SIZE, FencePipe, Lease

CHECK_INTERVAL = 0.25  # seconds between checks of the lease
KILL_INTERVAL = 0.02  # the same while processes are being killed
KILL_TIMEOUT = 60.0  # seconds for processes that SIGKILL does not end at once
ANSWER_TIME = 60.0  # seconds for which it answers the other nodes
# The supervisor handles them.
IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1)


def fork_fence(
    marks: Tuple[str, str], secret: Optional[Secret], listener: Optional[int], supervisor_only: Sequence[int]
) -> FencePipe:
    """Fork: this process becomes the fence and does not return; its child, the supervisor, gets the pipes' other ends.

    ``marks`` are the run and the host. ``secret`` proves the node to others, if it has the key. ``listener`` is run
    control's listening socket, if there is one. ``supervisor_only`` are descriptors that only the supervisor keeps.
    """
    feed, reports = os.pipe(), os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        os.close(feed[0])
        os.close(reports[1])
        return FencePipe(parent, feed[1], reports[0])
    try:
        for handle in (feed[1], reports[0], *supervisor_only):
            os.close(handle)
        null = os.open(os.devnull, os.O_RDWR)
        for handle in range(3):
            os.dup2(null, handle)
        _be_fence(child, marks, secret, listener, (feed[0], reports[1]))
    finally:
        os._exit(0)


def _be_fence(
    supervisor: int, marks: Tuple[str, str], secret: Optional[Secret], listener: Optional[int], pipes: Tuple[int, int]
) -> NoReturn:
    """Run as the fence until it is released or all is killed; never returns. ``pipes``: for leases, for reports."""
    try:
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        prctl.set_subreaper()
        prctl.lock_memory()
        control = socket.socket(fileno=listener) if listener is not None else None
        report_end = (lambda: answer(control, secret, ANSWER_TIME)) if control and secret else None
        Fence(supervisor, marks, *pipes, report_end).run()
    finally:
        os._exit(0)


def main(argv: List[str]) -> int:
    """Run the fence as a program of its own, where a warm server has forked it (preload/preload_server.py).

    ``argv``: the spool, the lease pipe and the pipe to the supervisor, run control's listening socket or ``-``, the
    supervisor's pid.
    """
    spool = Spool(argv[0])
    feed, reports, listener, supervisor = (None if argument == "-" else int(argument) for argument in argv[1:])
    try:
        secret: Optional[Secret] = Secret(spool.control_key(), spool.run, spool.plan().member)
    except FileNotFoundError:
        secret = None
    _be_fence(supervisor or 0, (spool.run, spool.host), secret, listener, (feed or 0, reports or 0))


class Fence:
    """The fence's work.

    ``marks`` are the node's run and host, ``feed`` the pipe that leases come from, ``reports`` the one by which
    the supervisor learns that the fence has acted. ``report_end`` tells other nodes that this node's part has ended.
    """

    def __init__(
        self,
        supervisor: int,
        marks: Tuple[str, str],
        feed: int,
        reports: int,
        report_end: Optional[Callable[[], object]],
    ) -> None:
        self.supervisor, self.marks, self.report_end = supervisor, marks, report_end
        self.feed, self.reports = feed, reports
        self.lease = ENDLESS_LEASE
        self.signalled_agent = 0  # pid of the agent that got SIGTERM
        self.acted = False
        os.set_blocking(feed, False)
        os.set_blocking(reports, False)

    def run(self) -> None:
        """Enforce the lease until the supervisor releases the fence, or all processes were killed after its death."""
        remain = False  # whether processes remain to be killed
        while True:
            select.select([self.feed], [], [], KILL_INTERVAL if remain else CHECK_INTERVAL)
            list(reap())  # children that have ended
            if not self.read():
                break
            if self.lease == RELEASE:
                return
            remain = self.act(boot_clock())
        deadline = boot_clock() + KILL_TIMEOUT
        while self.kill():
            if boot_clock() > deadline:  # a process hangs in the kernel; then the node's end is not reported
                return
            select.select([], [], [], KILL_INTERVAL)
            list(reap())  # children that have ended
        if self.report_end:
            self.report_end()

    def read(self) -> bool:
        """Read the newest lease; False when the supervisor has ended."""
        while self.lease != RELEASE:
            try:
                data = os.read(self.feed, SIZE)  # always a whole one: so few bytes are written at once or not at all
            except BlockingIOError:
                return True
            if not data:
                return False
            self.lease = Lease.unpack(data)
        return True

    def act(self, now: float) -> bool:
        """End what the lease does not allow; whether processes remain to be killed."""
        lease = self.lease
        if now < min(lease.term_at, lease.kill_at):
            self.acted, self.signalled_agent = False, 0
        elif now >= lease.kill_at:
            return self.kill()
        elif lease.agent and self.signalled_agent != lease.agent:
            self.signalled_agent = lease.agent
            stat = procfs.read_process(lease.agent)
            if stat and stat.parent == self.supervisor:
                os.kill(lease.agent, signal.SIGTERM)
                self.report_action()
        return False

    def report_action(self) -> None:
        """Tell the supervisor, once, that the fence has acted."""
        if not self.acted:
            self.acted = True
            try:
                os.write(self.reports, ACTED)
            except OSError:  # it has ended, or the pipe is full of such messages
                pass

    def kill(self) -> bool:
        """Send SIGKILL to all processes of the node except the supervisor; whether there were any, or may be."""
        try:
            live = self.live_processes()
        except OSError:  # no descriptor is left on this host
            return True
        if live:
            self.report_action()
        for process in live:
            if procfs.is_process(*process.identity):
                try:
                    os.kill(process.pid, signal.SIGKILL)
                except OSError:  # it has ended, or is another user's now
                    pass
        return bool(live)

    def live_processes(self) -> List[ProcStat]:
        """All processes of the node except the supervisor and this one; raises OSError if /proc cannot be read now."""
        table = procfs.snapshot()
        own = {os.getpid(), self.supervisor}
        if os.getpid() not in table:
            raise OSError("this process is not in /proc")
        below = procfs.subtree(own, table, ())
        unrelated: Set[int] = {pid for pid in below - own if self.is_unrelated(table.get(pid))}
        return [table[pid] for pid in procfs.subtree(own, table, unrelated) - own if pid in table]

    def is_unrelated(self, process: Optional[ProcStat]) -> bool:
        """Whether a process belongs to another run that was started from this node.

        A process in uninterruptible sleep is not checked: reading its environment may take as long as its sleep.
        """
        if process is None or process.state == "D" or process.pid == self.lease.agent:
            return False
        return procfs.run_and_host(process) not in (None, self.marks)
