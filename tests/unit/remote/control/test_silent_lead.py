"""A lead that falls silent, and how long its survivors are without contact: real sockets, a clock of the test's own."""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import socket
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.control import connection, heartbeats, leader
from clusterddp.remote.control.connection import Secret
from clusterddp.remote.control.datagrams import Datagrams
from clusterddp.remote.control.leader import Control
from clusterddp.remote.control.membership import TCP_ONLY_MARGIN
from clusterddp.remote.supervisor.node import TURN_INTERVAL
from clusterddp.remote.supervisor.stop_conditions import LIMITS_RELAUNCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEP = 0.02  # seconds of the test's clock
HANDSHAKE = 3  # packets that a connection on the loopback takes
STEADY = 3.0  # seconds until beats have found their pace
HELD_UP = (0.02, 0.5)  # on a busy machine: how often a loop is, and for how many seconds at most


def bound() -> socket.socket:
    """A listener on a port where datagrams can be had too."""
    while True:
        listener = socket.create_server(("127.0.0.1", 0))
        both = Datagrams(listener)
        if both.socket:
            both.close()
            return listener
        listener.close()


class Hosts:
    """The nodes of a run, each with a loop of its own, by a clock that only the test moves.

    Args:
        count: Of the nodes.
        chance: When each begins, and is held up.
        held_up: How often and for how long at most a loop stands still.
    """

    def __init__(self, count: int, chance: random.Random, held_up: tuple[float, float]) -> None:
        self.now, self.chance, self.held_up = 1000.0, chance, held_up
        self.canary = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.canary.bind(("127.0.0.1", 0))
        self.listeners = [bound() for _ in range(count)]
        self.begins = {member: self.now + chance.random() for member in range(count)}
        self.next = dict(self.begins)  # when each loop turns without being woken
        self.free = dict.fromkeys(range(count), 0.0)  # until when it is held up
        self.selectors = [selectors.DefaultSelector() for _ in range(count)]
        self.longest = 0.0  # seconds that anybody who is on was without contact to a majority, for all it knows
        self.nodes: list[Control] = []

    def switch_on(self) -> None:
        """All of them; by now the clock is known."""
        for member, listener in enumerate(self.listeners):
            secret = Secret(b"k" * 32, "run", member)
            self.nodes.append(Control(secret, self.selectors[member], lambda _: None, listener))

    def run(self, seconds: float, *, off: tuple[int, ...] = ()) -> None:
        """Let time go by; who is off leaves all connections open, takes new ones, and says nothing."""
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            for member in set(range(len(self.nodes))).difference(off):
                self.turn(member)
                self.longest = max(self.longest, self.now - self.nodes[member].last_contact)

    def turn(self, member: int) -> None:
        """One turn of a node's loop, if it is woken or due."""
        node = self.nodes[member]
        if not node.addresses and self.now >= self.begins[member]:
            node.begin([listener.getsockname() for listener in self.listeners])
        if self.now < self.free[member]:
            return
        self.arrive()
        ready = self.selectors[member].select(0)
        if not ready and self.now < self.next[member]:
            return
        for key, _ in ready:
            key.data()
        node.turn()
        self.next[member] = self.now + TURN_INTERVAL
        often, most = self.held_up
        if self.chance.random() < often:
            self.free[member] = self.now + most * self.chance.random()

    def arrive(self) -> None:
        """What was sent before has arrived when this has, and so have the kernel's answers to it."""
        for _ in range(HANDSHAKE):
            self.canary.sendto(b"!", self.canary.getsockname())
            self.canary.recv(1)

    def close(self) -> None:
        for node in self.nodes:
            node.close(0)
        for member, listener in enumerate(self.listeners):
            listener.close()
            self.selectors[member].close()
        self.canary.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Hosts]]:
    """Makes hosts that are in contact, by a seed."""
    cores = os.sched_getaffinity(0)
    with contextlib.ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, {min(cores)})  # each core has a queue of its own of packets on the loopback

        def start(count: int, seed: int, held_up: tuple[float, float]) -> Hosts:
            hosts = Hosts(count, random.Random(seed), held_up)
            stack.callback(hosts.close)
            for module in (heartbeats, connection, leader):
                monkeypatch.setattr(module, "boot_clock", lambda: hosts.now)
            hosts.switch_on()
            hosts.run(STEADY)
            assert all(node.settled for node in hosts.nodes)
            hosts.run(hosts.chance.random())
            hosts.longest = 0.0
            return hosts

        yield start


@pytest.mark.parametrize("held_up", [(0.0, 0.0), HELD_UP], ids=["quiet", "busy"])
@pytest.mark.parametrize("count", [3, 5])
def test_survivors_of_a_lead_are_in_contact_again_before_a_fence_ends_one(
    count: int, held_up: tuple[float, float], started: Callable[..., Hosts]
) -> None:
    for seed in range(8):
        hosts = started(count, seed, held_up)
        hosts.run(LIMITS_RELAUNCH.lost, off=(0,))
        assert [(node.leader, node.settled) for node in hosts.nodes[1:]] == [(1, True)] * (count - 1)
        assert hosts.longest < LIMITS_RELAUNCH.fence, f"seed {seed}"


@pytest.mark.parametrize("held_up", [(0.0, 0.0), HELD_UP], ids=["quiet", "busy"])
def test_they_agree_on_the_next_in_order_where_others_come_before_the_lost_lead(
    held_up: tuple[float, float], started: Callable[..., Hosts]
) -> None:
    for seed in range(8):
        hosts = started(5, seed, held_up)
        hosts.run(LIMITS_RELAUNCH.lost, off=(0,))
        hosts.run(STEADY)
        assert [(node.leader, node.settled) for node in hosts.nodes] == [(1, True)] * 5
        hosts.longest = 0.0
        hosts.run(LIMITS_RELAUNCH.lost, off=(1,))
        assert {(node.leader, node.settled) for node in hosts.nodes if node.member != 1} == {(2, True)}, f"seed {seed}"
        assert hosts.longest < LIMITS_RELAUNCH.fence, f"seed {seed}"


def test_so_they_are_where_no_datagram_gets_through(
    started: Callable[..., Hosts], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Datagrams, "send", lambda *_: None)
    for seed in range(8):
        hosts = started(3, seed, (0.0, 0.0))
        assert all(node.slow for node in hosts.nodes)
        hosts.run(LIMITS_RELAUNCH.lost + TCP_ONLY_MARGIN, off=(0,))
        assert hosts.nodes[2].settled
        assert hosts.longest < LIMITS_RELAUNCH.fence + TCP_ONLY_MARGIN, f"seed {seed}"


def test_who_is_called_by_the_next_in_order_turns_to_it_though_its_call_of_the_lost_lead_hangs(
    started: Callable[..., Hosts],
) -> None:
    hosts = started(3, 0, (0.0, 0.0))
    hosts.run(
        0.01 + leader.SILENCE_TIMEOUT, off=(0, 1)
    )  # the last has noticed, and calls the lead; the next in order has not
    assert [link.target for link in hosts.nodes[2].links] == [0]
    hosts.nodes[1].links[0].received_at = 0.0  # now it does, and is out of patience
    hosts.run(leader.LEADER_TIMEOUT, off=(0,))
    assert [(node.leader, node.settled) for node in hosts.nodes[1:]] == [(1, True), (1, True)]
