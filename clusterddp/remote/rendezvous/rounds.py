"""Agree on the rounds of a run: which nodes take part in each start of the workers, and where the workers connect.

All agents are clients of one store; this module defines how they use it. Keys, all of one attempt:

    round        number of the round that forms or runs, from 0; a node raises it to have the workers started again
    R/came       how many nodes have joined round R
    R/came/I     the I-th node that joined, from 1: JSON [node, address, port, epoch]
    R/world      the decision: JSON {nodes, address, port, epoch}, or {error}, or {over}; made once
    R/ready      how many nodes of the world have read the decision
    R/go         "go" once all of them have, or "left" once one has left the round before; set once, obeyed by all

Run control, not this module, decides which nodes may take part (rendezvous/participants.py), with an epoch that grows
with each change. The first node that joins decides the round, by the newest epoch that any node has brought. A node
whose supervisor has stopped knows an old epoch and so decides nothing. A node that was left out by a newer epoch than
its own waits until it learns of one that includes it; it never makes the others start again. A first node that does not
decide for ``RoundSpec.silence_timeout`` seconds is passed over. Clocks of different hosts are never compared.
"""

import json
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple

from .participants import EVERYONE, Participants

MAX_PASSED = 3  # silent nodes that a node passes over: one that may still decide keeps polling the store


class TCPStoreLike(Protocol):
    """The methods of torch's TCPStore that are used here."""

    def get(self, key: str, /) -> bytes: ...  # noqa: D102
    def set(self, key: str, value: str, /) -> object: ...  # noqa: D102
    def add(self, key: str, amount: int, /) -> int: ...  # noqa: D102
    def check(self, keys: List[str], /) -> bool: ...  # noqa: D102
    def multi_get(self, keys: List[str], /) -> List[bytes]: ...  # noqa: D102
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...  # noqa: D102


class NoRound(Exception):
    """No round can begin; the message is the reason."""


class JobOver(Exception):
    """The job has ended successfully before this node took part in it."""


class RoundSpec(NamedTuple):
    """What one node knows of the job."""

    node: int  # this node's number, its position in the inventory order
    names: Tuple[str, ...]  # the hosts of the plan, in that order
    min_nodes: int  # the number of nodes that a round needs
    max_nodes: int  # the number of nodes that may take part
    join_timeout: float  # seconds to wait for the other nodes
    # seconds after the last arrival that an elastic job's first round waits for the plan's other nodes
    first_arrival_timeout: float = 20.0
    # the same in later rounds, where an agent may need torchrun's 30 s to end its workers
    later_arrival_timeout: float = 45.0
    # seconds after a node's exclusion until nodes whose workers have ended stop waiting for its workers
    absence_timeout: float = 0.0

    @property
    def elastic(self) -> bool:
        """Whether the job may go on with fewer nodes."""
        return self.min_nodes < self.max_nodes

    @property
    def poll(self) -> float:
        """Seconds between two polls of the store; longer with many nodes, to limit its load."""
        return max(0.02, self.max_nodes / 4000)

    @property
    def pause(self) -> float:
        """Seconds between two polls while the round has no room for this node."""
        return max(1.0, self.max_nodes / 250)

    @property
    def silence_timeout(self) -> float:
        """Seconds that a node that joined a round may take for its next step."""
        return 8 * self.pause

    def name(self, node: int) -> str:
        """Return the name of a node's host, or a substitute for a node that joined later."""
        return self.names[node] if node < len(self.names) else "node %d" % node


class World(NamedTuple):
    """A decided round: its nodes in rank order, where rank 0 listens, and the epoch of the decision."""

    nodes: Tuple[int, ...]
    address: str
    port: int
    epoch: int = 0


