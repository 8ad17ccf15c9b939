"""The fence: the process above a node's supervisor, which ends the node's part where the supervisor cannot.

A supervisor may be held in a call that does not return (fsync on a disk that stalls), stopped, or killed, while its
agent works on. The others take it for lost then and may begin another attempt. So the fence is forked before anything
else of a node, and the supervisor is its child. It holds a lease (supervisor/fence_pipe.py) that the supervisor renews
while its loop turns and it is in contact with a majority:

    the lease ends           SIGTERM to the agent, after the grace SIGKILL to all of the node but the supervisor, again
                             and again until it is renewed. The supervisor, once it goes on, hears of it and records it.
    the supervisor is gone   SIGKILL to all of the node; then, for a while, it answers on run control's port, under the
                             run's key, that this node's part has ended.
    the supervisor ends      it ends first.

Its times are of the boot clock, so of a host that slept it ends what it must within ``TURN`` of waking. It opens no
file but of /proc, writes none, and keeps its memory from being swapped out where it may. It adopts what the supervisor
leaves behind, so all of a node descends from it; what descends from here and names another run is a stranger, as
everywhere (processes/ownership.py). If the fence dies, the supervisor ends the node's part
(supervisor/stop_conditions.py).
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
from .fence_pipe import ACTED, ENDLESS, OVER, SIZE, FencePipe, Lease

TURN = 0.25  # seconds between looks at the clock
AGAIN = 0.02  # seconds between looks while processes end
PATIENCE = 60.0  # seconds for processes that SIGKILL does not end at once
TOLD = 60.0  # seconds in which it answers the others
DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1)  # the supervisor hears them


def fork_fence(
    marks: Tuple[str, str], secret: Optional[Secret], listener: Optional[int], others: Sequence[int]
) -> FencePipe:
    """Fork: this process becomes the fence and does not return; its child, the supervisor, gets the pipes' other ends.

    Args:
        marks: The run and the host.
        secret: What the node can prove to others, if it has the key.
        listener: Run control's listening socket, if there is one.
        others: Descriptors that are the supervisor's alone.
    """
    feed, told = os.pipe(), os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        os.close(feed[0])
        os.close(told[1])
        return FencePipe(parent, feed[1], told[0])
    try:
        for handle in (feed[1], told[0], *others):
            os.close(handle)
        null = os.open(os.devnull, os.O_RDWR)
        for handle in range(3):
            os.dup2(null, handle)
        _be_fence(child, marks, secret, listener, (feed[0], told[1]))
    finally:
        os._exit(0)


def _be_fence(
    supervisor: int, marks: Tuple[str, str], secret: Optional[Secret], listener: Optional[int], pipes: Tuple[int, int]
) -> NoReturn:
    try:
        for number in DEAF_TO:
            signal.signal(number, signal.SIG_IGN)
        prctl.set_subreaper()
        prctl.lock_memory()
        own = socket.socket(fileno=listener) if listener is not None else None
        speak = (lambda: answer(own, secret, TOLD)) if own and secret else None
        Fence(supervisor, marks, *pipes, speak).run()
    finally:
        os._exit(0)


def main(argv: List[str]) -> int:
    """``argv``: the spool, lease and word pipes, run control's listening socket or ``-``, the supervisor's pid.

    The fence as a program of its own, where a warm server has forked it (preload/preload_server.py).
    """
    spool = Spool(argv[0])
    feed, told, listener, supervisor = (None if word == "-" else int(word) for word in argv[1:])
    try:
        secret: Optional[Secret] = Secret(spool.control_key(), spool.run, spool.plan().place)
    except FileNotFoundError:
        secret = None
    _be_fence(supervisor or 0, (spool.run, spool.host), secret, listener, (feed or 0, told or 0))


class Fence:
    """The fence's work.

    Args:
        supervisor: Its pid.
        marks: The run and the host of the node.
        feed: Where leases come from.
        told: Where it says that it has acted.
        speak: Tells the others that this node's part has ended.
    """

    def __init__(
        self, supervisor: int, marks: Tuple[str, str], feed: int, told: int, speak: Optional[Callable[[], object]]
    ) -> None:
        self.supervisor, self.marks, self.feed, self.told, self.speak = supervisor, marks, feed, told, speak
        self.lease = ENDLESS
        self.termed = 0  # the agent that got SIGTERM
        self.acted = False
        os.set_blocking(feed, False)
        os.set_blocking(told, False)

    def run(self) -> None:
        """Until the supervisor is gone, and all of the node with it."""
        left = False
        while True:
            select.select([self.feed], [], [], AGAIN if left else TURN)
            self.reap()
            if not self.read():
                break
            if self.lease == OVER:
                return
            left = self.act(boot_clock())
        deadline = boot_clock() + PATIENCE
        while self.kill():
            if boot_clock() > deadline:  # in the kernel for good; nothing is said then
                return
            select.select([], [], [], AGAIN)
            self.reap()
        if self.speak:
            self.speak()

    def read(self) -> bool:
        """Take the newest lease; False when the supervisor is gone."""
        while self.lease != OVER:
            try:
                data = os.read(self.feed, SIZE)  # whole ones: so few bytes are written at once or not at all
            except BlockingIOError:
                return True
            if not data:
                return False
            self.lease = Lease.of(data)
        return True

    def act(self, now: float) -> bool:
        """End what must not go on; whether there still was something to kill."""
        lease = self.lease
        if now < min(lease.term_at, lease.kill_at):
            self.acted, self.termed = False, 0
        elif now >= lease.kill_at:
            return self.kill()
        elif lease.agent and self.termed != lease.agent:
            self.termed = lease.agent
            stat = procfs.read_process(lease.agent)
            if stat and stat.parent == self.supervisor:
                os.kill(lease.agent, signal.SIGTERM)
                self.say()
        return False

    def say(self) -> None:
        """Let the supervisor know, once it can hear."""
        if not self.acted:
            self.acted = True
            try:
                os.write(self.told, ACTED)
            except OSError:  # it is gone, or has long been told
                pass

    def kill(self) -> bool:
        """SIGKILL to all of the node but the supervisor; whether there was anything, or may be."""
        try:
            living = self.living()
        except OSError:  # no descriptor is left on this host
            return True
        if living:
            self.say()
        for process in living:
            if procfs.start_ticks(process.pid) == process.ticks:
                try:
                    os.kill(process.pid, signal.SIGKILL)
                except OSError:  # it has ended, or has another user's rights now
                    pass
        return bool(living)

    def living(self) -> List[ProcStat]:
        """All processes of the node but the supervisor and this one.

        Raises:
            OSError: /proc cannot be read now.
        """
        table = procfs.snapshot()
        own = {os.getpid(), self.supervisor}
        if os.getpid() not in table:
            raise OSError("this process is not in /proc")
        below = procfs.subtree(own, table, ())
        strangers: Set[int] = {pid for pid in below - own if self.is_strange(table.get(pid))}
        return [table[pid] for pid in procfs.subtree(own, table, strangers) - own if pid in table]

    def is_strange(self, process: Optional[ProcStat]) -> bool:
        """Whether it is of another run that was started from here.

        Not asked of one that sleeps in the kernel: to read its environment may take as long as its sleep.
        """
        if process is None or process.state == "D" or process.pid == self.lease.agent:
            return False
        return procfs.run_and_host(process) not in (None, self.marks)

    @staticmethod
    def reap() -> None:
        """Take away children that have ended."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # none is left
            pass
