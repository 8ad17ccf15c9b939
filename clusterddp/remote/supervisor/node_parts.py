"""One node's supervisor as every phase of the run sees it: its plan and spool, and the objects that do its work."""

from typing import TYPE_CHECKING, Optional

from ..control.messages import AttemptDecision, EndOrder, Joined, NodeState, NodeStatus
from ..shared.processes.exit_codes import EXIT_STOPPED
from ..shared.run.plan import Peer, with_members, with_peer
from ..system.clock import boot_clock
from .next_attempt import may_follow
from .shutdown import Shutdown

if TYPE_CHECKING:
    from ..control.membership import Membership
    from ..shared.run.plan import NodePlan
    from ..spool.layout import Spool
    from .attempt import AttemptContext
    from .children import Children
    from .event_loop import Loop
    from .file_work import FileWork
    from .inbox import Inbox
    from .stop_conditions import StopConditions


class NodeParts:
    """The base of ``Supervisor``, which makes the parts and goes through the phases."""

    member: int
    plan: "NodePlan"
    spool: "Spool"
    children: "Children"
    inbox: "Inbox"
    shutdown: Shutdown
    loop: "Loop"
    work: "FileWork"
    context: "AttemptContext"
    membership: "Membership"
    conditions: "StopConditions"

    def job_continues(self) -> bool:
        """Whether an elastic job has enough nodes without those that are lost or have failed."""
        return self.conditions.continues_without(self.membership.lost(boot_clock(), self.conditions.limits.fenced))

    def spread(self, order: Optional[EndOrder]) -> Optional[EndOrder]:
        """Pass an order that ends the run on to the other nodes, once, whatever this node does; return the order."""
        known = self.membership.order
        if order and order.attempt is None and (known is None or known.attempt is not None):
            self.membership.pass_on(order)
        return order

    def stand_by(self, decision: AttemptDecision) -> None:
        """Become a spare, since an attempt begins without this node; it may lead the others all the same."""
        self.shutdown = Shutdown()
        attempt, members, store = decision.attempt, decision.members, decision.store
        self.begin_attempt(self.plan._replace(attempt=attempt, members=members, store_member=store))
        self.publish(NodeState.STANDBY)

    def begin_attempt(self, plan: "NodePlan") -> None:
        """Switch to an attempt, and take in the hosts that joined the run, and it, before this node knew of it."""
        joined = {
            member
            for member, status in self.membership.statuses.items()
            if status.joined and status.attempt == plan.attempt and status.state is not NodeState.STANDBY
        }
        members = (*plan.members, *sorted(joined.difference(plan.members)))
        self.plan = with_members(plan._replace(peers=self.plan.peers), members)
        self.conditions.begin_attempt(self.plan, self.children)

    def change_plan(self, plan: "NodePlan") -> None:
        """Change the plan of the attempt, and who takes part in it."""
        self.plan = plan
        self.membership.attempt, self.membership.members = plan.attempt, plan.members
        self.conditions.switch_plan(plan, self.children)

    def add_host(self, joined: Joined, takes_part: bool) -> None:
        """Add a host that has joined the run to the plan, and to its attempt if it takes part in that."""
        peer = Peer(host=joined.host, address=joined.address, nproc=joined.nproc)
        self.change_plan(with_peer(self.plan, peer, takes_part=takes_part))
        self.save_plan()

    def save_plan(self) -> None:
        """Write the plan: the next host to join gets it; while a full disk prevents that, this node can invite none."""
        spool, plan = self.spool, self.plan
        self.work.queue_latest("plan", lambda: self.loop.guard("plan", lambda: spool.write_plan(plan), pauses=False))

    def publish(self, state: NodeState, *, curable: bool = True, reason: str = "") -> None:
        """Publish this node's status to all members through the leader."""
        peer, joined = self.plan.peers[self.member], None
        if self.plan.joined:
            joined = Joined(peer.host, peer.address, peer.nproc, self.plan.bound[1])
        code = None if state is NodeState.STANDBY else self.children.agent_exit
        if code == 0 and self.shutdown.order:
            code = EXIT_STOPPED  # as in its exit record: what the order kept the other hosts from may not be done
        # Without a fence, or told to end, it is in no later attempt, and says so: the leader may choose others at once.
        leaves = self.conditions.fence.has_ended or self.conditions.leaves_alone()
        left = leaves and state is NodeState.ENDED and may_follow(self.plan, self.shutdown.order)
        status = NodeStatus(state, self.plan.attempt, code, curable, reason, left, joined, self.conditions.slow)
        self.loop.guard("status", lambda: self.membership.publish(status), pauses=False)
