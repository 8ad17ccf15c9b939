"""The supervisor: our process on a host that owns the agent of one run. It outlives every connection.

One selector loop over all attempts of the run. In each it starts the agent (and, where the plan says so, the
store), watches for their end and for orders, keeps the logs' time index, and at the end leaves no process behind
and an exit record. Orders are files in the spool, so they need no connection to be kept.

Not here: the processes (supervisor/children.py), reasons of our own to end (supervisor/stop_conditions.py), what
goes between the supervisors of a run (control/leader.py, control/voice.py), what is known of the others
(control/membership.py), whether another attempt follows (supervisor/relaunch.py).
"""

import json
import os
import selectors
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Optional

from ..control.leader import Control
from ..control.membership import ENDED, Peers
from ..control.voice import Voice
from ..logs.limit import LogLimit
from ..logs.time_index import IndexWriter
from ..processes import terminate
from ..rendezvous.store import clients
from ..shared import failures
from ..shared.failures import FAIL_FAST_REASON
from ..shared.plan import NodePlan
from ..shared.records import written
from ..spool.layout import Spool
from ..system import prctl
from .children import Children
from .next_attempt import STANDBY
from .relaunch import Relaunching, may_follow
from .status import evidence
from .stop_conditions import Orders, of_attempt

TICK = 0.1  # seconds between looks at orders and log sizes
LEFTOVER_GRACE = 2.0  # seconds for what a script leaves running when it ends
STORE_LIMIT = 330.0  # seconds the store waits for other nodes' agents: torchrun's exit barrier is 300
CANNOT_START = 127  # what a shell says of a program that cannot be started
FAIL_FAST_GRACE = 10.0  # seconds for the other nodes when one has failed
FAREWELL = 5.0  # seconds to reach the lead with what a node that ends has to say
STORE_LOST = 10.0  # seconds a node has been out of reach when the store does not wait for it any more
STORE_QUIET = 0.3  # seconds without a client after which the store has no more use
NEVER = float("inf")


