"""Start, reap and find a supervisor's children: the agent, and on the rendezvous host the store."""

import os
import resource
import selectors
import signal
import socket
import subprocess
import time
from typing import Callable, Dict, List, Optional, Set, Tuple

from ..processes import terminate
from ..processes.ownership import NodeProcesses
from ..processes.roster import RosterWriter
from ..processes.stacks import live_workers
from ..rendezvous.participants import Participants
from ..shared.processes.exit_codes import EXIT_CANNOT_START
from ..shared.run.node_env import STATIC
from ..shared.run.plan import AGENT_LOG, BACKEND, PARTICIPANTS, PORT_PLACEHOLDER, NodePlan
from ..shared.run.spool_records import LeftProcess
from ..spool.layout import Spool
from ..system import prctl, procfs
from ..system.clock import boot_clock
from ..system.wait_status import exit_code, reap
from ..worker.worker_env import fork_server_environment
from .fork_server_process import IMPORT_TIMEOUT, LOG, Fork, ForkServer, server_argv

NEVER = float("inf")
LEASE_INTERVAL = 0.5  # seconds between two messages to the agent that only extend its lease
STORE_LOG = "store.log"
MAX_STORE_OUTPUT = 1 << 20  # bytes of the log that are read


class Children:
    """One node's processes.

    The file thread makes it, and calls only ``record_orphan`` and the roster's methods later. ``environment`` is the
    agent's. ``listener`` is the store's listening socket, on the rendezvous host; it stays open here too. ``umask`` and
    ``file_limits`` (open files, soft and hard) are the user's, for the processes started; the supervisor's own differ.
    ``event`` appends an event; ``do`` queues a function for the file thread.
    """

    def __init__(
        self,
        spool: Spool,
        plan: NodePlan,
        environment: Dict[str, str],
        listener: Optional[int],
        umask: int,
        file_limits: Tuple[int, int],
        event: Callable[..., None],
        do: Callable[[Callable[[], object]], None],
    ) -> None:
        self.spool, self.plan, self.event, self.do = spool, plan, event, do
        self.environment = environment
        self.listener = listener
        self.owns_store = listener is not None and self.plan.settings.rdzv_backend != STATIC
        if listener is not None and not self.owns_store:
            hold_port(listener)
        self.agent: Optional[int] = None
        self.agent_exit: Optional[int] = None
        self.start_deadline = NEVER  # boot clock time from which it is too late to start the agent
        # The socket that tells the agent which nodes take part, and the agent's end of it.
        self.agent_socket: Optional[socket.socket] = None
        self.agent_side: Optional[socket.socket] = None
        self._sent: Optional[Participants] = None
        self._sent_at = 0.0
        self.store: Optional[int] = None
        self.store_restarted = False  # whether the store was started a second time, the plain way
        self.store_terminated = False  # whether the store ended by SIGTERM
        self.fork_server: Optional[ForkServer] = None
        self.forks: Dict[str, Fork] = {}  # by role: requested from the fork server, and without an order yet
        self.umask, self.file_limits = umask, file_limits
        forks = bool(plan.worker_argv)
        logs = [STORE_LOG, os.path.join("logs", AGENT_LOG), *([LOG] if forks else [])]
        self.logs = {name: _open_log(spool.path(name)) for name in logs}
        self.server_environment = dict(environment, **spool.secrets()) if forks else {}
        self.start_error = ""  # why the agent cannot be started
        self.processes = NodeProcesses.of(spool, os.getpid())
        self.roster = RosterWriter(spool)
        self.killed: Set[Tuple[int, int]] = set()  # pid and start time of each that needed SIGKILL

    @property
    def store_died(self) -> bool:
        """Whether the store should run and does not."""
        return self.owns_store and self.store is None and "store" not in self.forks

    def start_store(self, how: str = "quick") -> None:
        """Start the rendezvous store, if it is this node's, with the training interpreter, on the port already bound.

        If it cannot be started, neither can the agent, whose start reports that.
        """
        if not self.owns_store:
            return
        try:
            self.store = self.spawn(self._store_argv(how), self.logs[STORE_LOG], (self.listener,))
        except OSError:  # its log says why; the agent has the same interpreter
            self.store = None

    def _store_argv(self, how: str) -> List[str]:
        """``how``: ``quick``, ``plain`` or ``forked``: how the store imports torch (rendezvous/store.py)."""
        return [self.plan.python, "-u", self.spool.code, "store", str(self.listener), how]

    def adopt_fork_server(self, pid: int, handle: int) -> None:
        """Take over a running fork server: its pid, and the descriptor of the socket to it."""
        self.fork_server = ForkServer(pid, socket.socket(fileno=handle), self.event)

    def start_fork_server(self, selector: selectors.BaseSelector) -> None:
        """Start the process that imports torch once for the run, if the plan wants one and there is none yet."""
        if LOG not in self.logs:
            return
        if self.fork_server:
            self.fork_server.register(selector)
            return
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = fork_server_environment(self.server_environment, self.spool.folder, its.fileno())
        try:
            if "CLUSTERDDP_HOOK" not in env:  # PYTHONPATH cannot hold the spool's path
                raise OSError("the spool's path holds a colon")
            pid = self.spawn(server_argv(self.plan), self.logs[LOG], (its.fileno(),), env)
        except OSError as error:  # the agent has the same interpreter: its start reports that
            self.event("not_forked", reason=str(error))
            ours.close()
        else:
            self.fork_server = ForkServer(pid, ours, self.event)
            self.fork_server.register(selector)
        finally:
            its.close()

    def take_over(self, before: "Children") -> None:
        """Take over the fork server of the attempt before."""
        self.fork_server, before.fork_server = before.fork_server, None
        if self.fork_server:
            self.fork_server.event = self.event

    def begin(self) -> None:
        """Start the store, and request the agent's fork from the fork server, if there is one."""
        if self.plan.standby:
            return
        patience = IMPORT_TIMEOUT if self.plan.attempt == 1 else 0.0
        if self.plan.settings.rdzv_backend == BACKEND:  # torchrun's own rendezvous does not use it
            self.agent_socket, self.agent_side = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.agent_socket.setblocking(False)
        roles = {"agent": self.agent_side.fileno() if self.agent_side else None}
        if self.owns_store:
            roles["store"] = self.listener
        for role, handle in roles.items():
            server, folder = self.fork_server, self.spool.folder
            fork = server.ask(role, folder, [handle] if handle is not None else [], patience) if server else None
            if fork:
                self.forks[role] = fork
        if "store" not in self.forks:
            self.start_store()

    def forking(self) -> bool:
        """Whether a fork of the agent or the store is still pending."""
        store = self.forks.get("store")
        if store and not store.pending:
            del self.forks["store"]
            argv = self._store_argv("forked")
            self.store = store.order(argv, self.environment, self.spool.path(STORE_LOG), NEVER)
            if self.store is None:
                self.start_store()
            else:
                self.event("store_forked", pid=self.store)
        return any(fork.pending for fork in self.forks.values())

    def end_fork_server(self, *, for_good: bool = False) -> None:
        """End the fork server where no worker will start any more: no attempt can follow, or ``for_good``."""
        if self.fork_server and (for_good or self.plan.attempt > self.plan.settings.relaunch):
            self.fork_server.end()
        for fork in self.forks.values():
            fork.end()
        self.forks.clear()

    def start_agent(self, store_port: int) -> None:
        """Start torchrun, in the folder and environment of the plan; raises OSError."""
        argv = list(self.plan.argv)
        if "--rdzv-endpoint" in argv:
            position = argv.index("--rdzv-endpoint") + 1
            argv[position] = argv[position].replace(PORT_PLACEHOLDER, str(store_port))
        argv = [self.plan.python, *argv]
        fork = self.forks.pop("agent", None)
        if fork:
            self.agent = fork.order(
                argv, self.environment, os.path.join(self.spool.logs, AGENT_LOG), self.start_deadline
            )
        forked, theirs = self.agent is not None, self.agent_side
        if self.agent is None:
            env = dict(self.environment, **({PARTICIPANTS: str(theirs.fileno())} if theirs else {}))
            self.agent = self.spawn(argv, self.agent_log, (theirs.fileno() if theirs else None,), env)
        if theirs:
            theirs.close()
            self.agent_side = None
        self.event("agent_started", pid=self.agent, forked=forked)

    def inform_agent(self, participants: Participants) -> None:
        """Send the agent the participating nodes and the time until which it may run without another message."""
        now = boot_clock()
        changed = self._sent is None or participants[:4] != self._sent[:4]
        is_shorter = self._sent is not None and participants.kill_at < self._sent.kill_at
        due = participants != self._sent and now - self._sent_at >= LEASE_INTERVAL
        if self.agent_socket is None or not (changed or is_shorter or due):
            return
        try:
            self.agent_socket.send(participants.pack())
        except BlockingIOError:  # it has been stopped for minutes
            return
        except OSError:  # it has ended
            self.agent_socket.close()
            self.agent_socket = None
            return
        self._sent, self._sent_at = participants, now

    @property
    def agent_log(self) -> int:
        """The descriptor of the agent's output."""
        return self.logs[os.path.join("logs", AGENT_LOG)]

    def agent_bytes(self) -> int:
        """How many bytes the agent has written."""
        return os.fstat(self.agent_log).st_size

    def spawn(
        self, argv: List[str], out: int, keep: "tuple[Optional[int], ...]", env: Optional[Dict[str, str]] = None
    ) -> int:
        """Start a child that dies with this process; both its output streams go to the descriptor ``out``."""
        try:
            child = subprocess.Popen(
                argv,
                cwd=self.plan.cwd,
                env=self.environment if env is None else env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=[handle for handle in keep if handle is not None],
                preexec_fn=self.prepare_child,  # noqa: PLW1509 - it takes no lock that the other thread may hold
            )
        except OSError as error:
            os.write(out, ("clusterddp: cannot start %s: %s\n" % (argv[0], error)).encode())
            raise
        child.returncode = 0  # we reap by pid ourselves; without this the object would warn
        return child.pid

    def prepare_child(self) -> None:
        """In the child: die with the supervisor; set the user's umask, and signals as a shell would leave them."""
        if boot_clock() >= self.start_deadline:  # we were delayed, and the other nodes may be in a later attempt
            os._exit(EXIT_CANNOT_START)
        prctl.set_pdeathsig(signal.SIGKILL)
        os.setpgid(0, 0)
        os.umask(self.umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, self.file_limits)
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    def reap(self) -> None:
        """Reap ended children: note the agent's or store's end, and record orphans.

        Where the agent is reaped in the same call, an orphan counts as ended before it: its end is often why the
        agent ended, and the supervisor ends nothing for the agent's end before it knows of it.
        """
        now = time.time_ns()
        for pid, status in reap():
            for process in (self.fork_server, *self.forks.values()):
                if process:
                    process.note_exit(pid)
            if pid == self.agent:
                self.agent_exit = exit_code(status)
                self.event("agent_exited", exit_code=self.agent_exit)
            elif pid == self.store:
                self.event("store_exited", exit_code=exit_code(status))
                self.store_terminated = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
                # Its quick start may not suit this torch. Once it has served, a new store would lack its data.
                restart = not self.store_restarted and "serving" not in self.store_output()
                self.store = None
                self.store_restarted = True
                if restart:
                    self.start_store("plain")
            else:
                self._queue_orphan_record(pid, status, self.agent_bytes(), now)

    def _queue_orphan_record(self, pid: int, status: int, agent_bytes: int, time_ns: int) -> None:
        self.do(lambda: self.record_orphan(pid, status, agent_bytes, time_ns))

    def record_orphan(self, pid: int, status: int, agent_bytes: int, time_ns: int) -> None:
        """Record the end of an orphan at ``time_ns``, if it was a worker whose shim was killed: nobody else does."""
        worker = next((event for event in live_workers(self.spool.events()) if event.pid == pid), None)
        if worker is None:
            return
        started = {name: getattr(worker, name) for name in ("start", "local_rank", "rank", "pid")}
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = exit_code(status)
        ended = {"status": status, "exit_code": code, "signal": number, "maxrss_kib": None}
        self.spool.event("worker_exited", time=time_ns, agent_bytes=agent_bytes, orphan=True, **ended, **started)
        if not procfs.exists(pid):  # else the pid was reused, which happens only once its group is empty
            terminate.kill_group(pid)

    def store_output(self) -> str:
        """The store's last line of output."""
        output = os.pread(self.logs[STORE_LOG], MAX_STORE_OUTPUT, 0).decode(errors="replace")
        return (output.strip().splitlines() or ["it said nothing"])[-1]

    def leftovers(self) -> List[LeftProcess]:
        """All processes of this node except the store, which other nodes still need, and the fork server.

        The fork server runs none of the user's code, and ends with this process at the latest.
        """
        self.reap()
        excluded = {self.store, self.fork_server.pid if self.fork_server else None}
        return [terminate.describe(process) for process in self.processes.find() if process.pid not in excluded]

    def kill(self) -> None:
        """Send SIGKILL to all processes of this node except the store."""
        self.end_fork_server()
        for process in self.leftovers():
            terminate.kill(process, self.killed)

    def end(self, grace: float) -> terminate.Termination:
        """A ``Termination`` of all processes of this node except the store; its steps must not delay run control."""
        self.end_fork_server()
        return terminate.Termination(self.leftovers, grace, killed=self.killed)

    def hidden_children(self) -> List[int]:
        """The children that /proc does not show, because other users' processes are hidden.

        All descendants become this process's children in the end, so without any child no process of this node is left.
        """
        hidden = None
        for _ in range(3):  # a process that starts or ends between two passes is not in all of them
            self.reap()
            now = set(procfs.own_children()) - set(procfs.snapshot())
            hidden = now if hidden is None else hidden & now
        return sorted(hidden or ())

    def close(self) -> None:
        """Close what the attempt has open; nothing is started any more."""
        for log in self.logs.values():
            os.close(log)
        self.logs = {}
        for end in (self.agent_socket, self.agent_side):
            if end:
                end.close()
        self.agent_socket = self.agent_side = None

    def kill_store(self) -> None:
        """End the store, if there is one, and the fork server."""
        self.end_fork_server()
        store, self.store = self.store, None
        if self.listener is not None:
            os.close(self.listener)  # else callers would now wait for an answer instead of being refused
        self.listener = None
        process = terminate.describe_pid(store) if store else None
        if process:
            terminate.terminate_all(lambda: [p for p in [terminate.describe_pid(process.pid)] if p], 0.0)


def _open_log(path: str) -> int:
    """Open a log; it stays open, so that starting something later needs no path lookup."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def hold_port(listener: int) -> None:
    """Keep the port of a listening socket without listening, so that hardly anything but the agent can bind it."""
    with socket.socket(fileno=os.dup(listener)) as copy:
        copy.shutdown(socket.SHUT_RDWR)
