"""The supervisor: our process on a host that owns the agent of one run. It outlives every connection.

One selector loop. It starts the agent (and, on the rendezvous host, the store), watches for their end, for
an order to stop and for the start's commit, keeps the logs' time index, and at the end leaves no process
behind and an exit record. Orders are files in the spool, so they need no connection to be kept.

Not here: what goes between the supervisors of a run (control.py); this loop only turns it.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Set

from . import proc, sweep
from .control import Control
from .index import IndexWriter
from .reap import exit_code, reap
from .spool import AGENT_LOG, FAIL_FAST_REASON, TIME_LIMIT, Spool
from .state import write_json
from .store import clients

TICK = 0.1  # seconds between looks at orders and log sizes
COMMIT_LIMIT = 60.0  # seconds within which the operator must say that all nodes have started
LEFTOVER_GRACE = 2.0  # seconds for what a script leaves running when it ends
LOST_LIMIT = 60.0  # seconds the lead waits for a node out of reach before the job is ended
FENCE = 120.0  # seconds a node goes on without the lead: its collectives are dead too
STORE_LIMIT = 330.0  # seconds the store waits for other nodes' agents: torchrun's exit barrier is 300
CANNOT_START = 127  # what a shell says of a program that cannot be started
FAIL_FAST_GRACE = 10.0  # seconds for the other nodes when one has failed
STORE_QUIET = 0.3  # seconds without a client after which the store has no more use


class Supervisor:
    """One node's processes and what was ordered for them."""

    def __init__(self, spool: Spool, environment: Dict[str, str], listeners: List[int]) -> None:
        self.spool = spool
        self.plan = spool.plan()
        self.environment = environment
        self.listener = listeners[0] if listeners else None  # of the store
        self.selector = selectors.DefaultSelector()
        self.done: Set[int] = set()  # ranks of nodes that have ended and said so
        # Ranks of nodes out of reach, since when; to the others only the lead's counts.
        self.missing: Dict[int, float] = {} if self.plan["node_rank"] == 0 else {0: time.monotonic()}
        self.control = self.join_control(listeners[1:])
        self.index = IndexWriter(spool.path("logs"))
        self.agent: Optional[int] = None
        self.store: Optional[int] = None
        self.agent_exit: Optional[int] = None
        self.order: Optional[Dict[str, Any]] = None  # the one that ends the run
        self.heard: Optional[Dict[str, Any]] = None  # the newest; it may shorten the grace
        self.kill_at = float("inf")
        self.born = time.monotonic()
        self.terminated = False
        self.store_again = False  # it was started a second time, the plain way
        self.umask = os.umask(0o077)

    def run(self) -> None:
        """The node's whole life."""
        self.spool.event("supervisor_started", pid=os.getpid())
        try:
            if self.listener is not None:
                self.store = self.start_store("quick")
            self.agent = self.start_agent()
        except OSError as error:
            self.give_up(error)
            return
        self.spool.event("agent_started", pid=self.agent)
        self.watch_children()
        while self.agent_exit is None:
            self.turn(TICK)
            self.look_for_orders()
        self.tell_end()
        survivors = sweep.end(self.leftovers, LEFTOVER_GRACE if self.order is None else 0.0)
        if self.store:
            self.end_store()
        self.index.finish(time.time_ns())
        self.write_exit(survivors)
        self.control.say("done")
        self.control.close()

    def give_up(self, error: OSError) -> None:
        """Nothing of the run can be started here: no interpreter, no folder, no memory."""
        self.agent_exit = CANNOT_START
        if self.store:
            self.end_store()
        reason = "cannot start %s in %s: %s" % (self.plan["python"], self.plan["cwd"], error.strerror or error)
        self.spool.write_exit("failed", 125, reason, agent_exit=None, survivors=[])

    def start_store(self, *how: str) -> int:
        """The rendezvous store, by the training interpreter, on the port already bound, which we keep open too."""
        argv = [self.plan["python"], "-u", self.spool.path("remote.pyz"), "store", str(self.listener), *how]
        return self.spawn(argv, "store.log", (self.listener,))

    def start_agent(self) -> int:
        """torchrun, in the folder and the environment of the plan."""
        return self.spawn([self.plan["python"], *self.plan["argv"]], os.path.join("logs", AGENT_LOG), ())

    def spawn(self, argv: List[str], log: str, keep: "tuple[Optional[int], ...]") -> int:
        """Start a child that dies with us; both its streams go to ``log`` in the spool."""
        out = os.open(self.spool.path(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = subprocess.Popen(
                argv,
                cwd=self.plan["cwd"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=[handle for handle in keep if handle is not None],
                preexec_fn=self.prepare_child,  # noqa: PLW1509 - this process has one thread
            )
        except OSError as error:
            os.write(out, ("clusterddp: cannot start %s: %s\n" % (argv[0], error)).encode())
            raise
        finally:
            os.close(out)
        child.returncode = 0  # we reap by pid ourselves; the object must not complain
        return child.pid

    def prepare_child(self) -> None:
        """In the child: die with the supervisor; the user's umask, and signals as a shell would leave them."""
        proc.set_pdeathsig(signal.SIGKILL)
        os.setpgid(0, 0)
        os.umask(self.umask)
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    def join_control(self, listeners: List[int]) -> Control:
        """This node's side of run control: the lead listens, the others connect to it."""
        key = self.spool.control_key()
        if self.plan["node_rank"] == 0:
            sockets = [socket.socket(fileno=handle) for handle in listeners]
            return Control(0, key, self.selector, self.take_message, listener=sockets[0] if sockets else None)
        place = self.plan["control"]
        lead = (str(place["address"]), int(place["port"]))
        return Control(self.plan["node_rank"], key, self.selector, self.take_message, lead=lead)

    def take_message(self, message: Dict[str, Any]) -> None:
        """A message of run control. An order becomes a tombstone here, so that there is one way to be stopped."""
        kind = message["kind"]
        if kind == "stop":
            self.spool.write_tombstone(str(message["reason"]), float(message["grace"]))
        elif kind == "failed":
            self.spool.write_tombstone(FAIL_FAST_REASON, FAIL_FAST_GRACE)
        elif kind == "done":
            self.done.add(message["rank"])
        elif kind == "lost":
            self.missing.setdefault(message["rank"], time.monotonic())
        elif kind == "joined":
            self.missing.pop(message["rank"], None)
            if self.order:
                self.pass_on(self.order)

    def pass_on(self, order: Dict[str, Any]) -> None:
        """Let an order reach all nodes: the lead tells everyone, the others tell the lead."""
        self.control.say("stop", reason=order["reason"], grace=order["grace"])

    def tell_end(self) -> None:
        """The agent has ended: a failure ends the job of a fixed size everywhere, attached or not."""
        if self.agent_exit and self.order is None:
            if self.plan["node_rank"] == 0:
                self.pass_on({"reason": FAIL_FAST_REASON, "grace": FAIL_FAST_GRACE})
            else:
                self.control.say("failed")

    def watch_children(self) -> None:
        """A child's end, and any signal, wakes the loop."""
        wake, waker = os.pipe()
        for handle in (wake, waker):
            os.set_blocking(handle, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self.selector.register(wake, selectors.EVENT_READ, lambda: os.read(wake, 512))

    def turn(self, timeout: float) -> None:
        """One turn of the loop: what descriptors and time ask for."""
        for key, _ in self.selector.select(timeout):
            key.data()
        self.reap()
        self.control.turn()
        self.index.poll(time.time_ns())

    def reap(self) -> None:
        """Note the agent's end; take away whatever orphan was left to us."""
        for pid, status in reap():
            if pid == self.agent:
                self.agent_exit = exit_code(status)
                self.spool.event("agent_exited", exit_code=self.agent_exit)
            elif pid == self.store:
                self.spool.event("store_exited", exit_code=exit_code(status))
                # Its quick start may not suit this torch; once it has served, a new one would know nothing.
                again = not self.store_again and "serving" not in self.store_said()
                self.store = self.start_store() if again else None
                self.store_again = True
            else:
                self.note_orphan(pid, status)

    def note_orphan(self, pid: int, status: int) -> None:
        """An orphan of ours ended; if it was a worker whose shim was killed, nobody else records its end."""
        events = [event for event in self.spool.events() if event.get("pid") == pid]
        if [event["event"] for event in events] != ["worker_started"]:
            return
        started = {name: events[0][name] for name in ("start", "local_rank", "rank", "pid")}
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = exit_code(status)
        self.spool.event("worker_exited", status=status, exit_code=code, signal=number, maxrss_kib=None, **started)
        sweep.kill_group(pid)

    def look_for_orders(self) -> None:
        """Carry out an order to stop: SIGTERM to the agent, SIGKILL to all after the grace."""
        now = time.monotonic()
        order = self.spool.tombstone() or self.own_order(now)
        if order and order != self.heard:
            self.heard = order
            if self.order is None:  # the first reason stands, whatever is ordered afterwards
                self.order = order
                self.spool.event("stopping", reason=order["reason"])
                os.kill(self.agent or os.getpid(), signal.SIGTERM)
                self.pass_on(order)
            self.kill_at = min(self.kill_at, now + float(order["grace"]))
        if now >= self.kill_at:
            for process in self.leftovers():
                sweep.send(process, signal.SIGKILL)

    def own_order(self, now: float) -> Optional[Dict[str, Any]]:
        """Reasons of our own to stop: a signal to us, or a start that was never completed."""
        if self.listener is not None and self.store is None:
            return {"reason": "the rendezvous store died: %s" % self.store_said(), "grace": 0.0, "ours": True}
        if self.terminated:
            return {"reason": "the supervisor was told to end (SIGTERM)", "grace": 10.0, "ours": True}
        if self.plan["time_limit"] and now - self.born > self.plan["time_limit"]:
            return {"reason": TIME_LIMIT, "grace": 10.0}
        if now - self.born > COMMIT_LIMIT and not os.path.exists(self.spool.path("committed")):
            return {"reason": "the operator was lost before every node had started", "grace": 0.0, "ours": True}
        limit = LOST_LIMIT if self.plan["node_rank"] == 0 else FENCE
        for rank in [rank for rank, since in self.missing.items() if rank not in self.done and now - since > limit]:
            return {
                "reason": "%s was lost" % self.plan["record"]["hosts"][rank],
                "grace": FAIL_FAST_GRACE,
                "ours": True,
            }
        return None

    def store_said(self) -> str:
        """The store's last line."""
        with open(self.spool.path("store.log"), encoding="utf-8", errors="replace") as log:
            return (log.read().strip().splitlines() or ["it said nothing"])[-1]

    def leftovers(self) -> List[sweep.Process]:
        """All processes of this node but the store, which other nodes still need."""
        self.reap()
        found = sweep.find(self.plan["run"], self.plan["host"], self.spool.folder, os.getpid())
        return [process for process in found if process.pid != self.store]

    def end_store(self) -> None:
        """Wait until no agent is connected to the store, then end it.

        At once after an order to stop, or when our own agent has failed: a job of a fixed size is over then,
        and without the store the other agents end too, instead of waiting in their exit barrier.
        """
        deadline = time.monotonic() + STORE_LIMIT
        quiet = time.monotonic()
        while time.monotonic() < deadline and not (
            self.agent_exit or self.order or self.terminated or self.spool.tombstone()
        ):
            if clients(self.plan["store"]["port"]):
                quiet = time.monotonic()
            elif time.monotonic() - quiet > STORE_QUIET:
                break
            self.turn(TICK / 2)
        store, self.store = self.store, None
        process = sweep.describe(store) if store else None
        if process:
            sweep.end(lambda: [p for p in [sweep.describe(process.pid)] if p], 0.0)

    def write_exit(self, survivors: List[sweep.Process]) -> None:
        """The exit record. Its code is this node's view; the verdict over all nodes is the operator's."""
        left = [{"pid": process.pid, "command": process.command} for process in survivors]
        fields = {"agent_exit": self.agent_exit, "survivors": left, "ours": bool((self.order or {}).get("ours"))}
        if self.order:
            self.spool.write_exit("stopped", 143, str(self.order["reason"]), **fields)
        elif self.agent_exit == 0:
            self.spool.write_exit("succeeded", 0, "", **fields)
        else:
            self.spool.write_exit("failed", self.agent_exit or 1, "the agent ended with %s" % self.agent_exit, **fields)


def main(argv: List[str]) -> int:
    """``argv``: the spool, and on the rendezvous host the listening descriptors of the store and of run control.

    Says ``ready`` on stdout.
    """
    spool = Spool(argv[0])
    environment = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    if spool.take_lock() is None:
        sys.stdout.write("another supervisor has this node\n")
        return 1
    order = spool.tombstone()
    if order:  # whoever wrote it saw no lock, and has said that nothing is left
        if not spool.exit_record():
            spool.write_exit("stopped", 143, order["reason"], agent_exit=None, survivors=[])
        sys.stdout.write("the run was stopped meanwhile\n")
        return 1
    proc.set_subreaper()
    write_json(
        spool.path("supervisor.json"),
        {"pid": os.getpid(), "start_ticks": proc.start_ticks(os.getpid()), "boot": proc.boot_identity()},
    )
    supervisor = Supervisor(spool, environment, [int(handle) for handle in argv[1:]])

    def terminate(*_: object) -> None:
        supervisor.terminated = True

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    os.dup2(null, 1)
    supervisor.run()
    return 0