class Supervisor:
    """One node's processes, what was ordered for them, and its voice among the run's nodes.

    Args:
        spool: Of the first attempt.
        environment: The agent's.
        store: The store's listening socket, on the rendezvous host.
        listener: Run control's, where there are several nodes.
    """

    def __init__(
        self, spool: Spool, environment: Dict[str, str], store: Optional[int], listener: Optional[int]
    ) -> None:
        self.selector = selectors.DefaultSelector()
        self.peers = Peers(spool.plan())
        self.place = self.peers.place
        own = socket.socket(fileno=listener) if listener is not None else None
        self.control = Control(self.place, spool.control_key(), self.selector, self.take_message, own)
        self.voice = Voice(self.control, self.peers)
        self.orders = Orders(self.control, self.peers)
        self.relaunching = Relaunching(self.control, self.peers, self.orders)
        self.umask = os.umask(0o077)  # once: in a later attempt it would be our own
        self.begin(spool, environment, store)

    def begin(self, spool: Spool, environment: Dict[str, str], store: Optional[int]) -> None:
        """Turn to an attempt; the store, if it is ours, starts at once, its importing of torch takes longest."""
        self.spool, self.peers.plan = spool, spool.plan()
        self.voice.begin(spool)
        self.orders.begin(spool)
        self.children = Children(spool, environment, store, self.umask)
        self.index = IndexWriter(spool.path("logs"))
        self.limits = LogLimit(spool)
        self.order: Optional[Dict[str, Any]] = None  # the one that ends the attempt
        self.heard: Optional[Dict[str, Any]] = None  # the newest; it may shorten the grace
        self.told: Optional[Dict[str, Any]] = None  # ended for a reason of this attempt alone: another one may follow
        self.kill_at = NEVER
        self.spool.event("supervisor_started", pid=os.getpid())

    @property
    def plan(self) -> NodePlan:
        """This node's plan of the attempt under way."""
        return self.peers.plan

    def run(self) -> None:
        """The node's whole life."""
        self.watch_children()
        if self.wait_for_commit():
            while self.attempt():
                pass
        deadline = time.monotonic() + FAREWELL
        while self.control.waiting and not self.control.leading and time.monotonic() < deadline:
            self.turn(TICK)
        self.voice.leave()

    def wait_for_commit(self) -> bool:
        """Until all nodes are ready to start; False if an order to stop came before."""
        self.children.start_store()
        ready = self.spool.committed()
        while not ready:
            self.turn(TICK)
            self.order = self.spool.stop_order() or self.orders.final(time.monotonic())
            if self.order:
                self.children.kill_store()
                self.write_exit([])
                return False
            ready = self.spool.committed()
        self.control.begin([(str(address), int(port)) for address, port in ready["peers"]])
        return True

    def attempt(self) -> bool:
        """This node's part in one attempt; whether another follows."""
        if self.plan.standby:
            self.tell(STANDBY)
        else:
            self.take_part()
            self.tell(ENDED, code=self.children.agent_exit, **self.cause())
        following = self.relaunching.wait(self)
        if following is None:
            return False
        self.begin(*following)
        self.children.start_store()
        return True

    def take_part(self) -> None:
        """Run the agent to its end, and clear up."""
        try:
            self.children.start_agent()
        except OSError as error:
            self.give_up(error)
            return
        self.tell("running")
        while self.children.agent_exit is None:
            self.turn(TICK)
            if self.children.agent_exit is None:  # else its pid may be another process's by now
                self.look_for_orders()
        self.tell("ending", code=self.children.agent_exit)
        survivors = self.children.end(LEFTOVER_GRACE if self.order is None else 0.0)
        self.end_store()
        self.index.finish(time.time_ns())
        self.limits.finish()
        self.write_exit(survivors)

    def give_up(self, error: OSError) -> None:
        """Nothing of the run can be started here: no interpreter, no folder, no memory."""
        self.children.agent_exit = CANNOT_START
        self.tell("ending", code=CANNOT_START)
        self.children.kill_store()
        reason = "cannot start %s in %s: %s" % (self.plan.python, self.plan.cwd, error.strerror or error)
        self.spool.write_exit("failed", 125, reason, agent_exit=None, survivors=[])

    # Run control

    def take_message(self, message: Dict[str, Any]) -> None:
        """A message of run control."""
        kind = message["kind"]
        if kind == "stop":
            self.spool.write_stop_order(str(message["reason"]), float(message["grace"]))
        elif kind == "end":
            if message["attempt"] == self.plan.attempt:
                self.told = self.told or {name: message[name] for name in ("reason", "grace", "ours", "attempt")}
        elif kind in {"attempt", "over"}:
            self.relaunching.take_message(message)
        else:
            self.voice.take_message(message)
            if kind == "word":
                self.hear_of_end(message["word"])

    def tell(self, state: str, **fields: Any) -> None:
        """Let the lead, and by it everyone, know of this node."""
        if self.plan.joined:
            fields["joined"] = {"peer": written(self.plan.peers[self.place]), "control": self.plan.bound[1]}
        self.voice.tell(dict(fields, state=state, attempt=self.plan.attempt))
        self.hear_of_end(self.peers.told[self.place])

    def hear_of_end(self, word: Dict[str, Any]) -> None:
        """An agent that failed ends a job of a fixed size everywhere, attached or not: the lead says so."""
        failed = word["state"] in {"ending", ENDED} and word.get("code") and word["attempt"] == self.plan.attempt
        if failed and self.control.leading and not self.goes_on():
            order = of_attempt(self.plan, FAIL_FAST_REASON, FAIL_FAST_GRACE, ours=False)
            self.voice.pass_on(order)
            self.told = self.told or order

    def goes_on(self) -> bool:
        """Whether an elastic job has nodes enough without those that have failed."""
        ending = self.peers.ending(self.plan.attempt)
        failed = [word for word in ending.values() if word.get("code")]
        return self.plan.elastic and len(self.plan.places) - len(failed) >= self.plan.min_nodes

    # The loop

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
        now = time.monotonic()
        self.children.reap()
        self.children.roll.poll()
        self.control.turn()
        if self.control.leading:
            self.peers.look(self.control.connected, now)
        elif self.control.settled:
            self.peers.missing.clear()  # the lead keeps account
        self.voice.turn(now)
        self.index.poll(time.time_ns())
        self.limits.poll()

    # Orders

    def look_for_orders(self) -> None:
        """Carry out an order to end: SIGTERM to the agent, SIGKILL to all after the grace."""
        now = time.monotonic()
        order = self.spool.stop_order() or self.told or self.orders.own(now, self.children)
        if order and order != self.heard:
            self.heard = order
            if self.order is None:  # the first reason stands, whatever is ordered afterwards
                self.order = self.voice.order = order
                self.spool.event("stopping", reason=order["reason"])
                os.kill(self.children.agent or os.getpid(), signal.SIGTERM)
                self.voice.pass_on(order)
            self.kill_at = min(self.kill_at, now + float(order["grace"]))
        if now >= self.kill_at:
            self.children.kill()

    # The end of an attempt

    def cause(self) -> Dict[str, Any]:
        """Whether another attempt may do better, for the lead."""
        if self.children.agent is None:
            return {"curable": False, "cause": "what cannot be started"}
        found = failures.node_cause(evidence(self.spool))
        if found is None:
            return {"curable": True, "cause": str((self.order or {}).get("reason", ""))}
        return {"curable": found.curable, "cause": found.text}

    def end_store(self) -> None:
        """Wait until no agent is connected to the store, then end it.

        At once after an order to end, or when our own agent has failed: a job of a fixed size is over then,
        and without the store the other agents end too, instead of waiting in their exit barrier. An elastic one may
        go on without our agent, for as long as it likes.
        """
        alone = bool(self.children.agent_exit) and self.goes_on()
        deadline = NEVER if alone else time.monotonic() + STORE_LIMIT
        quiet = time.monotonic()
        while self.children.store and time.monotonic() < deadline and not self.hurried():
            if self.awaited() and clients(self.spool.store_port()):  # a dead host's connections look alive
                quiet = time.monotonic()
            elif time.monotonic() - quiet > STORE_QUIET:
                break
            self.turn(TICK / 2)
        self.children.kill_store()

    def awaited(self) -> bool:
        """Whether another node's agent may still need the store."""
        done = set(self.peers.ending(self.plan.attempt))
        lost = self.peers.lost(time.monotonic(), STORE_LOST)
        return bool(set(self.plan.places) - done - set(lost) - {self.place})

    def hurried(self) -> bool:
        """Whether nothing is to be waited for any more."""
        failed = self.children.agent_exit and not self.goes_on()
        return bool(failed or self.order or self.told or self.orders.terminated or self.spool.stop_order())

    def write_exit(self, survivors: List[terminate.Process]) -> None:
        """The exit record. Its code is this node's view; the verdict over all nodes is the operator's."""
        agent_exit = self.children.agent_exit
        left = [process.to_json() for process in survivors]
        fields: Dict[str, Any] = {"agent_exit": agent_exit, "survivors": left}
        fields["ours"] = bool((self.order or {}).get("ours"))
        killed = self.children.killed - {process.identity for process in survivors}
        fields.update(killed=len(killed), unseen=self.children.unseen())
        if may_follow(self.plan, self.order):
            fields["pending"] = True
        if self.order:
            self.spool.write_exit("stopped", 143, str(self.order["reason"]), **fields)
        elif agent_exit == 0:
            self.spool.write_exit("succeeded", 0, "", **fields)
        else:
            self.spool.write_exit("failed", agent_exit or 1, "the agent ended with %s" % agent_exit, **fields)


def main(argv: List[str]) -> int:
    """``argv``: the spool, then the listening descriptors of the store and of run control, or ``-``.

    Says ``ready`` on stdout.
    """
    spool = Spool(argv[0])
    environment = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    if not spool.take_lock():
        sys.stdout.write("another supervisor has this node\n")
        return 1
    order = spool.stop_order()
    if order:  # whoever wrote it saw no lock, and has said that nothing is left
        if not spool.exit_record():
            spool.write_exit("stopped", 143, order["reason"], agent_exit=None, survivors=[])
        sys.stdout.write("the run was stopped meanwhile\n")
        return 1
    prctl.set_subreaper()
    spool.write_supervisor()
    store, listener = (None if word == "-" else int(word) for word in argv[1:3])
    supervisor = Supervisor(spool, environment, store, listener)

    def terminate(*_: object) -> None:
        supervisor.orders.terminated = True

    signal.signal(signal.SIGTERM, terminate)
    for number in (signal.SIGCHLD, signal.SIGUSR1):  # they wake the loop
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    os.dup2(null, 1)
    supervisor.run()
    return 0
