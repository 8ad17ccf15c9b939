"""Rounds in many orders of events: agents by a clock of the test's own, what run control says comes late or never."""

from __future__ import annotations

import functools
import itertools
import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.rendezvous.participants import EVERYONE, Participants
from clusterddp.remote.rendezvous.rounds import JobOver, NoRound, Rounds, RoundSpec, World

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = 40
COUNT, LEAST = 4, 2
MANY = 200
LEASE = 6.0  # seconds after which an agent whose supervisor is silent ends, and others begin without it 1.5 s later
OVER = "the job is over"
SETTLED = 120.0  # seconds after the last event
JOIN_TIMEOUT = 60.0


class Memory(dict[str, bytes]):
    """A store; nothing comes between two calls."""

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def add(self, key: str, amount: int) -> int:
        self[key] = str(int(super().get(key, b"0")) + amount).encode()
        return int(self[key])

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self[key] for key in keys]

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if super().get(key, b"") == expected.encode():
            self[key] = desired.encode()
        return super().get(key, expected.encode())


class Counted(Memory):
    """A store that counts comparisons with writes, and the records of single nodes that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.swaps, self.records = 0, 0

    def get(self, key: str) -> bytes:  # type: ignore[override]
        self.records += "/came/" in key
        return super().get(key)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self.swaps += 1
        return super().compare_set(key, expected, desired)


class Slow(RoundSpec):
    """A job whose agents look seldom."""

    poll = 0.25


class Killed(BaseException):
    """The agent is no more."""


@dataclass(eq=False)
class Agent:
    """One node's agent, in a thread that runs only when it is its turn."""

    node: int
    rounds: Rounds = field(init=False)
    participants: Participants = EVERYONE
    heard: bool = True  # its supervisor is there
    killed: bool = False
    stopped: bool = False
    over: bool = False
    wake: float = 0.0
    works: tuple[int, World] | None = None  # its workers' round
    failed: str = ""
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class Scene:
    """The agents of an elastic job, and run control, which knows who is there."""

    def __init__(self, seed: int, count: int = COUNT, store: Memory | None = None, most: int | None = None) -> None:
        self.chance, self.now, self.store = random.Random(seed), 0.0, Memory() if store is None else store
        self.done = threading.Semaphore(0)
        self.error: BaseException | None = None  # what has ended an agent's thread
        self.events: list[tuple[float, Callable[[], object]]] = []
        self.epoch, self.part = 0, set(range(count))
        self.started: list[tuple[int, int, World]] = []
        self.agents = [Agent(node) for node in range(count)]
        self.most = most or count  # nodes that may take part; the agents above them wait
        for agent in self.agents:
            self.begin(agent, count)

    def begin(self, agent: Agent, count: int) -> None:
        names = tuple(f"gpu0{node}" for node in range(count))
        job = Slow(agent.node, names, LEAST, self.most, join_timeout=JOIN_TIMEOUT)
        agent.rounds = Rounds(
            self.store,
            job,
            lambda: (f"10.0.0.{agent.node}", 29400),
            tell=lambda _: None,
            participants=lambda: agent.participants,
            now=lambda: self.now,
            sleep=lambda seconds: self.sleep(agent, seconds),
        )
        agent.wake = self.chance.uniform(0, 3)
        threading.Thread(target=self.live, args=(agent,), daemon=True).start()

    def sleep(self, agent: Agent, seconds: float) -> None:
        agent.wake = self.now + seconds * self.chance.uniform(0.5, 1.5)
        self.done.release()
        agent.turn.acquire()
        if agent.killed:
            raise Killed

    def live(self, agent: Agent) -> None:
        """As torchrun: meet, let the workers work until they are superseded, meet again."""
        agent.turn.acquire()
        try:
            while not agent.killed:
                world = agent.rounds.next()
                # To one that knows less than who decided, a node that came back is still a stranger.
                if agent.participants.epoch >= world.epoch:
                    assert not [node for node in world.nodes if agent.participants.excludes(node)]
                agent.works = agent.rounds.number, world
                self.started.append((agent.node, *agent.works))
                while not agent.rounds.superseded():
                    self.sleep(agent, 0.25)
                agent.works = None
        except Killed:
            pass
        except NoRound as error:
            agent.failed = str(error)
        except JobOver:
            agent.failed = OVER
        except BaseException as error:  # noqa: BLE001 - raised again by who waits for this turn
            self.error = error
        agent.works, agent.over = None, True
        self.done.release()

    def at(self, seconds: float, what: Callable[[], object]) -> None:
        self.events.append((self.now + seconds, what))

    def run(self, seconds: float) -> None:
        """Let time go by."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.05
            due = [event for event in self.events if event[0] <= self.now]
            self.events = [event for event in self.events if event not in due]
            for _, what in due:
                what()
            ready = [agent for agent in self.agents if not agent.over and not agent.stopped and agent.wake <= self.now]
            self.chance.shuffle(ready)
            for agent in ready:
                agent.turn.release()
                assert self.done.acquire(timeout=60), "an agent's turn did not end"
                if self.error:
                    raise self.error

    def say(self, part: set[int]) -> None:
        """Run control says who takes part; each supervisor that is there hears of it, a little later."""
        self.part, self.epoch = part, self.epoch + 1
        said = Participants(self.epoch, frozenset(part))
        for agent in self.agents:
            self.at(self.chance.uniform(0.05, 2.0), lambda agent=agent: self.hears(agent, said))  # type: ignore[misc]

    @staticmethod
    def hears(agent: Agent, said: Participants) -> None:
        if agent.heard and said.epoch > agent.participants.epoch:
            agent.participants = said

    def kill(self, node: int) -> None:
        """An agent ends at once, and run control knows it soon."""
        self.agents[node].killed, self.agents[node].stopped = True, False
        self.at(0.5, lambda: self.say(self.part - {node}))

    def silence(self, node: int, *, lease: bool) -> None:
        """Supervisor and fence are stopped; without a lease the agent never learns of it."""
        agent = self.agents[node]
        agent.heard = False
        self.at(LEASE + 1.5, lambda: self.say(self.part - {node}))
        if lease:
            self.at(LEASE, lambda: setattr(agent, "killed", True))

    def come_back(self, node: int) -> None:
        """Its supervisor goes on."""
        self.agents[node].heard = True
        self.say(self.part | {node})

    def close(self) -> None:
        for agent in self.agents:
            agent.killed, agent.stopped = True, False
        self.run(200.0)

    def holds(self) -> None:
        """All who take part work in one round, of just them; nobody else works; and that stays so."""
        working = {agent.node: agent.works for agent in self.agents if agent.works}
        assert set(working) <= self.part, [agent.failed for agent in self.agents]
        assert len(working) == min(len(self.part), self.most), [agent.failed for agent in self.agents]
        assert {world.nodes for _, world in working.values()} == {tuple(sorted(working))}
        assert len({number for number, _ in working.values()}) == 1
        by_number: dict[int, set[World]] = {}
        for _, number, world in self.started:
            by_number.setdefault(number, set()).add(world)
        assert all(len(worlds) == 1 for worlds in by_number.values())
        newest = self.store["round"]
        self.run(30.0)
        assert self.store["round"] == newest


@pytest.mark.parametrize("lease", [True, False])
@pytest.mark.parametrize("before", [True, False], ids=["while it starts", "while it works"])
def test_whoever_falls_silent_the_others_go_on_once(*, lease: bool, before: bool) -> None:
    for seed in range(SEEDS):
        scene = Scene(seed)
        scene.run(0.0 if before else 30.0)
        node = scene.chance.randrange(COUNT)
        scene.at(scene.chance.uniform(0, 4), lambda: scene.silence(node, lease=lease))  # noqa: B023
        scene.run(SETTLED)
        assert scene.part == set(range(COUNT)) - {node}, seed
        scene.holds()
        scene.close()


@pytest.mark.parametrize("lost", [True, False], ids=["it is lost", "it comes back"])
def test_once_a_node_out_of_reach_has_been_told_to_end_the_others_end_their_workers_and_await_it(*, lost: bool) -> None:
    for seed in range(SEEDS):
        scene = Scene(seed)
        scene.run(30.0)
        node, leader = scene.chance.sample(scene.agents, 2)
        before, node.stopped = node.works, True
        leader.participants = leader.participants._replace(fenced=frozenset({node.node}))
        scene.run(3.0)
        assert [agent.works for agent in scene.agents] == [before if agent is node else None for agent in scene.agents]
        node.stopped, node.killed = False, lost
        scene.say(scene.part - {node.node} if lost else scene.part)
        scene.run(SETTLED)
        scene.holds()
        scene.close()


def test_whatever_comes_and_goes_all_who_take_part_are_together_in_the_end() -> None:
    for seed in range(SEEDS):
        scene = Scene(seed)
        silent, killed = scene.chance.sample(range(COUNT), 2)
        scene.at(scene.chance.uniform(0, 40), lambda: scene.kill(killed))  # noqa: B023
        at = scene.chance.uniform(0, 20)
        scene.at(at, lambda: scene.silence(silent, lease=False))  # noqa: B023
        scene.at(at + scene.chance.uniform(8, 30), lambda: scene.come_back(silent))  # noqa: B023
        scene.run(SETTLED)
        assert scene.part == set(range(COUNT)) - {killed}, seed
        scene.holds()
        scene.close()


@pytest.mark.parametrize("seed", range(2))
def test_agents_above_those_that_may_take_part_replace_fifty_nodes_in_turn_each_of_which_comes_back(seed: int) -> None:
    scene = Scene(seed, COUNT + 2, most=COUNT)
    scene.run(2 * JOIN_TIMEOUT)
    for _ in range(50):
        scene.run(scene.chance.choice((1.0, 10.0, 2 * JOIN_TIMEOUT)))
        lost = scene.chance.choice([agent.node for agent in scene.agents if agent.works])
        scene.silence(lost, lease=False)
        scene.at(scene.chance.uniform(8, 30), lambda: scene.come_back(lost))  # noqa: B023
        scene.run(60.0)
        assert not [agent.failed for agent in scene.agents if agent.over]
        assert len([agent for agent in scene.agents if agent.works]) == COUNT
    scene.holds()
    assert int(scene.store["round"]) >= 50
    scene.close()


def test_an_agent_that_was_stopped_joins_again_and_costs_one_round_more() -> None:
    for seed in range(SEEDS // 5):
        scene = Scene(seed)
        scene.run(30.0)
        stopped = scene.agents[scene.chance.randrange(COUNT)]
        stopped.stopped = True
        wants = scene.agents[(stopped.node + 1) % COUNT]
        scene.at(2.0, lambda: scene.store.compare_set("round", "0", "1"))  # noqa: B023
        scene.run(100.0)
        assert wants.works
        assert stopped.node not in wants.works[1].nodes
        stopped.stopped = False
        scene.run(SETTLED)
        scene.holds()
        scene.close()


def test_who_comes_when_the_others_have_ended_well_neither_waits_nor_runs_the_script_once_more() -> None:
    for seed in range(SEEDS):
        scene = Scene(seed)
        first = set(range(LEAST))
        late = set(range(COUNT)) - first
        for node in late:
            scene.agents[node].wake = 60.0 + scene.chance.uniform(0, 3)
        scene.run(50.0)
        assert {node for node, _, _ in scene.started} == first
        for node in first:
            scene.agents[node].killed = True  # its agent ends as one does whose workers have succeeded
        ended = Participants(1, frozenset(late), frozenset(first))
        for node in late:
            delay = scene.chance.uniform(0, 14)
            scene.at(delay, functools.partial(scene.hears, scene.agents[node], ended))
        scene.run(SETTLED)
        assert [scene.agents[node].failed for node in sorted(late)] == [OVER] * len(late), seed
        assert {node for node, _, _ in scene.started} == first, seed
        scene.close()


def test_of_many_nodes_that_join_none_writes_twice_and_none_reads_the_others_one_by_one() -> None:
    store = Counted()
    scene = Scene(0, MANY, store)
    scene.run(5.0)
    assert {agent.works[1].nodes for agent in scene.agents if agent.works} == {tuple(range(MANY))}
    assert store.swaps == MANY + 2  # each opens the first round, one decides it, and one lets it begin
    assert store.records <= 2 * MANY  # nobody reads one again at each poll
    scene.close()


FIRST, SLOW = 0, 1


def ready(store: Memory, node: int, *, deadline: float = 1.0, meanwhile: Callable[[], None] = lambda: None) -> bool:
    """Whether round 0 begins for a node of two; ``meanwhile`` comes while it waits for the other."""
    clock = itertools.count()
    rounds = Rounds(
        store,
        RoundSpec(node, ("gpu00", "gpu01"), LEAST, COUNT, join_timeout=JOIN_TIMEOUT),
        lambda: ("10.0.0.1", 29400),
        tell=lambda _: None,
        now=lambda: next(clock),
        sleep=lambda _: meanwhile(),
    )
    store.compare_set("round", "", "0")
    return rounds.all_ready(0, World((FIRST, SLOW), "10.0.0.1", 29400), deadline)


def test_nobody_begins_a_round_that_another_node_has_left() -> None:
    store = Memory()
    assert not ready(store, FIRST, meanwhile=lambda: store.set("round", "1"))
    assert not ready(store, SLOW)


def test_nobody_begins_a_round_for_which_another_node_has_waited_in_vain() -> None:
    store = Memory()
    with pytest.raises(NoRound, match="not all of its nodes came back"):
        ready(store, FIRST)
    assert not ready(store, SLOW)


def test_nobody_leaves_a_round_that_another_node_has_begun() -> None:
    store = Memory()

    def slow_begins() -> None:
        assert ready(store, SLOW)
        store.set("round", "1")

    assert ready(store, FIRST, meanwhile=slow_begins)
