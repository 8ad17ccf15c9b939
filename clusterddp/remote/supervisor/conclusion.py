"""The end of a run: every node sends its end to the leader, whose verdict is then recorded on all of them.

So each host can show how the run ended when others are gone, and all answer the same. The leader waits for nodes in
contact as long as they need, and for others up to a limit. A node that reaches no leader records what it knows itself.

A node confirms one verdict only, so two leaders never have both a majority's: each sends its verdict to be confirmed,
and then the same one as final. It takes one round trip. Where no majority answers it is final without.
"""

import time
from typing import TYPE_CHECKING, Dict, List, Optional, Set, Tuple, Union

from ..control.contact import NEVER
from ..control.control_events import Event, MemberJoined, MessageReceived
from ..control.leader import Control
from ..control.membership import REPEAT_INTERVAL, Membership
from ..control.messages import Confirmation, Confirmed, EndMessage, EndOrder, NodeState, VerdictPart, verdict_parts
from ..shared.run.run_state import RunState
from ..shared.schema.record import parse_record, to_fields
from ..shared.verdict.judge import VerdictRecord, judge, read_verdict
from ..shared.verdict.node_end import CONSEQUENTIAL_REASONS, EndedPart, NodeEnd, end_of, fit
from ..spool.worker_traces import evidence
from ..system.clock import boot_clock
from .file_work import FileWork
from .stop_conditions import END_TIMEOUT

if TYPE_CHECKING:
    from .node_parts import NodeParts


RECONNECT_TIMEOUT = 3.0  # seconds for a node to reach another leader; in a stopped run, all the time it gets
OUT_OF_REACH_TIMEOUT = 15.0  # seconds that a leader with a majority waits for a node out of reach
SEND_TIMEOUT = 2.0  # seconds for the others to receive the verdict
CONFIRM_TIMEOUT = 5.0  # seconds for a majority in contact to confirm it


