"""Between two attempts: a node waits for what the lead decides, and makes the next attempt's spool.

Carried out by the supervisors alone, so a job is started again with every operator away. Only a lead that reaches a
majority decides, and only when every node of the attempt has ended or is lost; a node without a majority has ended
its own part by then (limits), so two attempts never run at once. What was decided is told until all know it
(control/membership.py). No wait is without a limit: a node that was told to end and does not ends the run.
"""

import os
import shutil
import time
from typing import TYPE_CHECKING, NamedTuple, Optional, Tuple, Union

from ..control.leader import Control
from ..control.membership import Membership
from ..control.messages import AttemptDecision, EndOrder, NodeState
from ..fork_server.fork_checks import FORK_SOCKET
from ..shared.run.plan import SECRETS, NodePlan, next_plan, spool_environment
from ..shared.run.spool_records import Ready
from ..spool.creation import create_spool
from ..spool.quoted import keep_secrets
from ..system.bootstrap import Refused
from ..system.clock import boot_clock
from ..system.ports import bind_ports
from ..worker.worker_env import write_worker
from .attempt import Attempt, Making
from .file_work import FileWork
from .next_attempt import backoff, decide
from .replication import ReplicaSource, Serving, Taking
from .stop_conditions import StopConditions

if TYPE_CHECKING:
    from typing import Protocol

    from ..spool.layout import Spool
    from .children import Children
    from .inbox import Inbox
    from .shutdown import Shutdown

    class Node(Protocol):
        """What is needed of this node's supervisor."""

        place: int
        plan: NodePlan
        spool: Spool
        children: Children
        shutdown: Shutdown
        making: Making
        inbox: Inbox

        def stand_by(self, decision: AttemptDecision) -> None:
            """An attempt begins without it."""

        def tell(self, state: NodeState) -> None:
            """Let all know of it."""


CARRY_LIMIT = 30.0  # seconds for the nodes that have what is carried to say where
END_LIMIT = 120.0  # seconds beyond its grace that a node may take to end an attempt it was told to end
ALONE = "no majority of the hosts reach each other; it waits for an operator"


class Over(NamedTuple):
    """No attempt follows here; that is on record. ``leaves``: the others go on without this node, and judge the run."""

    reason: str
    leaves: bool = False


def may_follow(plan: NodePlan, order: Optional[EndOrder]) -> bool:
    """Whether another attempt may follow the plan's: there is one left, and nobody wants the run to end."""
    return plan.settings.relaunch > 0 and (order is None or order.attempt is not None)


