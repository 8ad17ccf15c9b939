"""One node of a run over all its attempts: a state machine, driven by the supervisor's loop.

In each attempt it starts the agent (and, where the plan says so, the store), watches for their end and for orders, and
at the end leaves no process behind and an exit record. Each reason to end a part is checked on its own: where one
cannot be read for a while the others still work; where one fails by a bug of ours the part ends, since a run that
nothing can stop is worse than one that stops. A thread writes and reads files (supervisor/file_work.py): a step that
depends on a file asks turn after turn until it is done.
"""

import enum
import os
import resource
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

from ..control.connection import Secret
from ..control.control_events import Event, MessageReceived
from ..control.leader import Control
from ..control.membership import Membership
from ..control.messages import EndOrder, NodeState, StatusMessage
from ..shared.processes.exit_codes import EXIT_CANNOT_START
from ..shared.run.spool_records import Ready
from ..shared.verdict.failures import FAIL_FAST_REASON
from ..spool.layout import Spool
from ..system.clock import boot_clock
from .attempt import Attempt, AttemptContext
from .attempt_end import AttemptCleanup, record_end
from .conclusion import Conclusion
from .event_loop import Loop
from .fence_pipe import FencePipe
from .file_work import FileWork
from .inbox import STOP_RECORD
from .node_parts import NodeParts
from .relaunch import Relaunching
from .shutdown import Shutdown
from .stop_conditions import AGENT_GRACE, Conditions, StopConditions, attempt_end_order

if TYPE_CHECKING:
    from .stall_guard import StallGuard

EVENT_TIMEOUT = 0.25  # seconds that a signal waits for its event; a disk may stall
TURN_INTERVAL = 0.1  # seconds between reads of orders and log sizes
FAIL_FAST_GRACE = 10.0  # seconds for the other nodes when one has failed
LAST_FILES_TIMEOUT = 5.0  # seconds for the last events to be written
LEAVE_TIMEOUT = 5.0  # seconds for a node that ends to send its last status to the leader
SIGNAL_SPREAD_NS = 1_000_000_000  # time within which a signal to all processes of a node reaches them
STUCK_TIMEOUT = 60.0  # seconds after which a node leaves without ending an attempt, if that fails (a read-only disk)


class Phase(enum.Enum):
    """A node's phase in its run. Each is one method of Supervisor, which returns the next phase."""

    WAITING = "waiting for all nodes to be ready"  # → BETWEEN, STARTING; CONCLUDING or LEAVING after an order
    STARTING = "the agent is being forked, where it is to be"  # → RUNNING, or CLEARING after an order
    RUNNING = "the agent runs"  # → CLEARING when it has ended
    CLEARING = "the agent has ended; the rest is being ended"  # → BETWEEN
    BETWEEN = "no part in an attempt: it has ended, or the node is a spare"  # → STARTING, CONCLUDING, LEAVING
    CONCLUDING = "the run is over; the verdict is made and kept on all nodes"  # → LEAVING
    LEAVING = "the others are sent the last status"  # → GONE
    GONE = "nothing is left to do"