class Conclusion:
    """One node's part in agreeing on the verdict."""

    def __init__(self, control: Control, membership: Membership, work: FileWork) -> None:
        self.control, self.membership, self.work = control, membership, work
        self.end: Optional[NodeEnd] = None  # how our part ended, once it has
        self.ends: Dict[int, NodeEnd] = {}  # other nodes' ends as they sent them, by member index
        self.finished = False  # whether the verdict is recorded here, or there will be none
        self._ended_at = 0.0  # boot clock time when our part had ended
        self._unordered_at = NEVER  # the last time at which no order had been given to end the others' parts
        self._alone_since: Optional[float] = None  # when we found that we neither lead nor are connected to a leader
        self._sent_at = NEVER  # when our end was last sent to the leader
        self._received_parts: List[Optional[VerdictPart]] = []  # of the leader's verdict; None: not received yet
        self._parts: List[VerdictPart] = []  # of the verdict that we sent as leader
        self._confirmed: Optional[VerdictRecord] = None  # the one verdict that this node has confirmed
        self._confirmed_by: Set[int] = set()  # other nodes that have confirmed the same one
        self._proposed_at: Optional[float] = None  # when we made it ours; None: we did not, or another node leads
        self._verdict: Optional[VerdictRecord] = None  # to be recorded

    def handle_event(self, event: Event) -> None:
        """Handle an event of run control."""
        if isinstance(event, MemberJoined):
            for part in self._parts:
                self.control.send(part, to=(event.member,))
            if self.end and not self.control.leading:
                self.control.send(EndMessage(self.end))
        elif isinstance(event, MessageReceived) and isinstance(event.message, EndMessage):
            self.ends[event.member] = event.message.end
            for part in self._parts:  # the end was sent again, so the verdict has not arrived there
                self.control.send(part, to=(event.member,))
        elif isinstance(event, MessageReceived) and isinstance(event.message, VerdictPart):
            self._gather(event.message)
        elif isinstance(event, MessageReceived) and isinstance(event.message, (Confirmation, Confirmed)):
            self._take_confirmation(event.member, event.message)

    def step(self, node: "NodeParts", lost: float, *, hurry: bool) -> bool:
        """Take the next step; return whether the verdict is recorded here and sent to the nodes that need it.

        ``node``'s part in the run is over. After ``lost`` seconds without a majority it goes on alone. With ``hurry``
        (the run was ordered to end) it waits for nodes out of reach for ``RECONNECT_TIMEOUT`` seconds only.
        """
        now = boot_clock()
        if self.end is None:
            own_end = self.work.ask("end of the part", lambda: _own_end(node))
            if own_end is None:
                return False
            self._ended_at, self.end = now, own_end.value
        if _order_of(node) is None:
            self._unordered_at = now
        if not self.finished and not self.control.leading and now - self._sent_at > REPEAT_INTERVAL:
            self._sent_at = now
            self.control.send(EndMessage(self.end))
        if not self._is_decided and self._received_parts and None not in self._received_parts:
            self._take_verdict(node)
        alone = RECONNECT_TIMEOUT if hurry else lost
        if not self._is_decided and self._proposed_at is None:
            ends_and_missing = self._collect_ends(node, now, alone)
            if ends_and_missing:
                self._judge(node, *ends_and_missing)
        if not self._is_decided and self._proposed_at is not None:
            self._finish_proposal(now, self._proposed_at)
        if self._verdict and not self.finished:
            self._record_verdict(node, self._verdict)
        return self.finished and self._has_spread(node, now)

    def _has_spread(self, node: "NodeParts", now: float) -> bool:
        """Whether the nodes that need our verdict have it, or had time to get it.

        Those are the connected nodes, and those that will connect again: they lost the connection after they had sent
        their ends, or within the last seconds, as all nodes do when their leader is lost.
        """
        if not self._parts:
            return True
        sent = {member for member in self.ends if self._sent_end(node, member)}
        recent = {member for member, since in self.membership.missing.items() if now - since <= RECONNECT_TIMEOUT}
        cut_off = (sent | recent) - self.membership.left - self.membership.ended - self.control.connected
        patience = RECONNECT_TIMEOUT if cut_off else SEND_TIMEOUT if self.control.connected else 0.0
        return now - self._sent_at > patience

    @property
    def _is_decided(self) -> bool:
        """Whether the verdict is known here, or there will be none."""
        return self.finished or self._verdict is not None

    # As leader, or alone

    def _collect_ends(self, node: "NodeParts", now: float, alone: float) -> Optional[Tuple[List[NodeEnd], List[str]]]:
        """The nodes' ends, and the hosts that sent none; None while one may still come.

        Without a leader this node waits ``alone`` seconds for one, and then decides by what it knows itself.
        """
        control = self.control
        if control.leading or control.connected:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        if not control.leading and (self._alone_since is None or now - max(self._alone_since, self._ended_at) <= alone):
            return None
        patience = min(alone, OUT_OF_REACH_TIMEOUT) if control.majority else alone
        ends, missing = [], []
        for member in sorted(node.plan.members):
            sent = self._sent_end(node, member)
            end = sent or self._end_from_status(node, member)
            limit = min(patience, RECONNECT_TIMEOUT) if end else patience  # its status is known, and its end may follow
            if not sent and control.leading and self._may_still_send(node, member, now, limit):
                return None
            if end:
                ends.append(end)
            else:
                missing.append(self.membership.names[member])
        return ends, missing

    def _may_still_send(self, node: "NodeParts", member: int, now: float, patience: float) -> bool:
        """Whether a node may still send its end: until it is overdue if connected, else for ``patience`` seconds."""
        if member in self.membership.left or member in self.membership.ended:
            return False
        if member not in self.control.connected:
            return now - self.membership.missing.get(member, now) <= patience
        if member in self.membership.behind(now, 0.0):  # it never began this attempt, and may not know about it
            return now - self._ended_at <= patience
        order = _order_of(node)
        return order is None or now - max(self._ended_at, self._unordered_at) <= order.grace + END_TIMEOUT

    def _sent_end(self, node: "NodeParts", member: int) -> Optional[NodeEnd]:
        """The end of the last attempt that ``member`` sent, or this node's own; ``node``: this node's parts."""
        end = self.end if member == node.member else self.ends.get(member)
        return end if end and end.attempt == node.plan.attempt else None

    def _end_from_status(self, node: "NodeParts", member: int) -> Optional[NodeEnd]:
        """A node's end from its final status; ``lost`` if only its fence reported; else None."""
        status = self.membership.ended_statuses(node.plan.attempt).get(member)
        if status is None or status.state is not NodeState.ENDED:
            is_lost = member in self.membership.ended
            return NodeEnd(self.membership.names[member], node.plan.attempt, RunState.LOST, member) if is_lost else None
        end = NodeEnd(self.membership.names[member], status.attempt, RunState.SUCCEEDED, member, agent_exit=status.code)
        order = _order_of(node)
        if status.code == 0:
            return end
        # It may be the one for whose failure the others were told to end: then its own cause is why.
        if order and (order.reason not in CONSEQUENTIAL_REASONS or status.cause == order.reason):
            return end._replace(state=RunState.STOPPED, reason=order.reason, ours=order.ours)
        cause = status.cause or "the agent ended with %d" % (status.code or 0)
        return end._replace(state=RunState.FAILED, reason=cause, agent=cause, blames_worker=False)

    def _judge(self, node: "NodeParts", ends: List[NodeEnd], missing: List[str]) -> None:
        """Make the verdict; as leader, have it confirmed. A standby node that has heard of no node's end makes none.

        What this node has confirmed for a leader that is gone is its verdict too.
        """
        plan = node.plan
        if not ends:
            self.finished = True
            return
        if self._confirmed is None:
            now = time.time_ns() - plan.clock_offset_ns
            verdict = judge(ends, missing, plan.record.min_nodes, plan.record.max_restarts).bounded()
            self._confirmed = verdict._replace(
                writer=plan.host, member=node.member, code=plan.record.code, written=now, confirmed=False
            )
        self._proposed_at = boot_clock()
        self._send(self._confirmed, self.control.connected, final=False)

    def _finish_proposal(self, now: float, proposed_at: float) -> None:
        """Make the verdict final once a majority has confirmed it, or will not.

        If another node leads by now, it judges: this node waits for what that one has confirmed. Where no majority is
        in contact, but all have sent their ends, they were there a moment ago: they get the time to connect again.
        """
        control = self.control
        if self._confirmed is None or (control.connected and not control.leading):
            self._parts, self._proposed_at = [], None
            return
        confirmed = self.membership.has_majority_of({control.member, *self._confirmed_by})
        is_possible = self.membership.has_majority_of({control.member, *control.connected})
        patience = CONFIRM_TIMEOUT if is_possible else 0.0 if self._confirmed.missing else RECONNECT_TIMEOUT
        if not confirmed and control.leading and now - proposed_at <= patience:
            return
        self._verdict, self._sent_at = self._confirmed._replace(confirmed=confirmed), now
        control.keeps_lead = confirmed and control.leading
        having = self._confirmed_by & control.connected if confirmed else set()
        self._send(self._verdict, control.connected - having, final=True)
        if having:
            control.send(Confirmed(*_id_of(self._verdict)), to=having)

    def _send(self, verdict: VerdictRecord, to: Set[int], *, final: bool) -> None:
        """As leader, send the verdict, now and to all that connect later."""
        self._parts = verdict_parts(to_fields(verdict), final=final) if self.control.leading else []
        for part in self._parts:
            self.control.send(part, to=to)

    def _record_verdict(self, node: "NodeParts", verdict: VerdictRecord) -> None:
        """Record the verdict; once that is done, or cannot be done, all is over."""
        try:
            result = self.work.ask("verdict", lambda: node.spool.write_verdict(verdict))
        except OSError as error:  # a full disk, or one that stalls: another host's copy is enough
            self.work.event(node.spool, "verdict_not_kept", error=str(error))
            self.finished = True
        else:
            self.finished = result is not None

    def _take_confirmation(self, member: int, message: Union[Confirmation, Confirmed]) -> None:
        """Count another node's confirmation of our verdict, or take the leader's word that a majority gave theirs."""
        if self._confirmed is None or tuple(message) != _id_of(self._confirmed):
            return
        if isinstance(message, Confirmation):
            self._confirmed_by.add(member)
        elif not self._is_decided:
            self._verdict = self._confirmed._replace(confirmed=True)

    # As follower

    def _gather(self, part: VerdictPart) -> None:
        """Collect a part of the leader's verdict; the first part of another verdict starts over."""
        if part.number == 0 or len(self._received_parts) != part.parts:
            self._received_parts = [None] * part.parts
        if part.number < part.parts:
            self._received_parts[part.number] = part

    def _take_verdict(self, node: "NodeParts") -> None:
        """Decode the leader's verdict and confirm it, unless this node has confirmed another; a damaged one is dropped.

        A final one is recorded, whatever this node has confirmed.
        """
        parts, self._received_parts = [part for part in self._received_parts if part], []
        try:
            verdict = parse_record("".join(part.text for part in parts).encode(), read_verdict)
        except ValueError:
            return
        if verdict.attempt < node.plan.attempt:
            return
        if all(part.final for part in parts):
            self._verdict = verdict
        elif self._confirmed is None or _id_of(self._confirmed) == _id_of(verdict):
            self._confirmed = verdict
            self.control.send(Confirmation(*_id_of(verdict)))


def _id_of(verdict: VerdictRecord) -> Tuple[int, int]:
    return verdict.member, verdict.written


def _order_of(node: "NodeParts") -> Optional[EndOrder]:
    """Return the order to end the run or the attempt: the one that this node was given, or that its leader reports."""
    return node.shutdown.given or node.membership.order


def _own_end(node: "NodeParts") -> NodeEnd:
    """How this node's part ended."""
    spool, plan = node.spool, node.plan
    ended = spool.exit_record()
    part = EndedPart(plan.host, spool.attempt, ended, evidence(spool), plan.clock_offset_ns, plan.clock_error_ns)
    return fit(end_of(part, member=node.member, workdir=plan.workdir))
