"""One node of a run over all its attempts: a state machine, driven by the supervisor's loop.

In each attempt it starts the agent (and, where the plan says so, the store), watches for their end and for orders,
and at the end leaves no process behind and an exit record. What ends a part is asked of each source on its own: where
one cannot be read for a while the others go on; where one fails by a mistake of ours the part ends, for a run that
nothing can stop is worse than one that stops.

Not here: the loop (supervisor/loop.py), the processes (supervisor/children.py), reasons of our own to end
(supervisor/stop_conditions.py), the end of an attempt (supervisor/clearing.py), whether another follows
(supervisor/relaunch.py), the other nodes (control/).
"""

import enum
import os
import resource
import signal
import socket
import subprocess
import time
from typing import Callable, Dict, Optional

from ..control.connection import Secret
from ..control.leader import Control, Event, Said
from ..control.membership import Membership
from ..control.messages import Decision, Joined, NodeState, Order, Word, WordSaid
from ..logs.limit import LogLimit
from ..logs.time_index import IndexWriter
from ..shared.failures import FAIL_FAST_REASON
from ..shared.plan import NodePlan, Peer, with_peer
from ..spool.events import agent_bytes
from ..spool.layout import Spool
from ..system.clock import boot_clock
from .children import Children
from .clearing import Clearing, cause, write_exit
from .conclusion import Conclusion
from .lease import Fence
from .loop import Loop
from .relaunch import Next, Over, Relaunching
from .shutdown import Shutdown
from .stop_conditions import GRACE, Conditions, StopConditions, of_attempt

TICK = 0.1  # seconds between looks at orders and log sizes
CANNOT_START = 127  # what a shell says of a program that cannot be started
FAIL_FAST_GRACE = 10.0  # seconds for the other nodes when one has failed
FAREWELL = 5.0  # seconds to reach the lead with what a node that ends has to say
STUCK = 60.0  # seconds that the end of an attempt may fail (a disk that cannot be written); then we leave without it


class Phase(enum.Enum):
    """Where a node stands in its run. Each is one method of Supervisor, which says the next one."""

    WAITING = "waiting for all nodes to be ready"  # → BETWEEN, RUNNING, or LEAVING after an order
    RUNNING = "the agent runs"  # → CLEARING when it has ended
    CLEARING = "the agent has ended; the rest is being ended"  # → BETWEEN
    BETWEEN = "no part in an attempt: it has ended, or the node is a spare"  # → RUNNING, CONCLUDING
    CONCLUDING = "the run is over; the verdict is made and kept on all nodes"  # → LEAVING
    LEAVING = "the others are told the last word"  # → GONE
    GONE = "nothing is left to do"


