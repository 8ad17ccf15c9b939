"""What happens to the hosts of a simulated run, at times that its seed chooses."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from clusterddp.remote.supervisor.node import Phase
from clusterddp.remote.supervisor.relaunch import ALONE_TIMEOUT
from clusterddp.remote.supervisor.stop_conditions import LIMITS_RELAUNCH
from tests.unit.simulated.network import Weather

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.simulated.host import Host
    from tests.unit.simulated.run import Simulation

BOTH = ("paused", "fence_paused")
LATEST = 45.0  # seconds until which faults begin
STEPS = (Phase.WAITING, Phase.STARTING, Phase.RUNNING, Phase.CLEARING, Phase.BETWEEN, Phase.CONCLUDING, Phase.LEAVING)


class Faults:
    """Every fault that a seed may choose; each takes the host that it meets."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.random = simulation, simulation.random
        self.kinds: list[Callable[[Host], object]] = [
            self.power_cut, self.supervisor_killed, self.fence_killed, self.both_killed, self.supervisor_paused,
            self.fence_paused, self.both_paused, self.suspended, self.cut_off, self.one_way, self.disk_stalls,
            self.clock_jumps, self.connections_reset, self.agent_fails, self.agent_killed, self.hangs, self.bad_weather,
        ]  # fmt: skip

    def strike(self, host: Host, kind: Callable[[Host], object]) -> None:
        """A fault meets a host now."""
        simulation = self.simulation
        if not host.on or host.supervisor is None:
            return
        simulation.say(f"{host.first_plan.host}: {kind.__name__}")
        if kind != self.clock_jumps:
            simulation.touched.add(host.first_plan.member)
        host.enter()
        kind(host)

    def duration(self) -> float:
        return self.random.choice((0.5, 2.0, 4.0, 5.5, 7.0, 9.0, 15.0, 40.0)) * self.random.uniform(0.8, 1.2)

    def later(self, seconds: float, what: Callable[[], object]) -> None:
        clock = self.simulation.clock
        clock.at(clock.now + seconds, what)

    def power_cut(self, host: Host) -> None:
        host.power_off()

    def supervisor_killed(self, host: Host) -> None:
        host.supervisor_ends()

    def fence_killed(self, host: Host) -> None:
        host.unfenced = True
        host.fence_ends()

    def both_killed(self, host: Host) -> None:
        host.fence_ends()
        host.supervisor_ends()

    def supervisor_paused(self, host: Host) -> None:
        host.stop_processes(self.duration(), BOTH[:1])

    def fence_paused(self, host: Host) -> None:
        host.stop_processes(self.duration(), BOTH[1:])

    def both_paused(self, host: Host) -> None:
        host.stop_processes(self.duration(), BOTH)

    def suspended(self, host: Host) -> None:
        host.suspend(self.duration())

    def cut_off(self, host: Host) -> None:
        """This host, or it and some others, cannot reach the rest."""
        self.apart({one.address for one in self.simulation.hosts if one is host or self.random.random() < 0.3})

    def apart(self, inside: set[str], seconds: float | None = None) -> None:
        """These hosts cannot reach the rest, for so many seconds or as many as the seed chooses."""
        self.simulation.parted = True
        outside = {one.address for one in self.simulation.hosts} - inside
        pairs = {(a, b) for a in inside for b in outside}
        self._block(pairs | {(b, a) for a, b in pairs}, seconds)

    def lost_and_back(self, host: Host) -> None:
        """A host is cut off until the others have gone on without it, and is back before it gives up."""
        self.apart({host.address}, self.random.uniform(LIMITS_RELAUNCH.lost + 2, ALONE_TIMEOUT - 3))

    def one_way(self, host: Host) -> None:
        """Nothing from this host, or nothing to it, arrives at some others."""
        self.simulation.parted = True
        others = [one.address for one in self.simulation.hosts if one is not host and self.random.random() < 0.6]
        pairs = {(host.address, other) for other in others}
        self._block(pairs if self.random.random() < 0.5 else {(b, a) for a, b in pairs})

    def _block(self, pairs: set[tuple[str, str]], seconds: float | None = None) -> None:
        blocked = self.simulation.network.blocked
        blocked |= pairs
        self.later(self.duration() if seconds is None else seconds, lambda: blocked.difference_update(pairs))

    def disk_stalls(self, host: Host) -> None:
        host.stalled_until = self.simulation.clock.now + self.duration()

    def clock_jumps(self, host: Host) -> None:
        host.wall_jump_ns = self.random.randrange(-(10**15), 10**15)

    def connections_reset(self, host: Host) -> None:
        selector: Any = host.supervisor.loop.selector if host.supervisor else None
        for each in selector.sockets():
            if hasattr(each, "abort"):
                each.abort()

    def agent_fails(self, host: Host) -> None:
        if host.agent:
            host.agent.end(1)

    def agent_killed(self, host: Host) -> None:
        if host.agent:
            host.agent.end(-9)

    def hangs(self, host: Host) -> None:
        """Its agent does not heed SIGTERM."""
        if host.agent:
            host.agent.stubborn = True

    def bad_weather(self, _: Host) -> None:
        network = self.simulation.network
        network.weather = Weather(
            loss=self.random.choice((0.01, 0.05, 0.2)),
            doubled=self.random.choice((0.0, 0.2)),
            delay=self.random.choice((0.01, 0.1, 0.3)),
        )
        self.later(self.duration(), lambda: setattr(network, "weather", Weather()))

    def at(self, time: float, kind: Callable[[Host], object], host: Host) -> None:
        """Strike a host at a time."""
        self.simulation.clock.at(time, lambda: self.strike(host, kind))

    def at_leader(self, time: float, kind: Callable[[Host], object], step: Phase | None = None) -> None:
        """Strike whoever leads from then on, or as soon as it is at this step of its run."""
        simulation = self.simulation

        def look() -> None:
            leader = simulation.leader
            if leader and leader.supervisor and step in (None, leader.supervisor.phase):
                self.strike(leader, kind)
            elif simulation.clock.now < 3 * LATEST:
                simulation.clock.at(simulation.clock.now + 0.05, look)

        simulation.clock.at(time, look)


