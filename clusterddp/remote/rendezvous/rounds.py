"""The rounds of a run: who takes part in each start of the workers, and where its workers meet.

All agents are clients of one store; this is the order in which they use it. Keys, all of one attempt:

    round        number of the round that forms or runs, from 0; whoever wants the workers started again raises it
    beat/NODE    changes while the agent of NODE lives; LEFT once it has ended
    R/came       how many have come to round R
    R/came/I     who came as the I-th, from 1: JSON [node, address, port]
    R/world      the decision: JSON {nodes, address, port}, or {error}; made once
    R/ready      how many of the world have seen it
    R/go         all of them have

The first to come decides; when it dies, the next one does. No clock of one host is ever compared with another's:
a node is dead when its beat has not changed for a while by the observer's own clock. Run control may know earlier
(rendezvous/gone.py): nobody waits for whom it has lost.
"""

import json
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple

LEFT = b"left"


class Store(Protocol):
    """What is used of torch's TCPStore."""

    def get(self, key: str, /) -> bytes: ...  # noqa: D102
    def set(self, key: str, value: str, /) -> object: ...  # noqa: D102
    def add(self, key: str, amount: int, /) -> int: ...  # noqa: D102
    def check(self, keys: List[str], /) -> bool: ...  # noqa: D102
    def multi_get(self, keys: List[str], /) -> List[bytes]: ...  # noqa: D102
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...  # noqa: D102


class NoRound(Exception):
    """No round can come about; says why."""


class Job(NamedTuple):
    """One node's view of the job.

    Attributes:
        node: This node's place in the inventory order.
        names: The hosts of the plan, in that order.
        least: With fewer nodes nothing is started.
        most: As many may take part.
        join_timeout: Seconds to wait for the others.
        last_call: Seconds after the last arrival that an elastic start waits for the plan's other nodes.
        slow: The same in later rounds: an agent that lives may need torchrun's 30 s to end its workers.
    """

    node: int
    names: Tuple[str, ...]
    least: int
    most: int
    join_timeout: float
    last_call: float = 20.0
    slow: float = 45.0

    @property
    def elastic(self) -> bool:
        """Whether the job may go on with fewer nodes."""
        return self.least < self.most

    @property
    def poll(self) -> float:
        """Seconds between looks at the store: quick among few nodes, gentle among many."""
        return max(0.02, self.most / 4000)

    @property
    def beat(self) -> float:
        """Seconds between beats."""
        return max(1.0, self.most / 250)

    @property
    def silence(self) -> float:
        """Seconds without a beat after which a node counts as dead."""
        return 8 * self.beat

    def name(self, node: int) -> str:
        """The host's name; a node that joined later may be in no plan of ours."""
        return self.names[node] if node < len(self.names) else "node %d" % node


class World(NamedTuple):
    """A round that was decided: its nodes in rank order, and where rank 0 will listen."""

    nodes: Tuple[int, ...]
    address: str
    port: int


class Watch:
    """Detects dead nodes by heartbeats that have not changed.

    Args:
        store: Has the beats.
        silence: Seconds without a new beat after which a node is dead.
        told: Gives the nodes that are gone by run control's word.
        now: The clock.
    """

    def __init__(self, store: Store, silence: float, told: Callable[[], Set[int]], now: Callable[[], float]) -> None:
        self.store, self.silence, self.told, self.now = store, silence, told, now
        self.seen: Dict[int, Tuple[bytes, float]] = {}

    def gone(self, nodes: Iterable[int]) -> Set[int]:
        """Those of ``nodes`` that are gone by run control's word, have ended, or have not beaten for too long."""
        told = self.told().intersection(nodes)
        asked = [node for node in nodes if self.store.check(["beat/%d" % node])]
        beats = self.store.multi_get(["beat/%d" % node for node in asked]) if asked else []
        now = self.now()
        for node, beat in zip(asked, beats):  # noqa: B905 - hosts have Python 3.8
            if self.seen.get(node, (b"", 0.0))[0] != beat:
                self.seen[node] = (beat, now)
        silent = {node for node in asked if self.seen[node][0] == LEFT or now - self.seen[node][1] > self.silence}
        return told | silent


