"""Between two attempts: a node waits for the leader's decision, and makes the next attempt's spool.

The supervisors do this alone, so a job is relaunched even with no operator attached. Only a leader in contact with a
majority decides, and only when every node of the attempt has ended or is lost; a node without a majority has ended its
own part by then (limits), so two attempts never run at once. A decision is sent until all know it
(control/membership.py). Every wait has a limit: a node that was ordered to end and does not ends the run.

A node that was cut off and is back before it has given up is a spare, if the others went on without it. Where all were
cut off from each other they go on together, once all are back or those that are not have had the time to come.
"""

import os
import shutil
import time
from typing import TYPE_CHECKING, NamedTuple, Optional, Set, Tuple, Union

from ..control.contact import NEVER
from ..control.leader import Control
from ..control.membership import Membership
from ..control.messages import AttemptDecision, EndOrder, NodeState
from ..rendezvous.participants import FOREVER
from ..shared.run.plan import FORK_SOCKET, SECRETS, NodePlan, next_plan, spool_environment
from ..shared.run.run_state import RunState
from ..shared.run.spool_records import Ready
from ..spool.creation import create_spool
from ..spool.layout import Spool
from ..spool.quoted import keep_secrets
from ..spool.supervisor_identity import clock_step
from ..system.bootstrap import Refused
from ..system.clock import boot_clock
from ..system.ports import bind_ports
from ..worker.worker_env import write_worker
from .attempt import Attempt
from .file_work import FileWork
from .next_attempt import NextAttempt, backoff, decide, may_follow, why_none_follows
from .replication import ReplicaFetcher, ReplicaServer, ReplicaSource
from .stop_conditions import END_TIMEOUT, StopConditions

if TYPE_CHECKING:
    from .node_parts import NodeParts


NEXT_ATTEMPT = "next attempt"  # name of the task in FileWork
ALONE_TIMEOUT = 15.0  # seconds without a majority after which a node gives up; only then do its followers hear the end
REPLICATION_TIMEOUT = 30.0  # seconds for the nodes that have the replicated paths to publish their port
NO_MAJORITY = "no majority of the hosts reach each other; it waits for an operator"


class NoAttempt(NamedTuple):
    """No attempt follows on this node, and that is recorded."""

    reason: str
    leaves: bool = False  # the other nodes go on without this one, and make the verdict


