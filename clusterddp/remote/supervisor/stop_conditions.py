"""A node's own reasons to end its part: limits, signals, a store that ended, nodes out of reach.

Each is a method that returns an order to end the run or the attempt, or None.
"""

import time
from typing import Callable, Dict, FrozenSet, Iterable, NamedTuple, Optional, Sequence

from ..control.leader import Control
from ..control.membership import START_TIMEOUT, TCP_ONLY_MARGIN, Membership
from ..control.messages import EndOrder, NodeState
from ..rendezvous.participants import AGENT_DELAY, FOREVER, Participants
from ..shared.processes.exit_codes import EXIT_STOPPED
from ..shared.run.plan import NodePlan
from ..shared.run.spool_records import Ready
from ..shared.supervisor.start_records import COMMIT_TIMEOUT
from ..shared.verdict.failures import BY_ANOTHER_COMMAND, LEASE, STALLED, TIME_LIMIT, ended_by_manager
from ..spool.attention import is_attended
from ..system.clock import boot_clock
from .children import Children
from .fence_pipe import FencePipe, Lease

AGENT_GRACE = 10.0  # seconds for the agent
END_TIMEOUT = 120.0  # seconds beyond its grace that a node may take to end what it was ordered to end
FENCE_MARGIN = 0.25  # seconds by which the supervisor itself acts before its fence, if it can
Conditions = Dict[str, Callable[[], Optional[EndOrder]]]


class Limits(NamedTuple):
    """Time limits, in seconds."""

    lost: float  # a node out of reach is lost; with relaunches later than its own fence, grace and kill
    fence: float  # a node without contact to a majority ends its own part
    grace: float  # for its agent then
    behind: float  # a node within reach that does not begin the attempt counts as lost
    excluded: float  # the others of an elastic job go on without a node out of reach, until it is back

    @property
    def fenced(self) -> float:
        """A node out of reach has begun to end its own part, if it has a fence: its attempt cannot go on any more.

        Whoever is back by then finds its agent told to end. So the others end their parts, or an elastic job's workers,
        from then on, while they wait until the node is lost.
        """
        return min(self.lost, self.fence + FENCE_MARGIN + AGENT_DELAY)


AGENT_END_TIMEOUT = 5.0  # seconds that a host that joined gives its agent to end by itself once the others have left
# A cable that is unplugged for half a minute ends nothing.
LIMITS = Limits(lost=60.0, fence=120.0, grace=AGENT_GRACE, behind=90.0, excluded=7.25)
LIMITS_RELAUNCH = Limits(lost=7.25, fence=5.0, grace=1.0, behind=30.0, excluded=7.25)


def attempt_end_order(plan: NodePlan, reason: str, grace: float, *, ours: bool = True) -> EndOrder:
    """An order that ends the plan's attempt; another one may follow."""
    return EndOrder(reason, grace, ours, plan.attempt)