class Supervisor:
    """One node's processes, what was ordered for them, and its voice among the run's nodes.

    Args:
        spool: Of the first attempt.
        environment: The agent's.
        store: The store's listening socket, on the rendezvous host.
        listener: Run control's, where there are several nodes.
        fence: The process above us.
    """

    def __init__(
        self, spool: Spool, environment: Dict[str, str], store: Optional[int], listener: Optional[int], fence: Fence
    ) -> None:
        plan = spool.plan()
        self.loop = Loop()
        self.place, self.fence = plan.place, fence
        self.phase = Phase.WAITING
        own = socket.socket(fileno=listener) if listener is not None else None
        secret = Secret(spool.control_key(), plan.run, plan.place)
        self.control = Control(secret, self.loop.selector, self._take, own)
        self.membership = Membership(self.control, [peer.host for peer in plan.peers], self._welcome)
        self.conditions = StopConditions(self.control, self.membership, fence, plan)
        self.relaunching = Relaunching(self.control, self.membership, self.conditions)
        self.conclusion = Conclusion(self.control, self.membership)
        self.ready = False  # whether all nodes are
        self.stop: Optional[Order] = None  # ordered by run control, to be written down
        self.umask = os.umask(0o077)  # once: in a later attempt it would be our own
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)
        # A lead has a connection to every node of the run.
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.files[1], self.files[1]))
        self._begin(Next(spool, environment, store))

    def _begin(self, following: Next) -> None:
        """Turn to an attempt; the store, if it is ours, starts at once, its importing of torch takes longest."""
        spool, environment, store = following
        self.spool = self.loop.spool = spool
        self.plan: NodePlan = spool.plan()
        self.membership.begin(spool, self.plan.attempt, leased=bool(self.plan.lease), limit=self.conditions.limits.lost)
        self.children = Children(spool, environment, store, self.umask, self.files)
        self.conditions.begin(spool, self.plan, self.children)
        self.shutdown = Shutdown()
        self.clearing: Optional[Clearing] = None
        self.index = IndexWriter(spool.path("logs"))
        self.limits = LogLimit(spool)
        spool.event("supervisor_started", pid=os.getpid())
        self.loop.handlers = {
            "children": self.children.reap,
            "roster": self.children.roster.poll,
            "run control": self._turn,
            "membership": lambda: self.membership.turn(boot_clock()),
            "fail fast": self._fail_fast,
            "record of a stop told": self._write_stop,
            "time index": lambda: self.index.poll(time.time_ns()),
            "output limits": self.limits.poll,
        }

    def run(self) -> None:
        """The node's whole life."""
        self.loop.watch_signals()
        self.children.start_store()
        steps: Dict[Phase, Callable[[], Phase]] = {
            Phase.WAITING: self._wait,
            Phase.RUNNING: self._run,
            Phase.CLEARING: self._clear,
            Phase.BETWEEN: self._follow,
            Phase.CONCLUDING: self._conclude,
            Phase.LEAVING: self._leave,
        }
        self.farewell: Optional[float] = None
        changed = False
        while self.phase is not Phase.GONE:
            self.loop.turn(0.0 if changed else TICK)
            phase = self.loop.guard(self.phase.name, steps[self.phase]) or self._unstick()
            changed, self.phase = phase is not self.phase, phase

    def _unstick(self) -> Phase:
        """What follows a step that failed: the same again, after a pause.

        But where orders cannot be carried out by a mistake of ours the agent is killed, and where the end of an attempt
        fails for long we leave without it.
        """
        failed = self.loop.failures[self.phase.name]
        if self.phase is Phase.RUNNING and not isinstance(failed.error, OSError):
            self._kill()
        if self.phase in {Phase.WAITING, Phase.RUNNING} or time.monotonic() - failed.since <= STUCK:
            return self.phase
        return Phase.GONE if self.phase is Phase.LEAVING else Phase.LEAVING

    # The phases

    def _wait(self) -> Phase:
        """Until the operator says that all nodes are ready, or the run ends before that."""
        order = self._ordered(self.conditions.of_run)
        if order:
            self.shutdown.take(order, time.monotonic())
            self.children.kill_store()
            write_exit(self, [])
            return Phase.LEAVING
        if not self.ready:
            ready = self.spool.committed()
            if not ready:
                return Phase.WAITING
            self.ready = True
            self.control.begin(list(ready.peers))
        if self.plan.standby:
            self.tell(NodeState.STANDBY)
            return Phase.BETWEEN
        if self.conditions.too_early():
            return Phase.WAITING
        return self._start()

    def _start(self) -> Phase:
        """Start the agent; raises nothing, for it must not be done twice."""
        late = self.conditions.begin_part()
        if late:  # the others may be in a later attempt by now
            self.shutdown.take(late, time.monotonic())
            self.children.agent_exit = CANNOT_START
            self.children.kill_store()
            write_exit(self, [])
            self._tell_end()
            return Phase.BETWEEN
        try:
            self.children.start_agent()
        except (OSError, ValueError, subprocess.SubprocessError) as error:  # no interpreter, no folder, no memory
            self.children.agent_exit = CANNOT_START
            self.tell(NodeState.ENDING)
            self.children.kill_store()
            why = getattr(error, "strerror", None) or error
            reason = "cannot start %s in %s: %s" % (self.plan.python, self.plan.cwd, why)
            self.spool.write_exit("failed", 125, reason, agent_exit=None, survivors=[])
            self._tell_end()
            return Phase.BETWEEN
        self.tell(NodeState.RUNNING)
        return Phase.RUNNING

    def _run(self) -> Phase:
        """Carry out an order to end: SIGTERM to the agent, SIGKILL to all after the grace."""
        if self.children.agent_exit is not None:  # its pid may be another process's by now
            ended_by_fence = self.conditions.fenced()
            if ended_by_fence:
                self.shutdown.take(ended_by_fence, time.monotonic())
            self.tell(NodeState.ENDING)
            return Phase.CLEARING
        now = time.monotonic()
        told: Conditions = {"run control": lambda: self.shutdown.told}
        order = self._ordered({**told, **self.conditions.of_run, **self.conditions.of_attempt})
        if order and self.shutdown.take(order, now):
            # Before the signal: whatever the agent says after it belongs to its end.
            self.spool.event("stopping", reason=order.reason, agent_bytes=agent_bytes(self.spool.folder))
            os.kill(self.children.agent or os.getpid(), signal.SIGTERM)
            self.membership.pass_on(order)
        if now >= self.shutdown.kill_at:
            self._kill()
        return Phase.RUNNING

    def _clear(self) -> Phase:
        """End what the agent has left, and the store when no other node needs it; write the exit record."""
        self.clearing = self.clearing or Clearing(self)
        if self.clearing.goes_on() or self.clearing.store_needed(self._ordered(self.conditions.of_run)):
            return Phase.CLEARING
        self.children.kill_store()
        self.loop.guard("end of the time index", lambda: self.index.finish(time.time_ns()))
        self.loop.guard("end of the output limits", self.limits.finish)
        self.clearing.write_exit()
        self._tell_end()
        return Phase.BETWEEN

    def _follow(self) -> Phase:
        """What follows."""
        following = self.relaunching.step(self, self._ordered(self.conditions.of_run))
        if following is None:
            return Phase.BETWEEN
        if isinstance(following, Over):
            return Phase.CONCLUDING
        self._begin(following)
        self.children.start_store()
        return self._start()

    def _conclude(self) -> Phase:
        """Until the verdict is known and kept. Who waits leads the others still: orders reach them, and who is lost."""
        order = self._ordered({"lost nodes": self.conditions.of_attempt["lost nodes"]})
        if order and self.control.leading and self.membership.order is None:
            self.membership.pass_on(order)
        known = (order, self.shutdown.order, self.membership.order)
        hurry = self.conditions.terminated or any(one is not None and one.attempt is None for one in known)
        done = self.conclusion.step(self, self.conditions.limits.lost, hurry=hurry)
        return Phase.LEAVING if done else Phase.CONCLUDING

    def _leave(self) -> Phase:
        """As soon as a lead has heard our last word, or nobody can."""
        now = time.monotonic()
        self.farewell = self.farewell or now + FAREWELL
        if self.membership.unheard and self.control.addresses and now < self.farewell:
            return Phase.LEAVING
        self.membership.leave()
        return Phase.GONE

    # Orders

    def _ordered(self, conditions: Conditions) -> Optional[Order]:
        """The first order there is: given from outside, or by one of the conditions, each asked on its own."""
        sources: Conditions = {"record of a stop": self._recorded, "stop": lambda: self.stop, **conditions}
        for name, source in sources.items():
            order = self.loop.guard(name, source)
            failed = self.loop.failures.get(name)
            if failed and not isinstance(failed.error, OSError):  # that may pass; a mistake of ours does not
                order = of_attempt(self.plan, "internal error: %s: %r" % (name, failed.error), GRACE)
            if order:
                return order
        return None

    def _recorded(self) -> Optional[Order]:
        """The order to stop in our spool."""
        order = self.spool.stop_order()
        return Order(order.reason, order.grace, ours=False) if order else None

    def _write_stop(self) -> None:
        """Keep an order that run control told: every later start refuses it."""
        if self.stop and self._recorded() is None:
            self.spool.write_stop_order(self.stop.reason, self.stop.grace)

    def _kill(self) -> None:
        """SIGKILL to all processes of this node; at least to the agent's group, where they cannot be found."""
        self.loop.guard("kill", self.children.kill)
        if "kill" in self.loop.failures and self.children.agent:
            os.killpg(self.children.agent, signal.SIGKILL)

    # Run control

    def _turn(self) -> None:
        """Run control's, and behind it the lease: where the one fails or stands still the other ends."""
        self.control.turn()
        told = self.shutdown.order or self.children.agent_exit is not None
        self.fence.renew(self.conditions.lease(None if told else self.children.agent))

    def _take(self, event: Event) -> None:
        """An event of run control."""
        self.loop.guard(type(event).__name__, lambda: self._take_event(event), pauses=False)

    def _take_event(self, event: Event) -> None:
        if isinstance(event, Said) and isinstance(event.message, Order):
            self._hear_order(event.message)
        else:
            self.membership.take(event)
            self.conclusion.take(event)
            if isinstance(event, Said) and isinstance(event.message, WordSaid):
                self._fail_fast()

    def _hear_order(self, order: Order) -> None:
        """An order to end the run, or the attempt; the lead passes it on."""
        if order.attempt is None:
            new = self.stop is None
            self.stop = self.stop or order
        else:
            new = order.attempt == self.plan.attempt and self.shutdown.told is None
            self.shutdown.told = self.shutdown.told or (order if new else None)
        if new and self.control.leading:
            self.membership.pass_on(order)

    def _fail_fast(self) -> None:
        """An agent that failed ends a job of a fixed size everywhere, attached or not: the lead says so."""
        failed = any(word.code for word in self.membership.over(self.plan.attempt).values())
        if failed and self.control.leading and self.shutdown.told is None and not self.goes_on():
            self._hear_order(of_attempt(self.plan, FAIL_FAST_REASON, FAIL_FAST_GRACE, ours=False))

    def goes_on(self) -> bool:
        """Whether an elastic job has nodes enough without those that have failed."""
        failed = [word for word in self.membership.over(self.plan.attempt).values() if word.code]
        return self.plan.elastic and len(self.plan.places) - len(failed) >= self.plan.min_nodes

    def stand_by(self, decision: Decision) -> None:
        """An attempt begins without this node."""
        self.shutdown = Shutdown()
        self._plan(self.plan._replace(attempt=decision.attempt, places=decision.places))
        self.tell(NodeState.STANDBY)

    def _plan(self, plan: NodePlan) -> None:
        self.plan = plan
        self.membership.attempt = plan.attempt
        self.conditions.begin(self.spool, plan, self.children)

    def tell(self, state: NodeState, *, curable: bool = True, reason: str = "") -> None:
        """Let the lead, and by it everyone, know of this node."""
        peer, joined = self.plan.peers[self.place], None
        if self.plan.joined:
            joined = Joined(peer.host, peer.address, peer.nproc, self.plan.bound[1])
        code = None if state is NodeState.STANDBY else self.children.agent_exit
        word = Word(state, self.plan.attempt, code, curable, reason, joined=joined, slow=self.conditions.slow)
        self.loop.guard("word", lambda: self.membership.tell(word), pauses=False)

    def _tell_end(self) -> None:
        curable, reason = cause(self)
        self.tell(NodeState.ENDED, curable=curable, reason=reason)

    def _welcome(self, joined: Joined) -> None:
        """A host has joined the run."""
        self._plan(with_peer(self.plan, Peer(host=joined.host, address=joined.address, nproc=joined.nproc)))
        # Who joins next is invited by what it says; until there is room on a full disk, this node can invite nobody.
        self.loop.guard("plan", lambda: self.spool.write_plan(self.plan), pauses=False)