class Relaunching:
    """One node's side.

    Attributes:
        store: The descriptor of the socket bound for the next attempt's store.
        begins: The decision whose attempt this node makes ready, and since when.
        waiting_since: When this node's part of the attempt had ended.
        ended_since: When it was known to have ended everywhere.
    """

    def __init__(self, control: Control, membership: Membership, conditions: StopConditions, work: FileWork) -> None:
        self.control, self.membership, self.conditions, self.work = control, membership, conditions, work
        self.store: Optional[int] = None
        self.begins: Optional[AttemptDecision] = None
        self.waiting_since: Optional[float] = None
        self.ended_since: Optional[float] = None
        self.serving: Optional[Serving] = None
        self.taking: Optional[Taking] = None
        self.wanted: Tuple[int, ...] = ()  # the places that may have what is carried to this node
        self.wanted_since: Optional[float] = None

    def step(self, node: "Node", order: Optional[EndOrder]) -> Union[Attempt, Over, None]:
        """What follows the attempt that has ended here, as soon as it is known.

        Args:
            node: Ours.
            order: To end the run, if there is one.
        """
        now = time.monotonic()
        self.waiting_since = self.waiting_since or now
        if self.begins:  # half made it would look like an attempt that was lost
            return self._begin(node, self.begins)
        if self.conditions.outlived():
            return Over("", leaves=True)  # the others have judged the run
        if not may_follow(node.plan, node.shutdown.order):
            return Over("")
        if self.conditions.fence.gone:  # nothing would guard the others against us
            alone = self._end(node, "its fence process is gone")
            return alone and alone._replace(leaves=bool(self.control.connected))
        if order:
            self.membership.pass_on(order)
            return self._end(node, order.reason)
        if self.control.leading:
            over = self._lead(node, now)
            if over:
                return self._end(node, over)
        elif boot_clock() - self.control.last_contact > self.conditions.limits.lost:
            return self._end(node, ALONE)
        return self._obey(node, self.membership.decision)

    def _obey(self, node: "Node", decision: Optional[AttemptDecision]) -> Union[Attempt, Over, None]:
        """Do what was decided: begin, stand by, or end."""
        if decision is None or decision.attempt < node.plan.attempt:
            return None
        if decision.attempt > node.plan.attempt and not decision.places:
            return self._end(node, decision.reason)
        if decision.attempt > node.plan.attempt and node.place in decision.places:
            return self._begin(node, decision)
        replaced = node.place in node.plan.places and not node.plan.joined  # who joined later stands in no decision
        if node.place not in decision.places and (decision.attempt > node.plan.attempt or replaced):
            self._forget()
            node.stand_by(decision)
        return None

    def _forget(self) -> None:
        self.waiting_since = self.ended_since = None

    # The lead's

    def _lead(self, node: "Node", now: float) -> str:
        """Decide and tell what follows, if it is known; why the run ends for this node alone, if it does."""
        limits, plan = self.conditions.limits, node.plan
        boot = boot_clock()
        lost = {*self.membership.lost(boot, limits.lost), *self.membership.behind(boot, limits.behind)}
        lost |= self.membership.left
        following = decide(plan, self.membership.words, {node.place, *self.control.connected}, lost)
        if following is None:
            self._limit_wait(node, now, lost)
            return ""
        self.ended_since = self.ended_since or now
        if not (self.control.majority and self.control.in_contact):
            alone = boot - self.control.last_contact > limits.lost
            return (following.reason or ALONE if not following.places else ALONE) if alone else ""
        if not following.places:
            self.membership.decide(AttemptDecision(plan.attempt + 1, reason=following.reason))
        elif lost or now - self.ended_since >= backoff(plan.attempt):  # a lost host does not fail as a script does
            (listener,) = bind_ports(plan.ports, 1, plan.peers[node.place].address)
            port = listener.getsockname()[1]
            self.store = listener.detach()
            self.membership.decide(AttemptDecision(plan.attempt + 1, following.places, node.place, port))
        return ""

    def _limit_wait(self, node: "Node", now: float, lost: "set[int]") -> None:
        """A node that was told to end its part, and is there, and does not: nothing can follow."""
        order = node.shutdown.order or node.shutdown.told
        if order is None or now - (self.waiting_since or now) <= order.grace + END_LIMIT:
            return
        words = self.membership.words
        done = {p for p, word in words.items() if word.state is NodeState.ENDED and word.attempt == node.plan.attempt}
        names = ", ".join(self.membership.names[place] for place in sorted(set(node.plan.places) - done - lost))
        reason = "%s did not end attempt %d within %d s" % (names, node.plan.attempt, END_LIMIT)
        self.membership.decide(AttemptDecision(node.plan.attempt + 1, reason=reason))

    # This node's

    def _end(self, node: "Node", reason: str) -> Optional[Over]:
        """Nothing follows, as soon as that is on record."""
        node.children.end_fork_server(for_good=True)
        return Over(reason) if self.work.ask("last record", lambda: self._write_end(node, reason)) else None

    def _write_end(self, node: "Node", reason: str) -> None:
        """The exit record of the last attempt is the run's. In the file thread."""
        if node.plan.standby and not node.spool.exit_record():
            node.spool.write_exit("succeeded", 0, "it was not needed", agent_exit=None, survivors=[])
            return
        node.spool.drop_secrets()
        node.spool.make_exit_final(reason)

    def _begin(self, node: "Node", decision: AttemptDecision) -> Optional[Attempt]:
        """The next attempt, as soon as it is made ready."""
        if not self.begins:
            self.begins = decision
            self.conditions.decided = boot_clock()
        made = self.work.ask("next attempt", lambda: self._make(node, decision))
        if made is None:
            return None
        self.begins = None
        self._forget()
        self._begin_carrying(node, decision, made.value)
        return made.value

    def _begin_carrying(self, node: "Node", decision: AttemptDecision, attempt: Attempt) -> None:
        """Where nodes are new to the attempt: the others listen, they ask."""
        if self.serving:
            self.serving.close()
        self.serving, self.taking, self.wanted, self.wanted_since = None, None, (), None
        self.membership.carry = 0
        plan = attempt.plan
        old = tuple(place for place in decision.places if place in node.plan.places)
        if not plan.carry or not old or len(old) == len(decision.places):
            return
        if plan.place not in old:
            self.wanted = old
            return
        try:
            (listener,) = bind_ports(plan.ports, 1, plan.peers[plan.place].address)
        except Refused as error:
            self.work.event(attempt.spool, "carried", reason="nothing can be carried from here: %s" % error.message)
        else:
            self.serving = Serving(self.control.secret, listener, plan.workdir, plan.carry)
            self.membership.carry = self.serving.port

    def carries(self, node: "Node") -> bool:
        """Whether what is carried to this node is still on its way; the others know meanwhile that it takes part."""
        if self.wanted and not self.taking:
            self._ask_for(node)
        if not self.wanted or (self.taking and self.taking.over):
            return False
        self.conditions.decided = boot_clock()
        return True

    def _ask_for(self, node: "Node") -> None:
        """Begin, once all that have it say where, or do not in time."""
        if self.wanted_since is None:
            self.wanted_since = time.monotonic()
            node.tell(NodeState.RUNNING)
        words = {place: self.membership.words.get(place) for place in self.wanted}
        told = {place: word for place, word in words.items() if word and word.attempt >= node.plan.attempt}
        if len(told) < len(words) and time.monotonic() - self.wanted_since < CARRY_LIMIT:
            return
        names, addresses = self.membership.names, self.control.addresses
        asked = [ReplicaSource(place, names[place], (addresses[place][0], word.carry)) for place, word in told.items()]
        spool, plan, shutdown = node.spool, node.plan, node.shutdown
        self.taking = Taking(
            self.control.secret,
            plan.workdir,
            plan.carry,
            [source for source in asked if source.address[1]],
            lambda: shutdown.order is not None,
            lambda line: self.work.event(spool, "carried", reason=line),
            node.making.umask,
        )

    def _make(self, node: "Node", decision: AttemptDecision) -> Attempt:
        """Make this node's spool of the next attempt, ours from the first moment. In the file thread."""
        old = node.spool
        plan = next_plan(node.plan, decision.attempt, decision.places, decision.store)
        spool = old.in_attempt(decision.attempt, plan.node)
        shutil.rmtree(spool.folder, ignore_errors=True)  # what an earlier try, cut short by a full disk, has left
        with open(old.code, "rb") as code:
            create_spool(spool, plan, code.fileno())
        spool.take_lock()
        spool.write_supervisor()
        spool.write_control_key(old.control_key())
        try:
            with open(old.path(SECRETS), "rb") as source:
                keep_secrets(spool.folder, source.read())
        except FileNotFoundError:
            pass  # there are none
        write_worker(spool, plan.python)
        if os.path.exists(old.path(FORK_SOCKET)):  # the fork server is the run's: who asks it next asks from here
            os.rename(old.path(FORK_SOCKET), spool.path(FORK_SOCKET))
        ready = (node.inbox.ready or Ready())._replace(store=decision.port)
        spool.write_committed(ready)
        order = old.stop_order()
        if order:
            spool.write_stop_order(order.reason, order.grace)
        self._write_end(node, "attempt %d" % decision.attempt)
        old.release_lock()
        environment = dict(node.children.environment, **spool_environment(spool.folder, plan))
        return Attempt(spool, environment, self.store if plan.store else None, node.making, ready)
