"""The rounds of a run: who takes part in each start of the workers, and where its workers meet.

All agents are clients of one store; this is the order in which they use it. Keys, all of one attempt:

    round        number of the round that forms or runs, from 0; whoever wants the workers started again raises it
    R/came       how many have come to round R
    R/came/I     who came as the I-th, from 1: JSON [node, address, port, epoch]
    R/world      the decision: JSON {nodes, address, port, epoch}, or {error}; made once
    R/ready      how many of the world have seen it
    R/go         all of them have

Who may take part is not judged here: run control says it (rendezvous/participants.py), with an epoch that grows with
each change. The first node to come decides a round, by the newest epoch that any node has come with: a node whose
supervisor has stopped knows an old one, and decides nothing. A node that a newer epoch than its own has left out waits
until it hears of one that includes it; it never starts the others again. A first node that does not decide for
``RoundSpec.silence`` seconds is not waited for. No clock of one host is ever compared with another's.
"""

import json
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple

from .participants import EVERYONE, Participants

MOST_PASSED = 3  # nodes that came before and do not decide, beyond those excluded: each who decides polls the store


class TCPStoreLike(Protocol):
    """What is used of torch's TCPStore."""

    def get(self, key: str, /) -> bytes: ...  # noqa: D102
    def set(self, key: str, value: str, /) -> object: ...  # noqa: D102
    def add(self, key: str, amount: int, /) -> int: ...  # noqa: D102
    def check(self, keys: List[str], /) -> bool: ...  # noqa: D102
    def multi_get(self, keys: List[str], /) -> List[bytes]: ...  # noqa: D102
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...  # noqa: D102


class NoRound(Exception):
    """No round can come about; says why."""


class RoundSpec(NamedTuple):
    """One node's view of the job.

    Attributes:
        node: This node's place in the inventory order.
        names: The hosts of the plan, in that order.
        least: With fewer nodes nothing is started.
        most: As many may take part.
        join_timeout: Seconds to wait for the others.
        last_call: Seconds after the last arrival that an elastic start waits for the plan's other nodes.
        slow: The same in later rounds: an agent that lives may need torchrun's 30 s to end its workers.
        absence: Seconds that a node may be excluded until those whose workers have ended stop waiting for its workers.
    """

    node: int
    names: Tuple[str, ...]
    least: int
    most: int
    join_timeout: float
    last_call: float = 20.0
    slow: float = 45.0
    absence: float = 0.0

    @property
    def elastic(self) -> bool:
        """Whether the job may go on with fewer nodes."""
        return self.least < self.most

    @property
    def poll(self) -> float:
        """Seconds between looks at the store: quick among few nodes, gentle among many."""
        return max(0.02, self.most / 4000)

    @property
    def pause(self) -> float:
        """Seconds between looks while there is no room for this node."""
        return max(1.0, self.most / 250)

    @property
    def silence(self) -> float:
        """Seconds that a node which came to a round may take for its next step."""
        return 8 * self.pause

    def name(self, node: int) -> str:
        """The host's name; a node that joined later may be in no plan of ours."""
        return self.names[node] if node < len(self.names) else "node %d" % node


class World(NamedTuple):
    """A round that was decided: its nodes in rank order, where rank 0 will listen, and by which epoch."""

    nodes: Tuple[int, ...]
    address: str
    port: int
    epoch: int = 0