class Rounds:
    """One node's part in the rounds of a job.

    ``store_address`` returns the address and a free port for the workers' store, in case this node holds rank 0.
    ``tell`` takes a line that the user should read. ``participants`` returns the nodes that take part, as decided by
    run control. ``now`` and ``sleep`` are the clock.
    """

    def __init__(
        self,
        store: TCPStoreLike,
        job: RoundSpec,
        store_address: Callable[[], Tuple[str, int]],
        *,
        tell: Callable[[str], object],
        participants: Callable[[], Participants] = lambda: EVERYONE,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store, self.job, self.store_address = store, job, store_address
        self.tell, self.now, self.sleep = tell, now, sleep
        self.read_participants = participants
        self.number = -1  # the number of the round that this node takes part in
        self.world: Optional[World] = None
        self.next_poll_at = 0.0
        self.lost_since: Optional[float] = None  # since when a node of this round has been excluded

    @property
    def participants(self) -> Participants:
        """The nodes that take part; all in a job of a fixed size, which run control ends as a whole."""
        return self.read_participants() if self.job.elastic else EVERYONE

    def next(self) -> World:
        """Take part in the next round; return when every node of it has read the decision.

        Raises NoRound if too few nodes joined or are left, or this one takes no part; JobOver if those that took part
        have ended and this node is new.
        """
        deadline = self.now() + self.job.join_timeout
        self.wait_while(lambda: self.participants.excludes(self.job.node), deadline)
        number = int(self.store.compare_set("round", "", "0"))
        if number == self.number:
            number = self.raise_round(number)
        while True:
            world = self.join(number, deadline)
            if self.job.node in world.nodes:
                if self.all_ready(number, world, deadline):
                    self.number, self.world = number, world
                    self.lost_since = None
                    return world
            elif self.is_left_out(number, world):
                self.wait_while(lambda: self.is_left_out(number, world), deadline)  # noqa: B023 - called at once
                number, deadline = self.newest_round(), self.now() + self.job.join_timeout
                continue
            elif len(world.nodes) >= self.job.max_nodes:  # no room for us now
                self.sleep(self.job.pause)
                # Whoever waits for room for hours has the same time for the next round as all others.
                number, deadline = self.newest_round(), self.now() + self.job.join_timeout
                continue
            number = self.raise_round(number)

    def wait_while(self, excluded: Callable[[], bool], deadline: float) -> None:
        """Wait while run control excludes this node; raises NoRound if the node is still excluded at the deadline."""
        while excluded():
            if self.now() > deadline:
                raise NoRound("%s takes no part any more, by run control" % self.job.name(self.job.node))
            self.sleep(self.job.poll)

    def is_left_out(self, number: int, world: World) -> bool:
        """Whether the newest round left this node out and run control has not included it again, as far as we know."""
        participants = self.participants
        return (
            participants.excludes(self.job.node) or participants.epoch < world.epoch
        ) and self.newest_round() == number

    def newest_round(self) -> int:
        """Return the number of the round that forms or runs."""
        return int(self.store.get("round"))

    def superseded(self) -> bool:
        """Whether the workers must be ended: a newer round was opened, or a node was excluded or told to end."""
        now = self.now()
        if self.world is None or now < self.next_poll_at:
            return False
        self.next_poll_at = now + self.job.poll
        if self.participants.excludes(self.job.node) or self.newest_round() > self.number:
            return True
        lost, fenced = self.excluded_nodes(self.world), self.participants.fenced.intersection(self.world.nodes)
        if lost or fenced:
            what = "gone, by run control; the workers start again without it" if lost else "cut off; all workers end"
            self.tell("%s: %s" % (self.names_of(lost or fenced), what))
            self.raise_round(self.number)
        return bool(lost or fenced)

    def obstacle(self) -> str:
        """Return why this round's workers cannot be started, while its nodes exchange their ranks; empty if they can.

        A newer round is no obstacle: the exchange ends, and then ``superseded`` reports it.
        """
        lost = self.excluded_nodes(self.world) if self.world else set()
        return "%s: gone, by run control, before the workers were started" % self.names_of(lost) if lost else ""

    def can_stop_waiting(self) -> bool:
        """Whether this node, whose workers have ended, can stop waiting because not all others will end in this round.

        It can once run control has excluded a node for ``RoundSpec.absence_timeout`` s, or the others begin another
        round. In a job of a fixed size it never can, because run control ends the whole job.
        """
        if self.world is None or not self.job.elastic:
            return False
        lost, now = self.excluded_nodes(self.world), self.now()
        if not lost:
            self.lost_since = None
        elif self.lost_since is None:
            self.lost_since = now
        if self.lost_since is not None and now - self.lost_since >= self.job.absence_timeout:
            self.tell("%s: gone, by run control; nobody waits for the end of its workers" % self.names_of(lost))
            return True
        return self.newest_round() > self.number

    def excluded_nodes(self, world: World) -> Set[int]:
        """Return the nodes of a world that run control has excluded since the decision, as far as this node knows.

        The result is empty if this node knows only an older epoch than the decision's: in that epoch a node that has
        just joined would look excluded.
        """
        known = self.participants
        return set() if known.epoch < world.epoch else {node for node in world.nodes if known.excludes(node)}

    def raise_round(self, number: int) -> int:
        """Open the round after ``number`` unless another node has; return the newest round's number."""
        return int(self.store.compare_set("round", str(number), str(number + 1)))

    def join(self, number: int, deadline: float) -> World:
        """Join a round unless it is already decided, and return the decision, which may leave this node out.

        Raises NoRound if the round cannot begin, or was never decided; JobOver if no round is needed any more.
        """
        decision = "%d/world" % number
        index = 0
        if not self.store.check([decision]):
            address, port = self.store_address()
            index = self.store.add("%d/came" % number, 1)
            record = [self.job.node, address, port, self.participants.epoch]
            self.store.set("%d/came/%d" % (number, index), json.dumps(record))
        forming = Forming(self, number, index)
        while not self.store.check([decision]):
            if forming.is_deciding() and forming.decide(deadline):
                break
            if self.now() > deadline + 2 * self.job.silence_timeout:  # the node that should decide does not
                raise NoRound("round %d was never decided" % number)
            self.sleep(self.job.poll)
        decided = json.loads(self.store.get(decision))
        if "over" in decided:
            raise JobOver
        if "error" in decided:
            raise NoRound(decided["error"])
        return World(tuple(decided["nodes"]), decided["address"], decided["port"], decided["epoch"])

    def all_ready(self, number: int, world: World, deadline: float) -> bool:
        """Wait until each node of the world has read the decision; return whether the round begins, the same on all.

        It does not if a node is lost or a new round opens before. Raises NoRound after the deadline.
        """
        go = "%d/go" % number
        last = self.store.add("%d/ready" % number, 1) == len(world.nodes)
        while not self.store.check([go]):
            if self.newest_round() > number or self.excluded_nodes(world):
                return self.store.compare_set(go, "", "left") == b"go"
            if last:
                return self.store.compare_set(go, "", "go") == b"go"
            if self.now() > deadline and self.store.compare_set(go, "", "left") != b"go":
                raise NoRound("round %d was decided, but not all of its nodes came back to it" % number)
            self.sleep(self.job.poll)
        return self.store.get(go) == b"go"  # a node that left now would keep the others waiting for its ranks

    def names_of(self, nodes: Iterable[int]) -> str:
        """Return the names of the nodes' hosts, separated by commas."""
        return ", ".join(self.job.name(node) for node in sorted(nodes))


class Forming:
    """A round that is not decided yet, as the ``index``-th node that joined it sees it."""

    def __init__(self, rounds: Rounds, number: int, index: int) -> None:
        self.rounds, self.store, self.job = rounds, rounds.store, rounds.job
        self.number, self.index = number, index
        self.decider = 1  # index of the node that should decide, as far as this one knows
        self.decider_since = rounds.now()  # when ``decider`` last changed
        self.passed_over = 0  # number of silent nodes passed over
        self.addresses: Dict[int, Tuple[str, int]] = {}  # node → where the workers' store would listen
        self.records: Dict[int, List[Any]] = {}  # index → its record, which never changes
        self.read_indexes: Set[int] = set()
        self.epoch = 0  # the newest epoch that a node has brought
        self.last_joined_at = rounds.now()  # when the last node joined
        self.expected = self.expected_nodes()

    def expected_nodes(self) -> List[int]:
        """Return the nodes expected in this round: in round 0 the plan's, later those of the previous round."""
        if self.number == 0:
            return list(range(len(self.job.names)))
        nodes: List[int] = json.loads(self.store.get("%d/world" % (self.number - 1)))["nodes"]
        return nodes

    def is_deciding(self) -> bool:
        """Whether this node decides because all nodes that joined before it may not decide or are silent."""
        while self.decider < self.index:
            record, now = self.record(self.decider), self.rounds.now()
            silent = now - self.decider_since > self.job.silence_timeout and self.passed_over < MAX_PASSED
            if not silent and (record is None or self.may_decide(record)):
                return False
            self.passed_over += silent
            self.decider, self.decider_since = self.decider + 1, now
        return self.decider == self.index

    def may_decide(self, record: List[Any]) -> bool:
        """Whether the node of a record takes part and has brought an epoch at least as new as ours."""
        participants = self.rounds.participants
        return not participants.excludes(record[0]) and record[3] >= participants.epoch

    def record(self, index: int) -> Optional[List[Any]]:
        """Return the record of the ``index``-th node that joined; None while it has not written it."""
        key = self.record_key(index)
        if index not in self.records and self.store.check([key]):
            self.records[index] = json.loads(self.store.get(key))
        return self.records.get(index)

    def record_key(self, index: int) -> str:
        """Return the key of the ``index``-th node's record."""
        return "%d/came/%d" % (self.number, index)

    def read_records(self) -> None:
        """Read the records of nodes that have joined since the last call, all at once if all have been written."""
        came = self.store.add("%d/came" % self.number, 0)
        new = [index for index in range(1, came + 1) if index not in self.read_indexes]
        keys = [self.record_key(index) for index in new]
        if len(new) > 1 and self.store.check(keys):
            self.records.update(zip(new, map(json.loads, self.store.multi_get(keys))))
        for index in new:
            record = self.record(index)
            if record:
                self.read_indexes.add(index)
                self.addresses[record[0]] = (record[1], record[2])
                self.epoch = max(self.epoch, record[3])
                self.last_joined_at = self.rounds.now()

    def decide(self, deadline: float) -> bool:
        """Decide the round if that is possible now; return True once it is decided."""
        self.read_records()
        participants = self.rounds.participants
        if participants.epoch < self.epoch and self.job.elastic:  # another node knows more and decides
            return False
        missing = [node for node in self.expected if node not in self.addresses and not participants.has_ended(node)]
        lost = {node for node in [*missing, *self.addresses] if participants.excludes(node)}
        present = sorted(node for node in self.addresses if node not in lost)[: self.job.max_nodes]
        missing = [node for node in missing if node not in lost]
        if self.is_over(present, missing):
            self.store.compare_set("%d/world" % self.number, "", json.dumps({"over": True}))
            return True
        error = self.why_impossible(present, missing, lost, deadline)
        if not error and not self.is_complete(present, missing):
            return False
        self.publish(present, error, participants.epoch)
        return True

    def is_over(self, present: Sequence[int], missing: Sequence[int]) -> bool:
        """Whether the nodes of the previous round have ended or are lost, and only new nodes are present.

        Without them the new nodes would run a script that has succeeded once more, or wait for others in vain.
        """
        participants = self.rounds.participants
        took_part = self.number > 0 and any(participants.has_ended(node) for node in self.expected)
        return took_part and not missing and not set(present).intersection(self.expected)

    def is_complete(self, present: Sequence[int], missing: Sequence[int]) -> bool:
        """Whether the round has all expected nodes, or enough nodes and waited for the others in vain."""
        if len(present) == self.job.max_nodes or (not missing and len(present) >= self.job.min_nodes):
            return True
        timeout = self.job.later_arrival_timeout if self.number else self.job.first_arrival_timeout
        waited = self.rounds.now() - self.last_joined_at
        return self.job.elastic and len(present) >= self.job.min_nodes and waited > timeout

    def why_impossible(self, present: Sequence[int], missing: Sequence[int], lost: Set[int], deadline: float) -> str:
        """Return why this round cannot begin; empty while it can."""
        if lost and len(present) + len(missing) < self.job.min_nodes:
            return "only %d nodes are left, and %d are needed: %s gone" % (
                len(present), self.job.min_nodes, self.rounds.names_of(lost)
            )  # fmt: skip
        if self.rounds.now() > deadline and len(present) < self.job.min_nodes:
            late = self.rounds.names_of(missing) or "others"
            return "%s did not come to round %d within %g s" % (late, self.number, self.job.join_timeout)
        return ""

    def publish(self, present: Sequence[int], error: str, epoch: int) -> None:
        """Write the decision to the store, unless another node has written one before."""
        address, port = ("", 0) if error else self.addresses[present[0]]
        if not error and not port:
            error = "%s has no free port for MASTER_PORT in its range" % self.rounds.names_of(present[:1])
        world = {"nodes": list(present), "address": address, "port": port, "epoch": epoch}
        decision = {"error": error} if error else world
        self.store.compare_set("%d/world" % self.number, "", json.dumps(decision))
        without = sorted(set(self.expected) - set(present))
        if not error and without:
            self.rounds.tell("round %d goes on without %s" % (self.number, self.rounds.names_of(without)))
