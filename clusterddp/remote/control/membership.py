"""Keep what one node knows of all nodes of its run, and replicate it between the nodes.

Each node sends its status to the leader, and the leader sends everyone what is new. So the next leader, and any host
that is asked for the run's status, knows it too. The present state (statuses, the order that ends the attempt or the
run, the decision on what follows) is sent anew on every connection. All of it but the leader's table of statuses is
also repeated regularly, so a lost message does no harm for long. Times are kept by this host's own clocks; hosts
exchange ages only.
"""

import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..system.clock import boot_clock
from .control_events import Event, Lost, MemberJoined, NodeDone
from .leader import Control
from .messages import (
    AttemptDecision,
    EndMessage,
    EndOrder,
    NodeState,
    NodeStatus,
    NodeStatusRow,
    StatusMessage,
    StatusTable,
    TakingPart,
    status_tables,
)
from .messages import Joined as Newcomer

REPEAT_INTERVAL = 5.0  # seconds after which the leader, and each node to it, repeats order and decision
START_TIMEOUT = 30.0  # seconds that a node gets at least for its first message
TCP_ONLY_MARGIN = 2.5  # seconds more until a node with heartbeats over TCP alone is fenced, and until it is lost
GATHER_TIME = 0.1  # seconds in which the leader gathers new statuses and nodes, to send both the same tables
MAX_NEW = 128  # nodes that get the whole table at once: a thousand would hold the loop up, so the others wait
SAVE_INTERVAL = 1.0  # seconds between two writes of what is known, unless a node is excluded
ENDED_STATES = (NodeState.ENDING, NodeState.ENDED)