def lose_in_turn(simulation: Simulation, faults: Faults) -> None:
    """Cut one host after the other off until others have taken its part; each is back before the next. Then all end."""
    chance, clock = simulation.random, simulation.clock
    work, simulation.work = simulation.work, float("inf")

    def look() -> None:
        pause = chance.uniform(0.5, 3.0)
        if simulation.whole() and not simulation.losses:
            simulation.work = work
            return
        if simulation.whole():
            simulation.losses -= 1
            is_lost = chance.random() < 0.9
            host = chance.choice([one for one in simulation.hosts if one.agent and one.agent.runs])
            faults.strike(host, faults.lost_and_back if is_lost else faults.agent_killed)
            pause += LIMITS_RELAUNCH.lost if is_lost else 0
        clock.at(clock.now + pause, look)

    clock.at(3.0, look)


def cut_off_and_back(simulation: Simulation, faults: Faults) -> None:
    """Cut hosts of an elastic job off again and again; the others are a majority, and MIN or more.

    Neither the first, which has the store, nor the leader: its loss together with the next one's ends all leases.
    """
    chance, hosts = simulation.random, simulation.hosts
    fewest = hosts[0].first_plan.settings.min_nodes

    def cut(host: Host, seconds: float) -> None:
        if host is not simulation.leader:
            faults.apart({host.address}, seconds)

    for host in chance.sample(hosts[1:], min(len(hosts) - fewest, (len(hosts) - 1) // 2)):
        simulation.touched.add(host.first_plan.member)
        time = chance.uniform(5.0, 30.0)
        for _ in range(chance.choice((1, 2, 3))):
            seconds = chance.choice((3.0, 5.0, 5.5, 6.0, 7.0, 9.0, 15.0, 63.0)) * chance.uniform(0.95, 1.2)
            simulation.clock.at(time, functools.partial(cut, host, seconds))
            time += seconds + chance.uniform(0.1, 20.0)


def choose_faults(simulation: Simulation, faults: Faults) -> None:
    """Choose none, one, or up to four, often of the leader; and now and then a stop by an operator."""
    chance = simulation.random
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4))):
        kind, aim, time = (
            chance.choice(faults.kinds),
            chance.choice(("any", "leader", "step")),
            chance.uniform(0.5, LATEST),
        )
        if aim == "any":
            faults.at(time, kind, chance.choice(simulation.hosts))
        elif aim == "leader":
            faults.at_leader(time, kind)
        else:
            faults.at_leader(0.5, kind, chance.choice(STEPS))
    if chance.random() < 0.15:
        host = chance.choice(simulation.hosts)
        simulation.clock.at(chance.uniform(1, 60), lambda: simulation.stop(host))
