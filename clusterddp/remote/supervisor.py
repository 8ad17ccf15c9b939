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
import sys
import time
from typing import Any, Dict, List, Optional, Set

from . import proc, sweep
from .children import Children
from .control import Control
from .index import IndexWriter
from .spool import FAIL_FAST_REASON, TIME_LIMIT, Spool
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
FAREWELL = 5.0  # seconds to reach the lead with what a node that ends has to say
STORE_QUIET = 0.3  # seconds without a client after which the store has no more use


class Supervisor:
    """One node's processes and what was ordered for them."""

    def __init__(self, spool: Spool, environment: Dict[str, str], listeners: List[int]) -> None:
        self.spool = spool
        self.plan = spool.plan()
        self.children = Children(spool, environment, listeners[0] if listeners else None)
        self.selector = selectors.DefaultSelector()
        self.done: Set[int] = set()  # ranks of nodes that have ended and said so
        # Ranks of nodes out of reach, since when; to the others only the lead's counts.
        self.missing: Dict[int, float] = {} if self.plan["node_rank"] == 0 else {0: time.monotonic()}
        self.control = self.join_control(listeners[1:])
        self.index = IndexWriter(spool.path("logs"))
        self.order: Optional[Dict[str, Any]] = None  # the one that ends the run
        self.heard: Optional[Dict[str, Any]] = None  # the newest; it may shorten the grace
        self.kill_at = float("inf")
        self.born = time.monotonic()
        self.terminated = False

    def run(self) -> None:
        """The node's whole life."""
        self.spool.event("supervisor_started", pid=os.getpid())
        try:
            self.children.start()
        except OSError as error:
            self.give_up(error)
            return
        self.watch_children()
        while self.children.agent_exit is None:
            self.turn(TICK)
            if self.children.agent_exit is None:  # else its pid may be another process's by now
                self.look_for_orders()
        self.tell_end()
        survivors = sweep.end(self.children.leftovers, LEFTOVER_GRACE if self.order is None else 0.0)
        self.end_store()
        self.index.finish(time.time_ns())
        self.write_exit(survivors)
        self.leave_control()

    def give_up(self, error: OSError) -> None:
        """Nothing of the run can be started here: no interpreter, no folder, no memory."""
        self.children.agent_exit = CANNOT_START
        self.children.kill_store()
        reason = "cannot start %s in %s: %s" % (self.plan["python"], self.plan["cwd"], error.strerror or error)
        self.spool.write_exit("failed", 125, reason, agent_exit=None, survivors=[])
        self.tell_end()
        self.leave_control()

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
        if self.children.agent_exit and self.order is None:
            if self.plan["node_rank"] == 0:
                self.pass_on({"reason": FAIL_FAST_REASON, "grace": FAIL_FAST_GRACE})
            else:
                self.control.say("failed")

    def leave_control(self) -> None:
        """Say that this node is done, once what it had to say before was said."""
        deadline = time.monotonic() + FAREWELL
        while self.control.waiting and time.monotonic() < deadline:
            self.turn(TICK)
        self.control.say("done")
        self.control.close()

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
        self.children.reap()
        self.control.turn()
        self.index.poll(time.time_ns())

    def look_for_orders(self) -> None:
        """Carry out an order to stop: SIGTERM to the agent, SIGKILL to all after the grace."""
        now = time.monotonic()
        order = self.spool.tombstone() or self.own_order(now)
        if order and order != self.heard:
            self.heard = order
            if self.order is None:  # the first reason stands, whatever is ordered afterwards
                self.order = order
                self.spool.event("stopping", reason=order["reason"])
                os.kill(self.children.agent or os.getpid(), signal.SIGTERM)
                self.pass_on(order)
            self.kill_at = min(self.kill_at, now + float(order["grace"]))
        if now >= self.kill_at:
            for process in self.children.leftovers():
                sweep.send(process, signal.SIGKILL)

    def own_order(self, now: float) -> Optional[Dict[str, Any]]:
        """Reasons of our own to stop: a signal to us, or a start that was never completed."""
        if self.children.store_died:
            return {"reason": "the rendezvous store died: %s" % self.children.store_said(), "grace": 0.0, "ours": True}
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

    def end_store(self) -> None:
        """Wait until no agent is connected to the store, then end it.

        At once after an order to stop, or when our own agent has failed: a job of a fixed size is over then,
        and without the store the other agents end too, instead of waiting in their exit barrier.
        """
        deadline = time.monotonic() + STORE_LIMIT
        quiet = time.monotonic()
        while self.children.store and time.monotonic() < deadline and not self.hurried():
            if clients(self.plan["store"]["port"]):
                quiet = time.monotonic()
            elif time.monotonic() - quiet > STORE_QUIET:
                break
            self.turn(TICK / 2)
        self.children.kill_store()

    def hurried(self) -> bool:
        """Whether nothing is to be waited for any more."""
        return bool(self.children.agent_exit or self.order or self.terminated or self.spool.tombstone())

    def write_exit(self, survivors: List[sweep.Process]) -> None:
        """The exit record. Its code is this node's view; the verdict over all nodes is the operator's."""
        agent_exit = self.children.agent_exit
        left = [{"pid": process.pid, "command": process.command} for process in survivors]
        fields = {"agent_exit": agent_exit, "survivors": left, "ours": bool((self.order or {}).get("ours"))}
        if self.order:
            self.spool.write_exit("stopped", 143, str(self.order["reason"]), **fields)
        elif agent_exit == 0:
            self.spool.write_exit("succeeded", 0, "", **fields)
        else:
            self.spool.write_exit("failed", agent_exit or 1, "the agent ended with %s" % agent_exit, **fields)


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