class Membership:
    """What one node knows of all nodes of the run.

    ``names`` are the hosts' names, by member index. ``add_host`` is called for a host that joins after the start, when
    its member index is the next free one, with whether it takes part in the present attempt. ``save_peers`` saves what
    is known of the other nodes for status requests (``peers.json``).
    """

    def __init__(
        self,
        control: Control,
        names: List[str],
        add_host: Callable[[Newcomer, bool], None],
        save_peers: Callable[[Dict[str, Any]], None],
    ) -> None:
        self.control, self.names, self.member = control, names, control.member
        self.own_name = names[self.member]  # this node's host
        self.add_host, self.save_peers = add_host, save_peers
        self.fewest = 0  # nodes that an elastic job needs
        self.statuses: Dict[int, NodeStatus] = {}  # member index → its last status
        self.reported_at: Dict[int, float] = {}  # member index → when that status was sent, by the boot clock
        self.missing: Dict[int, float] = {}  # member index → since when it is out of reach
        self.met: Set[int] = set()  # nodes that have been connected to this one
        self.left: Set[int] = set()  # nodes that have finished and left the run
        self.concluded: Set[int] = set()  # nodes for which the run is over: they have sent us how their part ended
        self.ended: Set[int] = set()  # nodes whose supervisor and processes are proved to be gone
        self.operator_seen = boot_clock()  # when an operator was last in contact with any node
        self.decision: Optional[AttemptDecision] = None  # the newest decision on what follows an attempt
        self.order: Optional[EndOrder] = None  # what ends the attempt or the run; sent to later connections too
        self.participants: Optional[TakingPart] = None  # the nodes that take part in the attempt, by its leader
        self.epoch = 0  # the newest known epoch, of any attempt
        self.voters = len(names)  # as in ``TakingPart``: hosts that joined a leader without a majority make no majority
        self.replication_port = 0  # the port where new nodes get the replicated paths from this one, or 0
        self.replaced = False  # whether another host has joined as this member: both were invited as the next one
        self.undelivered = False  # whether our last status has reached no leader yet
        self._unsent: Set[int] = set()  # nodes whose newest status the others have not received yet
        self._without_table: Dict[int, None] = {}  # nodes that have connected, and were not sent the whole table yet
        self._sent_at = self._saved_at = 0.0
        self._unsaved = False  # whether something may have changed since the last ``save``
        self._saved_excluded: Tuple[int, ...] = ()
        self._attempt_began = boot_clock()

    def begin(
        self, attempt: int, members: Sequence[int], *, limit: float, by_majority: bool = False, store: int = 0
    ) -> None:
        """Switch to a new attempt, whose nodes have the member indexes ``members``.

        A node out of reach for ``limit`` seconds is excluded from the attempt; with ``by_majority`` only a leader with
        a majority may do that, or let a host join. ``store`` is the member index of the rendezvous store's host.
        """
        self.attempt, self.members, self.order, self.participants = attempt, members, None, None
        self.limit, self.store = limit, store
        self.by_majority = self.control.joins_by_majority = by_majority
        self._attempt_began = boot_clock()

    def begin_part(self) -> None:
        """Count the time that other nodes have to begin the attempt from now, when this node's part begins."""
        self._attempt_began = boot_clock()

    # What is known

    def ended_statuses(self, attempt: int) -> Dict[int, NodeStatus]:
        """Return the status, by member index, of each node whose part of an attempt has ended or is ending."""
        of_attempt = {p: status for p, status in self.statuses.items() if status.attempt == attempt}
        return {p: status for p, status in of_attempt.items() if status.state in ENDED_STATES}

    def beyond(self, attempt: int) -> Set[int]:
        """Return the nodes that are in a later attempt, or have left the run."""
        return self.left | {p for p, status in self.statuses.items() if status.attempt > attempt}

    def lost(self, now: float, limit: float) -> List[int]:
        """Return nodes certainly out of reach for more than ``limit`` seconds, or whose part has ended permanently.

        A node that left the run before it began this attempt is one of them: it was chosen, and will not come.

        The time counts from the last moment when another leader can have told them of a majority, if that is later than
        their last message to us (control/contact.py).
        """
        floor = self.control.contact.elsewhere
        late = {p for p, since in self.missing.items() if now - max(since, floor) > self._lost_timeout(p, limit)}
        gone = {p for p in self.left if p in self.statuses and self.statuses[p].attempt < self.attempt}
        return sorted(late | self.ended | gone)

    def _lost_timeout(self, member: int, limit: float) -> float:
        """Seconds out of reach after which a node is lost: ``limit``, or more if it is slow or never connected."""
        status = self.statuses.get(member)
        if status:
            return limit + TCP_ONLY_MARGIN if status.slow else limit
        # Never connected: it may still be on its way. Connected: without contact to a majority it starts no agent.
        return limit + TCP_ONLY_MARGIN if member in self.met else max(limit, START_TIMEOUT)

    def behind(self, now: float, limit: float) -> List[int]:
        """Return connected nodes that have not reported this attempt ``limit`` seconds after its begin."""
        if now - self._attempt_began <= limit:
            return []
        followers = self.control.connected - {self.member}
        return sorted(p for p in followers if p not in self.statuses or self.statuses[p].attempt < self.attempt)

    def others_at_work(self) -> bool:
        """Whether at least one other node has not left the run."""
        return len(self.left - {self.member}) < len(self.names) - 1

    def over_without_us(self, limit: float) -> bool:
        """Whether all other nodes have left the run or are lost, and at least one has left it with the verdict."""
        lost = self.left.union(self.lost(boot_clock(), limit)) - {self.member}
        return bool(self.left - {self.member}) and len(lost) == len(self.names) - 1

    def has_majority_of(self, members: Set[int]) -> bool:
        """Return whether these members are more than half of the nodes whose confirmation a verdict needs."""
        return 2 * sum(member < self.voters for member in members) > self.voters

    @property
    def may_decide(self) -> bool:
        """Whether this node may decide for the run: it leads, and is in proved contact with a majority of the nodes."""
        return self.control.leading and self.control.majority and self.control.in_contact

    @property
    def operator_age(self) -> float:
        """Seconds since an operator was last in contact with the run."""
        return max(0.0, boot_clock() - self.operator_seen)

    # What this node sends

    def publish(self, status: NodeStatus) -> None:
        """Record this node's new status and send it to the leader, now or once it is connected."""
        self._record_status(self.member, status._replace(carry=self.replication_port))
        self.undelivered = True
        self._send_status()

    def pass_on(self, order: EndOrder) -> None:
        """Send an order towards all nodes: the leader sends it to everyone, the others to the leader."""
        if self.order is None or self.order.attempt is not None:  # an order that ends the run is never replaced
            self.order = order
        self.control.send(order)

    def decide(self, decision: AttemptDecision) -> None:
        """Record and send, as the leader, the decision on what follows the attempt."""
        self.decision = decision
        self.control.send(decision)

    def turn(self, now: float) -> None:
        """Update which nodes are missing, and send the leader's table or our own status when due."""
        if self.control.leading:
            self.undelivered = False
            self._update_missing(now)
            changed = self._decide_participants(now)
            gathered = self._unsent or self._without_table
            if changed or now - self._sent_at > (GATHER_TIME if gathered else REPEAT_INTERVAL):
                self._send_all(now)
        else:
            if self.control.settled:
                self.missing.clear()  # the leader keeps account
            self._unsent.clear()
            self._without_table.clear()
            if now - self._sent_at > REPEAT_INTERVAL:
                self._sent_at = now
                self._send_status()  # again, in case the leader missed it
                for message in (self.order, self.decision):
                    if message:
                        self.control.send(message)
        self._save_if_due(now)

    def leave(self) -> None:
        """Send the last status, that this node leaves the run, and close all connections."""
        status = (self.statuses.get(self.member) or NodeStatus(NodeState.ENDED, self.attempt))._replace(left=True)
        if self.control.leading:
            self._record_status(self.member, status)
            for part in self._table({self.member}):
                self.control.send(part)
        else:
            self.control.send(StatusMessage(status, self.operator_age, self.epoch))
        if self._unsaved:
            self._save(boot_clock())
        self.control.close()

    # What it receives

    def handle_event(self, event: Event) -> None:
        """Process an event of run control other than an order, which the supervisor handles itself."""
        if isinstance(event, MemberJoined):
            self.met.add(event.member)
            self.missing.pop(event.member, None)
            self._send_state(event.member)
        elif isinstance(event, Lost):
            self.met.add(event.member)
            if event.member < len(self.names):  # a host that has joined has no name here until its first status comes
                self.missing[event.member] = event.received_at
            self._without_table.pop(event.member, None)
        elif isinstance(event, NodeDone):
            self.ended.add(event.member)
        elif isinstance(event.message, StatusMessage):
            if not self._is_another(event.member, event.message.status):
                self._receive(event.member, event.message.status)
            self.operator_seen = max(self.operator_seen, boot_clock() - event.message.operator_age)
            self.epoch = max(self.epoch, event.message.epoch)
        elif isinstance(event.message, StatusTable):
            for row in event.message.rows:
                if row.member != self.member:  # our own status is newer
                    self._receive(row.member, row.status, row.age)
                elif self._is_another(row.member, row.status):
                    self.replaced = True
            self.operator_seen = max(self.operator_seen, boot_clock() - event.message.operator_age)
            self._take_participants(event.message.participants)
            self._unsaved = True
        elif isinstance(event.message, EndMessage):
            self.concluded.add(event.member)
        elif isinstance(event.message, AttemptDecision):
            self._take_decision(event.message)

    def _save_if_due(self, now: float) -> None:
        """Save once in ``SAVE_INTERVAL``; at once which node is excluded, for its peers' workers get a short grace."""
        pause = SAVE_INTERVAL if self.excluded == self._saved_excluded else GATHER_TIME
        if self._unsaved and now - self._saved_at >= pause:
            self._save(now)

    def _save(self, now: float) -> None:
        """Save what is known of all nodes, so that this host alone can answer a status request."""
        self._saved_at, self._unsaved, self._saved_excluded = now, False, self.excluded
        nodes = {
            self.names[member]: dict(status.to_json(), age=round(now - self.reported_at[member], 3))
            for member, status in self.statuses.items()
        }
        known: Dict[str, Any] = {"time": time.time_ns(), "nodes": nodes}
        known["missing"] = [self.names[member] for member in self.missing]
        known["excluded"] = [self.names[member] for member in self.excluded if member < len(self.names)]
        known["leader"] = self.names[self.control.leader] if self.control.settled else None
        self.save_peers(dict(known, addresses=list(self.control.addresses)))

    def _is_another(self, member: int, status: NodeStatus) -> bool:
        """Return whether a status comes from another host than the one known with this member index."""
        return status.joined is not None and member < len(self.names) and self.names[member] != status.joined.host

    def _receive(self, member: int, status: NodeStatus, age: float = 0.0) -> None:
        """Record a node's status; add the node first if it is a host that joined after the start."""
        if status.joined and member == len(self.names):
            self.names.append(status.joined.host)
            self.control.addresses.append((status.joined.address, status.joined.control))
            self.add_host(status.joined, status.attempt == self.attempt and status.state is not NodeState.STANDBY)
        if member < len(self.names):
            self._record_status(member, status, age)

    def _record_status(self, member: int, status: NodeStatus, age: float = 0.0) -> None:
        """Record a status reported ``age`` seconds ago, unless a newer one is known."""
        reported_at = boot_clock() - age
        if reported_at >= self.reported_at.get(member, 0.0):
            if status != self.statuses.get(member):
                self._unsent.add(member)
            self.statuses[member], self.reported_at[member] = status, reported_at
            if status.left:
                self.left.add(member)

    def _take_decision(self, decision: AttemptDecision) -> None:
        """Keep the newer decision; of two for the same attempt, the leader's, which has the majority."""
        known = self.decision.attempt if self.decision else 0
        if decision.attempt > known or (decision.attempt == known and not self.control.leading):
            self.decision = decision
        if self.control.leading and self.decision and decision.attempt > known:
            self.control.send(self.decision)

    # Sending

    def _send_status(self) -> None:
        """Send this node's status to its leader; as leader there is nothing to send."""
        status = self.statuses.get(self.member)
        if status and not self.control.leading:
            self.control.send(StatusMessage(status, self.operator_age, self.epoch))
        self.undelivered = self.undelivered and not (self.control.leading or self.control.connected)

    def _send_state(self, member: int) -> None:
        """Send the present state to a node that has just connected; as leader, the table soon (``_send_all``)."""
        self._without_table[member] = None
        self._send_status()
        for message in (self.order, self.decision):
            if message:
                self.control.send(message, to=(member,))

    def _send_all(self, now: float) -> None:
        """Send all followers the new statuses or, without any, repeat the participants, order and decision.

        Those that have just connected get all statuses.
        """
        new = [member for member, _ in zip(self._without_table, range(MAX_NEW))]
        for member in new:
            del self._without_table[member]  # before it is sent: a connection that ends then is taken off there too
        for part in self._table(set(self.statuses)) if new else ():
            self.control.send(part, to=new)
        known = self.control.connected.difference(new) if new else None
        parts = self._table(self._unsent)
        for message in parts if self._unsent else (*parts, self.order, self.decision):
            if message:
                self.control.send(message, to=known)
        self._sent_at = now
        self._unsent.clear()
        self._unsaved = True

    def _table(self, members: Set[int]) -> List[StatusTable]:
        """These members' statuses, in as many tables as frames require."""
        now = boot_clock()
        rows = [
            NodeStatusRow(member, now - self.reported_at[member], self.statuses[member]) for member in sorted(members)
        ]
        return status_tables(rows, self.operator_age, self.participants)

    # Who takes part

    @property
    def excluded(self) -> Tuple[int, ...]:
        """The attempt's nodes that no longer take part because they are lost or have failed."""
        part = self.participants
        return tuple(sorted(set(self.members).difference(part.members, part.ended))) if part else ()

    def _decide_participants(self, now: float) -> bool:
        """Decide, as the leader, which nodes take part in the attempt; return whether that has changed.

        A leader without a majority changes nothing where other nodes may begin another attempt, nor where it misses the
        store's host, because the nodes that reach the store continue, or so many that too few are left to go on.
        """
        if self.by_majority and not self.may_decide:
            return False
        ended_or_ending = self.ended_statuses(self.attempt)
        excluded = {p for p, status in ended_or_ending.items() if status.code}.union(self.lost(now, self.limit))
        included = [member for member in self.members if member not in excluded]
        if not self.control.majority and (self.store in excluded or len(included) < self.fewest):
            return False
        ended = tuple(member for member in included if member in ended_or_ending)
        members = tuple(member for member in included if member not in ended_or_ending)
        if self.has_majority_of({self.member, *self.control.connected}):
            self.voters = len(self.names)
        part = TakingPart(self.attempt, self.epoch, members, ended, self.voters)
        if part == self.participants:
            return False
        self.epoch += 1
        self.participants = part._replace(epoch=self.epoch)
        return True

    def _take_participants(self, part: Optional[TakingPart]) -> None:
        """Take the participants that the leader sent; where its epoch is older than ours, report ours to it."""
        if part is None:
            return
        if part.epoch < self.epoch:
            self._send_status()
            return
        self.epoch, self.voters = part.epoch, part.voters
        if part.attempt == self.attempt:
            self.participants = part

    def _update_missing(self, now: float) -> None:
        """Update which nodes are missing; only a leader, with or without a majority, keeps account of them."""
        reachable = {self.member, *self.control.connected}
        for member in range(len(self.names)):
            if member in reachable or member in self.left:
                self.missing.pop(member, None)
            else:
                self.missing.setdefault(member, now)
        self.control.to_ask = set(self.missing) - self.ended

    def note_operator_contact(self, renewed: float) -> None:
        """Record when the operator who is attached to this host was last in contact (boot clock)."""
        if renewed > self.operator_seen:
            self.operator_seen = renewed
            self._send_status()
            self._unsent.add(self.member)