class Relaunching:
    """One node's part in deciding on and preparing the next attempt."""

    def __init__(self, control: Control, membership: Membership, conditions: StopConditions, work: FileWork) -> None:
        self.control, self.membership, self.conditions, self.work = control, membership, conditions, work
        self.store: Optional[int] = None  # descriptor of the socket bound for the next attempt's store
        self.preparing: Optional[AttemptDecision] = None  # whose attempt this node is preparing
        # when this node's part of the attempt had ended, and an order had been given to end the others' parts
        self.waiting_since: Optional[float] = None
        self.ended_since: Optional[float] = None  # when the attempt was known to have ended everywhere
        self.replica_server: Optional[ReplicaServer] = None
        self.fetching: Optional[ReplicaFetcher] = None
        self.replica_members: Tuple[int, ...] = ()  # members that may have the paths to replicate to this node
        self.replicating_since: Optional[float] = None
        self.alone_at = NEVER  # when this node was last without a majority for as long as a lost node is out of reach

    def step(self, node: "NodeParts", order: Optional[EndOrder]) -> Union[Attempt, NoAttempt, None]:
        """Return what follows the attempt that has ended on this node, or None while that is not known."""
        now = time.monotonic()
        self.waiting_since = (self.waiting_since if node.shutdown.given else None) or now
        if self._alone() > self.conditions.limits.lost:
            self.alone_at = boot_clock()
        if self.preparing:  # go on: a half made spool would look like an attempt that was lost
            try:
                return self._begin(node, self.preparing)
            except OSError:
                # Without an order the run goes on; a disk that only stalls may still make the attempt.
                if not order or self.work.is_asked(NEXT_ATTEMPT):
                    raise
                self.preparing = None
                self.work.forget(NEXT_ATTEMPT)
        if self.conditions.outlived():
            return NoAttempt("", leaves=True)  # the other nodes have made the verdict
        leaves_alone = not order and self.conditions.leaves_alone()
        if not may_follow(node.plan, node.shutdown.order):  # a shutdown waits for no end of others, who go on
            return NoAttempt("", leaves=leaves_alone and bool(self.control.connected))
        unfenced = self.conditions.fence.has_ended  # nothing would end this node if it hangs
        if unfenced or leaves_alone:
            no_attempt = self._end(node, "its fence process is gone" if unfenced else "it was told to end (SIGTERM)")
            return no_attempt and no_attempt._replace(leaves=bool(self.control.connected))
        if order:
            return self._end(node, order.reason)
        if self.control.leading:
            reason = self._decide_as_leader(node, now)
            if reason:
                return self._end(node, reason)
        elif self._alone() > ALONE_TIMEOUT:
            return self._end(node, NO_MAJORITY)
        return self._carry_out(node, self.membership.decision)

    def _alone(self) -> float:
        """Seconds since this node was last in contact with a majority."""
        return boot_clock() - self.control.last_contact

    def _carry_out(self, node: "NodeParts", decision: Optional[AttemptDecision]) -> Union[Attempt, NoAttempt, None]:
        """Carry out the decision: begin, stand by, or end."""
        if decision is None or decision.attempt < node.plan.attempt:
            return None
        if any(member >= len(node.plan.peers) for member in decision.members):
            return None  # of a host that has joined: the leader's table, which tells of it, comes a moment later
        if decision.attempt > node.plan.attempt and not decision.members:
            return self._end(node, decision.reason)
        if decision.attempt > node.plan.attempt and node.member in decision.members:
            return self._begin(node, decision)
        replaced = (
            node.member in node.plan.members and not node.plan.joined
        )  # a node that joined later is in no decision
        if node.member not in decision.members and (decision.attempt > node.plan.attempt or replaced):
            self._reset_times()
            node.stand_by(decision)
        return None

    def _reset_times(self) -> None:
        self.waiting_since = self.ended_since = None

    # As leader

    def _decide_as_leader(self, node: "NodeParts", now: float) -> str:
        """As leader, decide and publish what follows, if it is known; return why nothing can, else ``""``."""
        plan, lost = node.plan, self._lost()
        following = self._following(node, lost)
        if following is None:
            self._limit_wait(node, now, lost)
            return ""
        self.ended_since = self.ended_since or now
        if not self.membership.may_decide:
            given_up = self._alone() > ALONE_TIMEOUT
            return (following.reason or NO_MAJORITY if not following.members else NO_MAJORITY) if given_up else ""
        if not following.members:
            self.membership.decide(AttemptDecision(plan.attempt + 1, reason=following.reason))
        elif lost or now - self.ended_since >= backoff(plan.attempt):  # a lost host does not fail as a script does
            (listener,) = bind_ports(plan.host_settings.ports, 1, plan.peers[node.member].address)
            port = listener.getsockname()[1]
            self.store = listener.detach()
            self.membership.decide(AttemptDecision(plan.attempt + 1, following.members, node.member, port))
        return ""

    def refuse_as_leader(self, node: "NodeParts") -> None:
        """As a leader for which the run is over, decide that no attempt follows once this one has ended everywhere.

        It gave up for want of a majority and has one again, of nodes that did not give up: they wait for a decision.
        """
        plan, decision = node.plan, self.membership.decision
        decided = decision is not None and decision.attempt > plan.attempt
        if decided or not may_follow(plan, node.shutdown.order):
            return
        if self.membership.may_decide:
            following = self._following(node, self._lost())
            if following:
                reason = NO_MAJORITY if following.members else following.reason
                self.membership.decide(AttemptDecision(plan.attempt + 1, reason=reason))

    def _lost(self) -> Set[int]:
        """The nodes that are lost for good, or that begin no attempt."""
        now, limits, membership = boot_clock(), self.conditions.limits, self.membership
        # Whom we did not hear while we heard nobody gets the time to call us, now that a majority is back.
        is_back = self.control.in_contact and now - self.alone_at <= limits.lost
        limit = FOREVER if is_back else limits.lost
        lost = {*membership.lost(now, limit), *membership.behind(now, limits.behind)}
        return lost | membership.left | membership.concluded

    def _following(self, node: "NodeParts", lost: Set[int]) -> Optional[NextAttempt]:
        available = {node.member, *self.control.connected} - self.membership.concluded - self.membership.left
        return decide(node.plan, self.membership.statuses, available, lost)

    def _limit_wait(self, node: "NodeParts", now: float, lost: Set[int]) -> None:
        """Decide that no attempt follows when a connected node outlives its order by grace + ``END_TIMEOUT``.

        The time counts from when the last one has the replicated paths, as long as it stays in contact.
        """
        order, statuses = node.shutdown.given, self.membership.statuses
        awaited = [statuses[member] for member in set(node.plan.members) - lost if member in statuses]
        if any(status.state is NodeState.REPLICATING for status in awaited):
            self.waiting_since = now
        if order is None or now - (self.waiting_since or now) <= order.grace + END_TIMEOUT:
            return
        done = {
            p
            for p, status in statuses.items()
            if status.state is NodeState.ENDED and status.attempt == node.plan.attempt
        }
        names = ", ".join(self.membership.names[member] for member in sorted(set(node.plan.members) - done - lost))
        reason = "%s did not end attempt %d within %d s" % (names, node.plan.attempt, END_TIMEOUT)
        self.membership.decide(AttemptDecision(node.plan.attempt + 1, reason=reason))

    # As any node

    def _end(self, node: "NodeParts", reason: str) -> Optional[NoAttempt]:
        """No attempt follows, as soon as that is recorded."""
        node.children.end_fork_server(for_good=True)
        return NoAttempt(reason) if self.work.ask("last record", lambda: self._write_end(node, reason)) else None

    def _write_end(self, node: "NodeParts", reason: str) -> None:
        """Mark the last attempt's exit record as final, and delete the attempt's secrets; runs in the file thread."""
        self._make_final(node, reason)
        node.spool.drop_secrets()

    @staticmethod
    def _make_final(node: "NodeParts", reason: str) -> None:
        """Record that no attempt, or which one, follows the node's last one."""
        if node.plan.standby and not node.spool.exit_record():
            node.spool.write_exit(RunState.SUCCEEDED, 0, "it was not needed", agent_exit=None, survivors=[])
            return
        node.spool.make_exit_final(reason)

    def _begin(self, node: "NodeParts", decision: AttemptDecision) -> Optional[Attempt]:
        """The next attempt, as soon as it is prepared."""
        if not self.preparing:
            self.preparing = decision
            self.conditions.decided_at = boot_clock()
        made = self.work.ask(NEXT_ATTEMPT, lambda: self._make_attempt(node, decision))
        if made is None:
            return None
        self.preparing = None
        self.work.do(node.spool.drop_secrets)
        self._reset_times()
        self._begin_replicating(node, decision, made.value)
        return made.value

    def _begin_replicating(self, node: "NodeParts", decision: AttemptDecision, attempt: Attempt) -> None:
        """If nodes are new to the attempt, replicate paths to them: the others listen, and the new ones fetch."""
        if self.replica_server:
            self.replica_server.close()
        self.replica_server, self.fetching, self.replica_members, self.replicating_since = None, None, (), None
        self.membership.replication_port = 0
        plan = attempt.plan
        old = tuple(member for member in decision.members if member in node.plan.members)
        if not plan.host_settings.carry or not old or len(old) == len(decision.members):
            return
        if plan.member not in old:
            self.replica_members = old
            return
        try:
            (listener,) = bind_ports(plan.host_settings.ports, 1, plan.peers[plan.member].address)
        except Refused as error:
            self.work.event(attempt.spool, "carried", reason="nothing can be carried from here: %s" % error.message)
        else:
            self.replica_server = ReplicaServer(self.control.secret, listener, plan.workdir, plan.host_settings.carry)
            self.membership.replication_port = self.replica_server.port

    def is_replicating(self, node: "NodeParts") -> bool:
        """Whether paths are still being replicated to this node; meanwhile the others know that it takes part.

        They are when the attempt is to end, too: one that follows needs them. Where none can, the node ends at once.
        """
        ended = self.membership.ended_statuses(node.plan.attempt).values()
        if node.shutdown.attempt_order and why_none_follows(node.plan, ended):
            return False
        if self.replica_members and not self.fetching:
            self._start_fetching(node)
        if not self.replica_members or (self.fetching and self.fetching.done):
            return False
        self.conditions.decided_at = boot_clock()
        return True

    def _start_fetching(self, node: "NodeParts") -> None:
        """Fetch, once all nodes that have the paths have published their port, or the time for that is over."""
        if self.replicating_since is None:
            self.replicating_since = time.monotonic()
            node.publish(NodeState.REPLICATING)
        statuses = {member: self.membership.statuses.get(member) for member in self.replica_members}
        known = {
            member: status for member, status in statuses.items() if status and status.attempt >= node.plan.attempt
        }
        if len(known) < len(statuses) and time.monotonic() - self.replicating_since < REPLICATION_TIMEOUT:
            return
        names, addresses = self.membership.names, self.control.addresses
        sources = [
            ReplicaSource(member, names[member], (addresses[member][0], status.carry))
            for member, status in known.items()
        ]
        spool, plan, shutdown = node.spool, node.plan, node.shutdown
        self.fetching = ReplicaFetcher(
            self.control.secret,
            plan.workdir,
            plan.host_settings.carry,
            [source for source in sources if source.address[1]],
            lambda: shutdown.order is not None,
            lambda line: self.work.event(spool, "carried", reason=line),
            node.context.umask,
        )

    def _make_attempt(self, node: "NodeParts", decision: AttemptDecision) -> Attempt:
        """Make this node's spool of the next attempt, locked from the start; the file thread calls this.

        What a full disk interrupts is begun again, or given up: nothing of it is left.
        """
        old = node.spool
        plan = next_plan(node.plan, decision.attempt, decision.members, decision.store)
        step = clock_step(old.recorded_supervisor())  # the offset is as it was when the last attempt began
        plan = plan._replace(clock_offset_ns=plan.clock_offset_ns + step)
        spool = old.in_attempt(decision.attempt, plan.node)
        try:
            return self._fill(node, decision, spool, plan)
        except OSError:
            spool.release_lock()
            shutil.rmtree(spool.folder, ignore_errors=True)
            raise

    def _fill(self, node: "NodeParts", decision: AttemptDecision, spool: Spool, plan: NodePlan) -> Attempt:
        """Fill the spool; secrets and fork server stay with the last attempt until all else is done."""
        old, ready = node.spool, (node.inbox.ready or Ready())._replace(store=decision.port)
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
        spool.write_committed(ready)
        order = old.stop_order()
        if order:
            spool.write_stop_order(order.reason, order.grace)
        self._make_final(node, "attempt %d" % decision.attempt)
        environment = dict(node.children.environment, **spool_environment(spool.folder, plan))
        attempt = Attempt(spool, environment, self.store if plan.store else None, node.context, ready)
        if os.path.exists(old.path(FORK_SOCKET)):  # the fork server outlives attempts: shims look for it in this spool
            os.rename(old.path(FORK_SOCKET), spool.path(FORK_SOCKET))
        old.release_lock()
        return attempt