class Rounds:
    """One node's part in the rounds of a job.

    Args:
        store: The run's.
        job: Who we are.
        place: Gives the address and a free port for the workers to meet at, should this node hold rank 0.
        now, sleep: The clock.
        tell: Takes a line that the user should read.
        told: Gives the nodes that are gone by run control's word.
    """

    def __init__(
        self,
        store: Store,
        job: Job,
        place: Callable[[], Tuple[str, int]],
        *,
        tell: Callable[[str], object],
        told: Callable[[], Set[int]] = set,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store, self.job, self.place = store, job, place
        self.tell, self.now, self.sleep = tell, now, sleep
        self.watch = Watch(store, job.silence, told, now)
        self.number = -1  # of the round this node takes part in
        self.world: Optional[World] = None
        self.next_look = self.next_watch = 0.0

    def next(self) -> World:
        """Take part in the next round; returns when every node of it knows that it has come about.

        Raises:
            NoRound: too few nodes came, or are left.
        """
        deadline = self.now() + self.job.join_timeout
        number = int(self.store.compare_set("round", "", "0"))
        if number == self.number:
            number = self.raise_round(number)
        while True:
            world = self.join(number, deadline)
            if self.job.node not in world.nodes and len(world.nodes) >= self.job.most:  # no room for us now
                self.sleep(self.job.beat)
                number = int(self.store.get("round"))
                continue
            if self.job.node in world.nodes and self.all_ready(number, world, deadline):
                self.number, self.world = number, world
                return world
            number = self.raise_round(number)

    def superseded(self) -> bool:
        """Whether the workers must be started again: a node wants it, or one of an elastic job has died."""
        now = self.now()
        if self.world is None or now < self.next_look:
            return False
        self.next_look = now + self.job.poll
        if int(self.store.get("round")) > self.number:
            return True
        gone = self.lost(self.world)
        if gone:
            why = "gone, by run control" if gone & self.watch.told() else "no sign of life"
            self.tell("%s: %s; the workers start again without it" % (self.named(gone), why))
            self.raise_round(self.number)
        return bool(gone)

    def lost(self, world: World) -> Set[int]:
        """Nodes of an elastic job's world that are gone: by run control's word, or, looked for once a beat, by silence.

        The first node looks after all the others, these after the first alone: that is little among many nodes. A
        job of a fixed size cannot go on without a node; that it is gone is for run control to say.
        """
        now = self.now()
        told = self.watch.told().intersection(world.nodes) if self.job.elastic else set()
        if told or not self.job.elastic or now < self.next_watch:
            return told
        self.next_watch = now + self.job.beat
        first = world.nodes[0]
        return self.watch.gone(world.nodes[1:] if self.job.node == first else [first])

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
            self.store.set("%d/came/%d" % (number, index), json.dumps([self.job.node, address, port]))
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
        return World(tuple(found["nodes"]), found["address"], found["port"])

    def all_ready(self, number: int, world: World, deadline: float) -> bool:
        """Wait until each node of the world has seen the decision; False when one has died instead.

        Raises:
            NoRound: it took too long.
        """
        go = "%d/go" % number
        if self.store.add("%d/ready" % number, 1) == len(world.nodes):
            self.store.set(go, "")
        while not self.store.check([go]):
            if int(self.store.get("round")) > number:
                return False
            if self.lost(world):
                return False
            if self.now() > deadline:
                raise NoRound("round %d was decided, but not all of its nodes came back to it" % number)
            self.sleep(self.job.poll)
        return True

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
        self.came: Dict[int, Tuple[str, int]] = {}  # node → where it would listen
        self.read: Set[int] = set()
        self.last = rounds.now()  # when somebody came
        self.expected = self.previous_world()

    def previous_world(self) -> List[int]:
        """Who is expected: at first the plan's nodes, later those of the round before."""
        if self.number == 0:
            return list(range(len(self.job.names)))
        nodes: List[int] = json.loads(self.store.get("%d/world" % (self.number - 1)))["nodes"]
        return nodes

    def is_mine(self) -> bool:
        """Whether this node decides: all who came before it are gone, perhaps before they could say who they are."""
        while self.before < self.index:
            record, now = self.record(self.before), self.rounds.now()
            silent = now - self.since > self.job.silence if record is None else self.rounds.watch.gone([record[0]])
            if not silent:
                return False
            self.before, self.since = self.before + 1, now
        return self.before == self.index

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
                self.last = self.rounds.now()

    def decide(self, deadline: float) -> bool:
        """Decide the round if that is possible now; True once it is decided."""
        self.look()
        missing = [node for node in self.expected if node not in self.came]
        gone = self.rounds.watch.gone([*missing, *self.came]) if self.job.elastic else set()
        here = sorted(node for node in self.came if node not in gone)[: self.job.most]
        missing = [node for node in missing if node not in gone]
        error = self.hopeless(here, missing, gone, deadline)
        if not error and not self.complete(here, missing):
            return False
        self.publish(here, error)
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

    def publish(self, here: Sequence[int], error: str) -> None:
        """Write the decision to the store, unless another node has written one before."""
        address, port = ("", 0) if error else self.came[here[0]]
        if not error and not port:
            error = "%s has no free port for MASTER_PORT in its range" % self.rounds.named(here[:1])
        decision = {"error": error} if error else {"nodes": list(here), "address": address, "port": port}
        self.store.compare_set("%d/world" % self.number, "", json.dumps(decision))
        without = sorted(set(self.expected) - set(here))
        if not error and without:
            self.rounds.tell("round %d goes on without %s" % (self.number, self.rounds.named(without)))