class Supervisor(NodeParts):
    """One node's processes, the orders for them, and its part in run control.

    ``spool`` is that of the first attempt, ``environment`` the agent's. ``store`` is the store's listening socket, on
    the rendezvous host; ``listener`` run control's, where there are several nodes. ``fence`` is the pipe to the process
    above this one.
    """

    def __init__(
        self, spool: Spool, environment: Dict[str, str], store: Optional[int], listener: Optional[int], fence: FencePipe
    ) -> None:
        plan = spool.plan()
        self.loop = Loop(self._record)
        self.work = FileWork(self.loop.wake)
        self.member, self.fence = plan.member, fence
        self.phase, self.phase_changed = Phase.WAITING, False
        self.leave_deadline: Optional[float] = None
        own = socket.socket(fileno=listener) if listener is not None else None
        secret = Secret(spool.control_key(), plan.run, plan.member)
        self.control = Control(secret, self.loop.selector, self._handle_event, own)
        self.membership = Membership(self.control, [peer.host for peer in plan.peers], self.add_host, self._save_peers)
        self.conditions = StopConditions(self.control, self.membership, fence, plan)
        self.relaunching = Relaunching(self.control, self.membership, self.conditions, self.work)
        self.conclusion = Conclusion(self.control, self.membership, self.work)
        self.stop: Optional[EndOrder] = None  # an order of run control that ends the run, to be recorded
        umask = os.umask(0o077)  # read once: in a later attempt it would be our own
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))  # a leader is connected to every node
        self.context = AttemptContext(umask, files, self.work)
        self.spool, self.plan = spool, plan
        self.stall_guard = self._make_stall_guard(plan.settings.stall) if plan.settings.stall else None
        self._switch_to(Attempt(spool, environment, store, self.context))

    def _make_stall_guard(self, limit: float) -> "StallGuard":
        from .stall_guard import StallGuard  # the judge and all that it needs: few runs have a guard

        return StallGuard(self, limit)

    def _switch_to(self, attempt: Attempt) -> None:
        """Make ``attempt`` the current one: use its parts, reset what belongs to one attempt, register handlers."""
        self.spool, self.children, self.inbox = attempt.spool, attempt.children, attempt.inbox
        self.index, self.limits = attempt.index, attempt.limits
        self.begin_attempt(attempt.plan)
        if self.plan != attempt.plan:
            self.save_plan()
        self.shutdown = Shutdown()
        self.stop_recorded: Optional[Callable[[], bool]] = None  # while the agent's SIGTERM waits for its event
        self.signal_deadline = 0.0
        self.cleanup: Optional[AttemptCleanup] = None
        self._record("supervisor_started", pid=os.getpid())
        self.loop.handlers = {
            "children": self.children.reap,
            "forks": self.children.forking,
            "run control": self._turn,
            "membership": self._turn_membership,
            "fail fast": self._fail_fast,
            **({"stall guard": self.stall_guard.turn} if self.stall_guard else {}),
            "files": lambda: self.work.queue_latest("files", self._handle_files),
        }
        self.file_handlers = {
            **self.inbox.readers(self.loop.wake),
            "record of a stop told": self._write_stop,
            "roster": self.children.roster.poll,
            "time index": lambda: self.index.poll(time.time_ns()),
            "output limits": self.limits.poll,
        }

    def run(self) -> None:
        """Run the node to its end."""
        self.loop.watch_signals()
        self.children.start_fork_server(self.loop.selector)
        self.children.begin()
        while self.phase is not Phase.GONE:
            self.turn()
        self.work.close(LAST_FILES_TIMEOUT)

    def turn(self) -> None:
        """One turn of the loop, and the next step of the present phase; without a pause after a change of phase."""
        steps: Dict[Phase, Callable[[], Phase]] = {
            Phase.WAITING: self._wait,
            Phase.STARTING: self._start,
            Phase.RUNNING: self._run,
            Phase.CLEARING: self._clear,
            Phase.BETWEEN: self._await_next_attempt,
            Phase.CONCLUDING: self._conclude,
            Phase.LEAVING: self._leave,
        }
        self.loop.turn(0.0 if self.phase_changed else TURN_INTERVAL)
        phase = self.loop.guard(self.phase.name, steps[self.phase]) or self._phase_after_failure()
        self.phase_changed, self.phase = phase is not self.phase, phase

    def _phase_after_failure(self) -> Phase:
        """The phase after a step that failed: the same again, after a pause.

        But the agent is killed where orders cannot be carried out because of a bug of ours, and where ending an attempt
        fails for long the node leaves without it.
        """
        failed = self.loop.failures[self.phase.name]
        if self.phase is Phase.RUNNING and not isinstance(failed.error, OSError):
            self._kill()
        # The loop counts anew with every try of file work: a step that waits for it has not failed.
        since = min(failed.since, self.work.failing_since())
        if self.phase in {Phase.WAITING, Phase.RUNNING} or time.monotonic() - since <= STUCK_TIMEOUT:
            return self.phase
        return Phase.GONE if self.phase is Phase.LEAVING else Phase.LEAVING

    # The phases

    def _wait(self) -> Phase:
        """Wait until the operator reports that all nodes are ready, or the run ends before that."""
        if self.inbox.ready and not self.conditions.ready:
            self.conditions.begin_run(self.inbox.ready, self.inbox.lease)
        order = self.spread(self._first_order(self.conditions.ending_run))
        if order:
            self.shutdown.take(order, time.monotonic())
            self.children.kill_store()
            self.children.end_fork_server(for_good=True)
            if not record_end(self, []):
                return Phase.WAITING
            self.publish(NodeState.ENDED, reason=order.reason)
            return Phase.CONCLUDING if self.conditions.ready else Phase.LEAVING  # others may work, or connect later
        if not self.conditions.ready:
            return Phase.WAITING
        if self.plan.standby:
            self.publish(NodeState.STANDBY)
            return Phase.BETWEEN
        return Phase.WAITING if self.conditions.too_early() else self._start()

    def _start(self) -> Phase:
        """Start the agent; wait in STARTING while a fork server forks it, or paths are still copied to this node.

        Never raises: the loop would call this again, and start a second agent.
        """
        replicates = self.relaunching.is_replicating(self)
        of_attempt = None if replicates else self.shutdown.attempt_order
        order = self.spread(self._first_order(self.conditions.ending_run)) or of_attempt
        if (replicates or self.children.forking()) and not order:
            return Phase.STARTING
        order = order or self.conditions.begin_and_check()
        if order:
            self.shutdown.take(order, time.monotonic())
            return self._give_up_start()
        try:
            self.children.start_agent((self.inbox.ready or Ready()).store)
        except (OSError, ValueError, subprocess.SubprocessError) as error:  # no interpreter, no folder, no memory
            why = getattr(error, "strerror", None) or error
            self.children.start_error = "cannot start %s in %s: %s" % (self.plan.python, self.plan.cwd, why)
            return self._give_up_start()
        self.publish(NodeState.RUNNING)
        return Phase.RUNNING

    def _give_up_start(self) -> Phase:
        """End the part of an attempt whose agent cannot be started."""
        self.children.agent_exit = EXIT_CANNOT_START
        self.publish(NodeState.ENDING)
        self.children.kill_store()
        return Phase.CLEARING

    def _run(self) -> Phase:
        """Carry out an order to end: SIGTERM to the agent, SIGKILL to all after the grace."""
        if self.children.agent_exit is not None:  # its pid may be another process's by now
            own_order = self.conditions.order_after_agent(is_ordered=self.shutdown.order is not None)
            if own_order:
                self.shutdown.take(own_order, time.monotonic())
            self.publish(NodeState.ENDING)
            return Phase.CLEARING
        now = time.monotonic()
        from_control: Conditions = {"run control": lambda: self.shutdown.attempt_order}
        order = self._first_order({**from_control, **self.conditions.ending_run, **self.conditions.ending_attempt})
        if order and self.shutdown.take(order, now):
            size = self.children.agent_bytes()
            self.stop_recorded = self.work.record_event(
                self.spool, "stopping", time=self._stop_time(), reason=order.reason, agent_bytes=size
            )
            self.signal_deadline = now + EVENT_TIMEOUT
            self.membership.pass_on(order)
        # Recorded before the signal: readers of the agent's output must know that what follows belongs to its end.
        if self.stop_recorded and (self.stop_recorded() or now >= self.signal_deadline):
            self.stop_recorded = None
            os.kill(self.children.agent or os.getpid(), signal.SIGTERM)
        if now >= self.shutdown.kill_at:
            self._kill()
        return Phase.RUNNING

    def _stop_time(self) -> int:
        """Since when the node is being ended (ns): a manager's SIGTERM has reached the workers before this process."""
        from_manager = self.conditions.terminated and self.plan.manager
        return time.time_ns() - (SIGNAL_SPREAD_NS if from_manager else 0)

    def _clear(self) -> Phase:
        """End what the agent has left, and the store when no other node needs it; write the exit record."""
        self.cleanup = self.cleanup or AttemptCleanup(self)
        order = self.spread(self._first_order(self.conditions.ending_run))
        if self.cleanup.is_ending_processes() or self.cleanup.store_needed(order):
            return Phase.CLEARING
        self.children.kill_store()
        ended = record_end(self, self.cleanup.survivors or [], self._finish_output)
        if not ended:
            return Phase.CLEARING
        curable, reason = ended.value
        self.publish(NodeState.ENDED, curable=curable, reason=reason)
        return Phase.BETWEEN

    def _finish_output(self) -> None:
        self.loop.guard("end of the time index", lambda: self.index.finish(time.time_ns()))
        self.loop.guard("end of the output limits", self.limits.finish)

    def _await_next_attempt(self) -> Phase:
        """Wait for what follows the attempt, and begin the next one if there is one."""
        if self.control.leading and self.member not in self.plan.members:  # a spare leads: who works does not look
            lost = self.loop.guard("lost nodes", self.conditions.ending_attempt["lost nodes"])
            if lost:
                self._handle_order(lost)
        following = self.relaunching.step(self, self.spread(self._first_order(self.conditions.ending_run)))
        if not isinstance(following, Attempt):
            return Phase.BETWEEN if not following else Phase.LEAVING if following.leaves else Phase.CONCLUDING
        self.work.do(self.children.close)
        following.children.take_over(self.children)
        self._switch_to(following)
        self.children.begin()
        return self._start()

    def _conclude(self) -> Phase:
        """Wait until the verdict is known and recorded; a leader still finds lost nodes."""
        self.relaunching.refuse_as_leader(self)
        order = self.spread(self._first_order({"lost nodes": self.conditions.ending_attempt["lost nodes"]}))
        if order and self.control.leading and self.membership.order is None:
            self.membership.pass_on(order)
        orders = (order, self.shutdown.order, self.membership.order)
        hurry = self.conditions.terminated or any(order is not None and order.attempt is None for order in orders)
        done = self.conclusion.step(self, self.conditions.limits.lost, hurry=hurry)
        return Phase.LEAVING if done else Phase.CONCLUDING

    def _leave(self) -> Phase:
        """Leave as soon as a leader has received our last status, or none can."""
        now = time.monotonic()
        self.leave_deadline = self.leave_deadline or now + LEAVE_TIMEOUT
        if self.membership.undelivered and self.control.addresses and now < self.leave_deadline:
            return Phase.LEAVING
        self.membership.leave()
        return Phase.GONE

    # Orders

    def _first_order(self, conditions: Conditions) -> Optional[EndOrder]:
        """The first order there is, from outside or from one of the conditions, each checked on its own."""
        order = self.inbox.stop or self._order_after_bug(STOP_RECORD)
        sources: Conditions = {"stop": lambda: self.stop, **conditions}
        for name, source in sources.items():
            order = order or self.loop.guard(name, source) or self._order_after_bug(name)
        return order

    def _order_after_bug(self, name: str) -> Optional[EndOrder]:
        """The order that follows if a source of orders fails by a bug of ours; errors of a disk may pass."""
        failed = self.loop.failures.get(name)
        if failed is None or isinstance(failed.error, OSError):
            return None
        return attempt_end_order(self.plan, "internal error: %s: %r" % (name, failed.error), AGENT_GRACE)

    def _write_stop(self) -> None:
        """Record an order from run control, so that every later start refuses; the file thread calls this."""
        if self.stop and self.inbox.stop is None:
            self.spool.write_stop_order(self.stop.reason, self.stop.grace)

    def _handle_files(self) -> None:
        """Call the handlers that read and write files; the file thread calls this."""
        for name, handler in self.file_handlers.items():
            self.loop.guard(name, handler)

    def _record(self, name: str, **fields: Any) -> None:
        """Record an event; may be called from any thread."""
        self.work.event(self.spool, name, **fields)

    def _save_peers(self, known: Dict[str, Any]) -> None:
        """Save what is known of the other nodes (``peers.json``)."""
        spool = self.spool
        self.work.queue_latest("peers", lambda: spool.write_peers(known))

    def _kill(self) -> None:
        """Send SIGKILL to all processes of this node, or at least to the agent's group if they cannot be found."""
        self.loop.guard("kill", self.children.kill)
        if "kill" in self.loop.failures and self.children.agent:
            os.killpg(self.children.agent, signal.SIGKILL)

    # Run control

    def _turn(self) -> None:
        """Do run control's work, and then renew the lease: if run control fails or hangs, the lease expires."""
        self.control.turn()
        is_faster = self.conditions.heed_datagrams()
        ending = self.shutdown.order or self.children.agent_exit is not None
        lease = self.conditions.lease(None if ending else self.children.agent)
        self.fence.renew(lease)
        self.children.inform_agent(self.conditions.participants(lease))
        status = self.membership.statuses.get(self.member)
        if is_faster and status:
            self.membership.publish(status._replace(slow=False))

    def _turn_membership(self) -> None:
        self.membership.note_operator_contact(self.inbox.lease)
        self.membership.turn(boot_clock())

    def _handle_event(self, event: Event) -> None:
        self.loop.guard(type(event).__name__, lambda: self._dispatch(event), pauses=False)

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, MessageReceived) and isinstance(event.message, EndOrder):
            # A node that was cut off ends its part for that: others of an elastic job go on, and its status counts it.
            if event.message.attempt is None or not (self.control.leading and self.job_continues()):
                self._handle_order(event.message)
        else:
            self.membership.handle_event(event)
            self.conclusion.handle_event(event)
            if self.stall_guard:
                self.stall_guard.handle_event(event)
            if isinstance(event, MessageReceived) and isinstance(event.message, StatusMessage):
                self._fail_fast()

    def _handle_order(self, order: EndOrder) -> None:
        """Take an order from another node to end the run or the attempt; the leader passes it on."""
        if order.attempt is None:
            new = self.stop is None
            self.stop = self.stop or order
        else:
            new = order.attempt == self.plan.attempt and self.shutdown.attempt_order is None
            self.shutdown.attempt_order = self.shutdown.attempt_order or (order if new else None)
        if new and self.control.leading:
            self.membership.pass_on(order)

    def _fail_fast(self) -> None:
        """As leader, end a job of a fixed size everywhere when an agent has failed, with or without an operator."""
        failed = any(status.code for status in self.membership.ended_statuses(self.plan.attempt).values())
        leads = self.membership.may_decide if self.plan.settings.relaunch else self.control.leading
        if failed and leads and self.shutdown.attempt_order is None and not self.job_continues():
            self._handle_order(attempt_end_order(self.plan, FAIL_FAST_REASON, FAIL_FAST_GRACE, ours=False))