class Rounds:
    """One node's part in the rounds of a job.

    Args:
        store: The run's.
        job: Who we are.
        place: Gives the address and a free port for the workers to meet at, should this node hold rank 0.
        now, sleep: The clock.
        tell: Takes a line that the user should read.
        participants: Gives who takes part, as run control says.
    """

    def __init__(
        self,
        store: TCPStoreLike,
        job: RoundSpec,
        place: Callable[[], Tuple[str, int]],
        *,
        tell: Callable[[str], object],
        participants: Callable[[], Participants] = lambda: EVERYONE,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store, self.job, self.place = store, job, place
        self.tell, self.now, self.sleep = tell, now, sleep
        self.said = participants
        self.number = -1  # of the round this node takes part in
        self.world: Optional[World] = None
        self.next_look = 0.0
        self.gone_since: Optional[float] = None  # since when a node of this round has been excluded

    @property
    def participants(self) -> Participants:
        """Who takes part; in a job of a fixed size everyone: whether it goes on is for run control to say."""
        return self.said() if self.job.elastic else EVERYONE

    def next(self) -> World:
        """Take part in the next round; returns when every node of it knows that it has come about.

        Raises:
            NoRound: too few nodes came, or are left, or this one takes no part.
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
                    self.gone_since = None
                    return world
            elif self.is_left_out(number, world):
                self.wait_while(lambda: self.is_left_out(number, world), deadline)  # noqa: B023 - called at once
                number = self.newest_round()
                continue
            elif len(world.nodes) >= self.job.most:  # no room for us now
                self.sleep(self.job.pause)
                number = self.newest_round()
                continue
            number = self.raise_round(number)

    def wait_while(self, excluded: Callable[[], bool], deadline: float) -> None:
        """Wait while run control excludes this node.

        Raises:
            NoRound: it did until the deadline.
        """
        while excluded():
            if self.now() > deadline:
                raise NoRound("%s takes no part any more, by run control" % self.job.name(self.job.node))
            self.sleep(self.job.poll)

    def is_left_out(self, number: int, world: World) -> bool:
        """Whether run control has excluded this node as of the newest decision, and we know of nothing newer."""
        said = self.participants
        return (said.excludes(self.job.node) or said.epoch < world.epoch) and self.newest_round() == number

    def newest_round(self) -> int:
        """The number of the round that forms or runs."""
        return int(self.store.get("round"))

    def superseded(self) -> bool:
        """Whether the workers must be ended: a node wants them started again, or run control has excluded one."""
        now = self.now()
        if self.world is None or now < self.next_look:
            return False
        self.next_look = now + self.job.poll
        if self.participants.excludes(self.job.node) or self.newest_round() > self.number:
            return True
        gone = self.lost(self.world)
        if gone:
            self.tell("%s: gone, by run control; the workers start again without it" % self.named(gone))
            self.raise_round(self.number)
        return bool(gone)

    def obstacle(self) -> str:
        """Why the workers of this round cannot be started, while its nodes exchange their ranks; empty: they can.

        That another round is wanted meanwhile is none: the exchange ends, and ``superseded`` says it.
        """
        gone = self.lost(self.world) if self.world else set()
        return "%s: gone, by run control, before the workers were started" % self.named(gone) if gone else ""

    def goes_on_without(self) -> bool:
        """Whether a node whose workers have ended need not wait for the others: they will not all end in this round.

        That is so once run control has excluded one for ``RoundSpec.absence`` seconds, or the others begin another
        round. In a job of a fixed size it never is: run control ends that.
        """
        if self.world is None or not self.job.elastic:
            return False
        gone, now = self.lost(self.world), self.now()
        if not gone:
            self.gone_since = None
        elif self.gone_since is None:
            self.gone_since = now
        if self.gone_since is not None and now - self.gone_since >= self.job.absence:
            self.tell("%s: gone, by run control; nobody waits for the end of its workers" % self.named(gone))
            return True
        return self.newest_round() > self.number

    def lost(self, world: World) -> Set[int]:
        """Nodes of a world that run control has excluded since the decision, as far as this node knows.

        One that knows less than who decided judges nobody: to it a node that has just joined is a stranger.
        """
        said = self.participants
        return set() if said.epoch < world.epoch else {node for node in world.nodes if said.excludes(node)}

    def raise_round(self, number: int) -> int:
        """Open the round after ``number`` unless another node has; returns the newest."""
        return int(self.store.compare_set("round", str(number), str(number + 1)))

    def join(self, number: int, deadline: float) -> World:
        """Come to a round, unless it is decided already; what was decided, perhaps without us.

        Raises:
            NoRound: it was decided that it cannot be.
        """
        decision = "%d/world" % number
        index = 0
        if not self.store.check([decision]):
            address, port = self.place()
            index = self.store.add("%d/came" % number, 1)
            record = [self.job.node, address, port, self.participants.epoch]
            self.store.set("%d/came/%d" % (number, index), json.dumps(record))
        forming = Forming(self, number, index)
        while not self.store.check([decision]):
            if forming.is_mine() and forming.decide(deadline):
                break
            if self.now() > deadline + 2 * self.job.silence:  # whoever is to decide does not
                raise NoRound("round %d was never decided" % number)
            self.sleep(self.job.poll)
        found = json.loads(self.store.get(decision))
        if "error" in found:
            raise NoRound(found["error"])
        return World(tuple(found["nodes"]), found["address"], found["port"], found["epoch"])

    def all_ready(self, number: int, world: World, deadline: float) -> bool:
        """Wait until each node of the world has seen the decision; False when one has died instead.

        Raises:
            NoRound: it took too long.
        """
        go = "%d/go" % number
        if self.store.add("%d/ready" % number, 1) == len(world.nodes):
            self.store.set(go, "")
        while not self.store.check([go]):
            if self.newest_round() > number or self.lost(world):
                return False
            if self.now() > deadline:
                raise NoRound("round %d was decided, but not all of its nodes came back to it" % number)
            self.sleep(self.job.poll)
        return not self.lost(world)

    def named(self, nodes: Iterable[int]) -> str:
        """The hosts' names."""
        return ", ".join(self.job.name(node) for node in sorted(nodes))


class Forming:
    """A round that is not decided yet, as one of its nodes sees it."""

    def __init__(self, rounds: Rounds, number: int, index: int) -> None:
        self.rounds, self.store, self.job = rounds, rounds.store, rounds.job
        self.number, self.index = number, index
        self.before = 1  # the first to come that may still decide
        self.since = rounds.now()  # when it became that
        self.passed = 0  # nodes that were not waited for any longer
        self.came: Dict[int, Tuple[str, int]] = {}  # node → where it would listen
        self.read: Set[int] = set()
        self.epoch = 0  # the newest that a node has come with
        self.last = rounds.now()  # when somebody came
        self.expected = self.previous_world()

    def previous_world(self) -> List[int]:
        """Who is expected: at first the plan's nodes, later those of the round before."""
        if self.number == 0:
            return list(range(len(self.job.names)))
        nodes: List[int] = json.loads(self.store.get("%d/world" % (self.number - 1)))["nodes"]
        return nodes

    def is_mine(self) -> bool:
        """Whether this node decides: all who came before it may not, or stand still."""
        while self.before < self.index:
            record, now = self.record(self.before), self.rounds.now()
            silent = now - self.since > self.job.silence and self.passed < MOST_PASSED
            if not silent and (record is None or self.may_decide(record)):
                return False
            self.passed += silent
            self.before, self.since = self.before + 1, now
        return self.before == self.index

    def may_decide(self, record: List[Any]) -> bool:
        """Whether the node of that record takes part, and knows as much as this one."""
        said = self.rounds.participants
        return not said.excludes(record[0]) and record[3] >= said.epoch

    def record(self, index: int) -> Optional[List[Any]]:
        """The node that joined as the ``index``-th; None while it has not written its record."""
        key = "%d/came/%d" % (self.number, index)
        found: Optional[List[Any]] = json.loads(self.store.get(key)) if self.store.check([key]) else None
        return found

    def look(self) -> None:
        """Read the records of nodes that have joined since the last call."""
        for index in range(1, self.store.add("%d/came" % self.number, 0) + 1):
            record = None if index in self.read else self.record(index)
            if record:
                self.read.add(index)
                self.came[record[0]] = (record[1], record[2])
                self.epoch = max(self.epoch, record[3])
                self.last = self.rounds.now()

    def decide(self, deadline: float) -> bool:
        """Decide the round if that is possible now; True once it is decided."""
        self.look()
        said = self.rounds.participants
        if said.epoch < self.epoch and self.job.elastic:  # who knows more decides; we hear of it soon, or never
            return False
        missing = [node for node in self.expected if node not in self.came and not said.has_ended(node)]
        gone = {node for node in [*missing, *self.came] if said.excludes(node)}
        here = sorted(node for node in self.came if node not in gone)[: self.job.most]
        missing = [node for node in missing if node not in gone]
        error = self.hopeless(here, missing, gone, deadline)
        if not error and not self.complete(here, missing):
            return False
        self.publish(here, error, said.epoch)
        return True

    def complete(self, here: Sequence[int], missing: Sequence[int]) -> bool:
        """Whether all expected nodes have joined."""
        if len(here) == self.job.most or (not missing and len(here) >= self.job.least):
            return True
        patience = self.job.slow if self.number else self.job.last_call
        waited = self.rounds.now() - self.last
        return self.job.elastic and len(here) >= self.job.least and waited > patience

    def hopeless(self, here: Sequence[int], missing: Sequence[int], gone: Set[int], deadline: float) -> str:
        """Why this round cannot come about; empty while it can."""
        if gone and len(here) + len(missing) < self.job.least:
            return "only %d nodes are left, and %d are needed: %s gone" % (
                len(here), self.job.least, self.rounds.named(gone)
            )  # fmt: skip
        if self.rounds.now() > deadline and len(here) < self.job.least:
            late = self.rounds.named(missing) or "others"
            return "%s did not come to round %d within %g s" % (late, self.number, self.job.join_timeout)
        return ""

    def publish(self, here: Sequence[int], error: str, epoch: int) -> None:
        """Write the decision to the store, unless another node has written one before."""
        address, port = ("", 0) if error else self.came[here[0]]
        if not error and not port:
            error = "%s has no free port for MASTER_PORT in its range" % self.rounds.named(here[:1])
        world = {"nodes": list(here), "address": address, "port": port, "epoch": epoch}
        decision = {"error": error} if error else world
        self.store.compare_set("%d/world" % self.number, "", json.dumps(decision))
        without = sorted(set(self.expected) - set(here))
        if not error and without:
            self.rounds.tell("round %d goes on without %s" % (self.number, self.rounds.named(without)))