class StopConditions:
    """One node's reasons to end its part, in one attempt after the other."""

    def __init__(self, control: Control, membership: Membership, fence: FencePipe, plan: NodePlan) -> None:
        self.control, self.membership, self.fence = control, membership, fence
        self.has_begun = False  # whether this node has begun its part of an attempt
        self.slow = False  # whether heartbeats went over TCP alone when the attempt began, and have since
        self.limits = LIMITS_RELAUNCH if plan.settings.relaunch else LIMITS
        self.decided_at: Optional[float] = None  # boot clock when we learned of this attempt; None for the first
        self.ready = False  # whether all nodes are ready
        self.alone_since: Optional[float] = None  # when the others were seen to have left
        self.started_at = time.monotonic()
        self.terminated = self.stopped = False  # SIGTERM came; a stop signal came (processes/terminate.py)
        self.stalled = ""  # why the stall guard ends the run
        self.ending_run: Conditions = {  # these end the run
            "signal": self._signal,
            "time limit": self._time_limit,
            "stall": self._stalled,
            "commit": self._not_committed,
            "lease": self._lease_expired,
        }
        self.ending_attempt: Conditions = {  # these end the attempt
            "told to end": self.leave_order,
            "store": self._store_gone,
            "decision": self._later_attempt,
            "lost nodes": self._lost_nodes,
            "contact": self._no_contact,
            "fence": self.fence_order,
            "too late": self._others_have_left,
            "place": self._place_taken,
        }

    def begin_run(self, ready: Ready, renewed: float) -> None:
        """Begin run control, as all nodes are ready; ``renewed``: when that was seen (boot clock), if there is a lease.

        The start may have taken longer than the lease lasts, so the operator's contact counts before that is looked at.
        """
        self.membership.note_operator_contact(renewed)
        self.ready = True
        self.control.begin(list(ready.peers))

    def begin_attempt(self, plan: NodePlan, children: Children) -> None:
        """Switch to an attempt."""
        limit, by_majority, store = self.limits.excluded, bool(plan.settings.relaunch), plan.store_member
        self.membership.begin(plan.attempt, plan.members, limit=limit, by_majority=by_majority, store=store)
        self.membership.fewest = plan.settings.min_nodes if plan.settings.elastic else 0
        self.switch_plan(plan, children)

    def switch_plan(self, plan: NodePlan, children: Children) -> None:
        """Take an attempt's plan and processes; called again when a host joins the plan."""
        self.plan, self.children = plan, children

    # Ends of the run

    def _signal(self) -> Optional[EndOrder]:
        if self.stopped:
            return EndOrder(BY_ANOTHER_COMMAND, AGENT_GRACE, ours=False)
        if self.terminated and self.plan.manager:
            return EndOrder(ended_by_manager(self.plan.manager), AGENT_GRACE, ours=False)
        if self.terminated:
            return None if self.leaves_alone() else EndOrder(self._told_to_end(), AGENT_GRACE, ours=True)
        return None

    def _told_to_end(self) -> str:
        return (
            "the supervisor of %s was told to end (SIGTERM); the host may be shutting down" % self.membership.own_name
        )

    def leaves_alone(self) -> bool:
        """Whether this node was told to end, as by a host that shuts down, and the others go on without it.

        A workload manager tells all nodes of its job.
        """
        if not self.terminated or self.plan.manager or not self.membership.others_at_work():
            return False
        settings, member = self.plan.settings, self.plan.member
        needed = self.control.leading or self.plan.store_member == member
        others = len(self.membership.names) - len(self.membership.left | {member})
        may_begin = settings.relaunch and others >= settings.min_nodes
        goes_on = may_begin or (not needed and self.continues_without({member}))
        return bool(goes_on) and (self.has_begun or (self.ready and self.plan.standby))

    def _time_limit(self) -> Optional[EndOrder]:
        limit = self.plan.settings.time_limit
        takes_part = self.plan.member in self.plan.members  # nobody attaches to a spare: those at work watch the limit
        is_over = limit and takes_part and time.monotonic() - self.started_at > limit
        if is_over and not is_attended(self.children.spool):
            return EndOrder(TIME_LIMIT, self.plan.settings.grace, ours=False)
        return None

    def _stalled(self) -> Optional[EndOrder]:
        grace = self.plan.settings.grace
        return EndOrder(STALLED + self.stalled, grace, ours=False) if self.stalled else None

    def _not_committed(self) -> Optional[EndOrder]:
        if time.monotonic() - self.started_at > COMMIT_TIMEOUT and not self.ready:
            return EndOrder("the operator was lost before every node had started", 0.0, ours=True)
        return None

    def _lease_expired(self) -> Optional[EndOrder]:
        lease = self.plan.settings.lease
        if lease and self.ready and self.control.leading and self.membership.operator_age > lease:
            return EndOrder(LEASE, self.plan.settings.grace, ours=False)
        return None

    # Ends of the attempt

    def leave_order(self) -> Optional[EndOrder]:
        """Return the order that ends this node's part alone, if only this node was told to end."""
        return attempt_end_order(self.plan, self._told_to_end(), AGENT_GRACE) if self.leaves_alone() else None

    def order_after_agent(self, *, is_ordered: bool) -> Optional[EndOrder]:
        """Return the order by which this node's part ends now that torchrun has ended here; None without one.

        ``is_ordered``: an order was given before. Without one, SIGTERM came from the workload manager: it ends torchrun
        at once in its first seconds, before torchrun handles it and exits with another code.
        """
        from_manager = self.plan.manager and not is_ordered and self.children.agent_exit == EXIT_STOPPED
        return self.fence_order() or self.leave_order() or (self._managers_signal() if from_manager else None)

    def _managers_signal(self) -> Optional[EndOrder]:
        """Return the order for the workload manager's SIGTERM, which only another process of the job has got yet."""
        self.terminated = True
        return self._signal()

    def heed_datagrams(self) -> bool:
        """Whether this node is not slow after all, though it was when the attempt began; its lease is shorter then.

        On a connection that is new no datagram has come yet. The others must not hear of it before fence and agent have
        the shorter lease.
        """
        is_faster = self.slow and bool(self.control.connected) and not self.control.slow
        self.slow = self.slow and not is_faster
        return is_faster

    def _store_gone(self) -> Optional[EndOrder]:
        """The rendezvous store died here, or with its node's part of an elastic job that ended before ours."""
        if self.children.store_died and self.children.store_terminated and self.plan.manager:
            return self._managers_signal()
        if self.children.store_died:
            return attempt_end_order(self.plan, "the rendezvous store died: %s" % self.children.store_output(), 0.0)
        member = self.plan.store_member
        status = self.membership.ended_statuses(self.plan.attempt).get(member) if self.plan.settings.elastic else None
        if member == self.plan.member or status is None or status.state is not NodeState.ENDED or not status.code:
            return None
        reason = "%s has ended its part, and with it the rendezvous store" % self.membership.names[member]
        return attempt_end_order(self.plan, reason, self.limits.grace)

    def _later_attempt(self) -> Optional[EndOrder]:
        """The other nodes considered this one lost and are in a later attempt by now."""
        decision = self.membership.decision
        if decision and decision.attempt > self.plan.attempt:
            return attempt_end_order(
                self.plan, "attempt %d was decided meanwhile" % decision.attempt, self.limits.grace
            )
        return None

    def _lost_nodes(self) -> Optional[EndOrder]:
        """Lost nodes end a job of a fixed size, and an elastic one if fewer than MIN are left.

        The loss of the node with the store always does: without it no agent restarts anything.
        """
        now = boot_clock()
        lost = self._fatal(self.membership.lost(now, self.limits.fenced))
        behind = self._fatal(self.membership.behind(now, self.limits.behind)) if self.control.leading else ""
        host = self.membership.own_name
        ended = self._fatal(sorted(self.membership.ended))
        if lost and not ended and not self.control.settled:
            return attempt_end_order(self.plan, "%s lost contact with %s" % (host, lost), self.limits.grace)
        lost = ended or lost
        if lost:
            verb = "were" if ", " in lost else "was"
            return attempt_end_order(self.plan, "%s %s lost" % (lost, verb), self.limits.grace)
        if behind:
            return attempt_end_order(
                self.plan, "%s did not begin attempt %d" % (behind, self.plan.attempt), self.limits.grace
            )
        return None

    def _fatal(self, lost: Sequence[int]) -> str:
        """The names of those lost nodes without which this attempt cannot go on; empty if it can."""
        members = self.plan.members
        ours = [member for member in lost if member in members]
        if ours and (not self.continues_without(ours) or self.plan.store_member in ours):
            return ", ".join(self.membership.names[member] for member in ours)
        return ""

    def continues_without(self, lost: Iterable[int]) -> bool:
        """Whether an elastic job has enough nodes without those that are lost or have failed."""
        ended = self.membership.ended_statuses(self.plan.attempt)
        failed = {member for member, status in ended.items() if status.code}
        left = set(self.plan.members).difference(failed, lost)
        return self.plan.settings.elastic and len(left) >= self.plan.settings.min_nodes

    def outlived(self) -> bool:
        """Whether this host joined later, and has no part in the run: all others have left since, with the verdict.

        Or another host has joined in its place.
        """
        over = self.membership.replaced or self.membership.over_without_us(self.limits.lost)
        return self.plan.joined and over

    def _others_have_left(self) -> Optional[EndOrder]:
        """A host that joined when the others were about to end would wait in vain for a round with them."""
        if not self.outlived():
            self.alone_since = None
            return None
        self.alone_since = self.alone_since or boot_clock()
        if boot_clock() - self.alone_since < AGENT_END_TIMEOUT:
            return None
        host = self.membership.own_name
        return attempt_end_order(self.plan, "the run was over before %s took part" % host, 0.0)

    def _place_taken(self) -> Optional[EndOrder]:
        """Return the order that ends this node's part if another host has joined in its place."""
        if not self.membership.replaced:
            return None
        reason = "another host joined the run in the place of %s" % self.membership.own_name
        return attempt_end_order(self.plan, reason, 0.0)

    def _no_contact(self) -> Optional[EndOrder]:
        """A node without contact to a majority ends its own part where another attempt may start without it."""
        if boot_clock() < self._lease_end():
            return None
        host = self.membership.own_name
        return attempt_end_order(self.plan, "%s lost contact with the other hosts" % host, self.limits.grace)

    def fence_order(self) -> Optional[EndOrder]:
        """Our fence has ended this node's processes, or has ended itself: nothing would end this node if it hangs."""
        host = self.membership.own_name
        if self.fence.acted is not None:
            reason = "%s was held up for %d s or more, so its part was ended" % (host, self._fence_limit())
            return attempt_end_order(self.plan, reason, 0.0)
        if self.fence.has_ended:
            return attempt_end_order(self.plan, "the fence process of %s is gone" % host, self.limits.grace)
        return None

    def too_early(self) -> bool:
        """Whether the first attempt has to wait for contact to a majority: without it nobody knows who has begun.

        A host that joins waits for the word of a leader: it may not be the one that takes part.
        """
        waited = boot_clock() - self.control.began
        awaits_leader = self.plan.joined and not (self.control.connected and self.membership.epoch)
        awaits_majority = self.plan.settings.relaunch and not self.control.in_contact
        return bool(awaits_leader or awaits_majority) and waited < START_TIMEOUT

    def begin_and_check(self) -> Optional[EndOrder]:
        """Begin the node's part, so that the agent can start.

        Returns an order if it is too late (the other nodes may be in a later attempt), or there is no fence.
        """
        self.membership.begin_part()
        self.fence.begin()
        self.slow = self.control.slow
        self.has_begun = True
        lease = self.lease(None)
        self.children.start_deadline = lease.term_at
        self.fence.renew(lease)
        self.children.inform_agent(self.participants(lease))  # lies there when it starts: this process may be stopped
        too_late = self._later_attempt() or self._too_late() or self._place_taken()
        return self.fence_order() or self._no_contact() or too_late

    def _too_late(self) -> Optional[EndOrder]:
        """The other nodes have waited for this one so long that they may have begun another attempt."""
        if self.decided_at is None or boot_clock() - self.decided_at <= self.limits.behind / 2:
            return None
        host = self.membership.own_name
        return attempt_end_order(self.plan, "%s was too late for attempt %d" % (host, self.plan.attempt), 0.0)

    def lease(self, agent: Optional[int]) -> Lease:
        """How long this node's part may go on, for the fence; ``agent``: the pid to get SIGTERM, if any is to."""
        end = self._lease_end() + FENCE_MARGIN
        return Lease(end, end + self.limits.grace, agent or 0)

    def participants(self, lease: Lease) -> Participants:
        """What the agent has to know: who takes part, and how long it may go on, in case the fence cannot act."""
        part = self.membership.participants
        if part is None:
            return Participants(term_at=lease.term_at, kill_at=lease.kill_at)
        nodes, ended = (frozenset(map(self._node, members)) for members in (part.members, part.ended))
        return Participants(part.epoch, nodes, ended, self._fenced_nodes(), lease.term_at, lease.kill_at)

    def _fenced_nodes(self) -> FrozenSet[int]:
        """Return the unreachable nodes whose own fence has told them to end; empty unless this node leads a majority.

        Only an elastic job's agents need them: run control ends a job of a fixed size as a whole.
        """
        settings = self.plan.settings
        if not (settings.relaunch and settings.elastic and self.membership.may_decide):
            return frozenset()
        lost = self.membership.lost(boot_clock(), self.limits.fenced)
        return frozenset(self._node(member) for member in lost if member in self.plan.members)

    def _node(self, member: int) -> int:
        """A member's number in this attempt's rendezvous; for a node that joined later its member index."""
        members = self.plan.members[: self.plan.nnodes]
        return members.index(member) if member in members else member

    def _lease_end(self) -> float:
        """When this node has been without contact for so long (boot clock) that its part must end."""
        settings = self.plan.settings
        fenced = self.has_begun and (settings.relaunch or not settings.elastic) and self.membership.others_at_work()
        return self.control.last_contact + self._fence_limit() if fenced else FOREVER

    def _fence_limit(self) -> float:
        """Seconds without contact to a majority after which this node's part ends."""
        return self.limits.fence + (TCP_ONLY_MARGIN if self.slow else 0.0)
