"""One run of a seed: so many hosts, faults at random, and what must hold whatever happens."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from clusterddp.remote.control.messages import AttemptDecision, EndOrder
from clusterddp.remote.rendezvous.rounds import RoundSpec
from clusterddp.remote.shared.run.plan import Peer
from clusterddp.remote.shared.run.run_record import RunRecord
from tests.unit.plan_made import PLAN, changed
from tests.unit.simulated.faults import Faults, choose_faults
from tests.unit.simulated.host import Host
from tests.unit.simulated.network import Clock, Network
from tests.unit.simulated.patches import simulated

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.remote.shared.run.plan import NodePlan
    from tests.unit.simulated.parts import Agent

LONGEST = 900.0  # seconds after which every supervisor must have ended
AWAKE = 3.0  # seconds that an agent may outlive its lease after a suspended host woke
RELAUNCHES = 30
ROUND_WAITS: float = RoundSpec._field_defaults["first_arrival_timeout"]


class Broken(BaseException):
    """Something that must hold does not; no handler of errors catches it."""


class Simulation:
    """The hosts of one run, its faults, and what was seen; ``given``: attributes that the seed does not choose."""

    def __init__(
        self,
        seed: int,
        count: int | None = None,
        *,
        script: Callable[[Simulation, Faults], None] = choose_faults,
        **given: Any,
    ) -> None:
        self.random, self.script = random.Random(seed), script
        self.clock = Clock()
        self.network = Network(self.clock, self.random)
        self.busy = self.random.choice((0.0, 0.0, 0.05, 0.3))
        count = count or self.random.choice((3, 3, 3, 4, 4, 5, 5, 6, 7, 9, 12))
        self.spares = self.random.choice((0, 0, 1, count // 3))
        self.elastic = self.random.random() < 0.3
        self.work = self.random.uniform(3, 25)  # seconds of work that an attempt needs
        self.told = False
        vars(self).update(given)
        self.running: Any = None
        self.hosts = [Host(self, plan, self.random.uniform(0, 2)) for plan in self.plans(count)]
        self.agents: list[Agent] = []  # that have begun
        self.history: list[str] = []
        self.judged: Any = None  # the first verdict by a majority
        self.touched: set[int] = set()  # hosts that a fault has met

    def plans(self, count: int) -> list[NodePlan]:
        names = tuple(f"gpu{member:02}" for member in range(count))
        peers = tuple(Peer(host=name, address=f"10.0.0.{member}", nproc=1) for member, name in enumerate(names))
        members = tuple(range(count - self.spares))
        fewest = self.fewest or (self.random.randint(1, len(members)) if self.elastic else len(members))
        record = RunRecord(hosts=names[: len(members)], min_nodes=fewest)
        return [
            changed(
                PLAN, host=names[member], node=f"{member}-{names[member]}", node_rank=member, member=member,
                nnodes=len(members), peers=peers, members=members, standby=member not in members, record=record,
                relaunch=self.relaunches, elastic=self.elastic, min_nodes=fewest, max_nodes=len(members),
                store=None, worker_argv=(), rdzv_backend="clusterddp",
            )
            for member in range(count)
        ]  # fmt: skip

    # What is seen

    def say(self, line: str) -> None:
        self.history.append(f"{self.clock.now:8.3f} {line}")
        if self.told:
            print(self.history[-1])

    def note(self, host: Host, name: str, fields: dict[str, Any]) -> None:
        self.say(f"{host.first_plan.host} {name} {fields}")
        if name == "handler_failed":
            raise Broken(
                f"a handler failed on {host.first_plan.host}: {fields['handler']}: {fields['traceback'][-300:]}"
            )

    def begun(self, agent: Agent) -> None:
        """An agent begins: no other attempt may run anywhere."""
        now = self.clock.now
        self.agents.append(agent)
        self.say(f"{agent.host.first_plan.host} begins attempt {agent.attempt}")
        for host in self.hosts:
            other = host.agent
            if other and other is not agent and other.runs and other.attempt != agent.attempt:
                if now - host.resumed_at < AWAKE and other.attempt < agent.attempt:
                    continue
                where = agent.host.first_plan.host, host.first_plan.host
                raise Broken(f"attempt {agent.attempt} begins while attempt {other.attempt} runs: on %s, on %s" % where)
        if self.judged and agent.attempt > self.judged.attempt:
            raise Broken(f"attempt {agent.attempt} begins after the verdict of attempt {self.judged.attempt}")

    def decided(self, decision: AttemptDecision) -> None:
        """Check, when a node prepares an attempt, that the rendezvous store is on a host that takes part."""
        if decision.store not in decision.members:
            raise Broken(f"the store of attempt {decision.attempt} is on gpu{decision.store:02}, which takes no part")

    def kept(self, host: Host, verdict: Any) -> None:
        """A host has recorded a verdict."""
        heard = f"heard {verdict.reported}, not {verdict.missing}"
        self.say(f"{host.first_plan.host} keeps a verdict of {verdict.writer}: {verdict.line!r}, {heard}")
        if any((other.writer, other.written) != (verdict.writer, verdict.written) for other in host.verdicts):
            raise Broken(f"{host.first_plan.host} has kept two verdicts")
        if verdict.by_majority:
            before = self.judged or verdict
            if (verdict.writer, verdict.written) != (before.writer, before.written):
                raise Broken(f"two verdicts by a majority, of {before.writer} and {verdict.writer}")
            self.judged = before

    def agents_running(self) -> int:
        return sum(bool(host.agent and host.agent.runs) for host in self.hosts)

    @property
    def leader(self) -> Host | None:
        """A host that leads with a majority, if one does now."""
        for host in self.hosts:
            self.running = host
            if host.supervisor and host.on and host.supervisor.control.leading and host.supervisor.control.majority:
                return host
        return None

    def whole(self) -> bool:
        """Whether all hosts are in contact, and an attempt runs on as many as it needs."""
        leader = self.leader
        if leader is None or leader.supervisor is None:
            return False
        is_enough = self.agents_running() >= leader.supervisor.plan.settings.min_nodes
        is_connected = len(leader.supervisor.control.connected) == len(self.hosts) - 1
        return is_enough and is_connected and all(self.has_majority(host) for host in self.hosts)

    def has_majority(self, host: Host) -> bool:
        """Whether a host knows that it is in contact with a majority; one that is back learns it by a heartbeat."""
        self.running = host
        return host.supervisor is not None and host.supervisor.control.in_contact

    # What the workers do

    def let_work(self) -> None:
        """The agents of an attempt end well once all have worked long enough together; now and then one fails."""
        agents = [host.agent for host in self.hosts if host.agent and host.agent.runs]
        if agents:
            newest = max(agent.attempt for agent in agents)
            together = [agent for agent in agents if agent.attempt == newest]
            if self.all_there(together) and self.clock.now - max(agent.began for agent in together) > self.work:
                for agent in together:
                    agent.ends_after(self.random.uniform(0, 1.0), 0)
        self.clock.at(self.clock.now + 0.5, self.let_work)

    def all_there(self, agents: list[Agent]) -> bool:
        """Whether these are all that the newest of them knows to take part, or an elastic job waited for the others."""
        newest = max((agent.lease.newest for agent in agents), key=lambda one: one.epoch)
        supervisor = agents[0].host.supervisor
        if supervisor is None:
            return False
        there = {agent.host.supervisor.plan.node_rank for agent in agents if agent.host.supervisor}
        waited = self.clock.now - max(agent.began for agent in agents)
        if self.elastic and waited > ROUND_WAITS and len(there) >= supervisor.plan.settings.min_nodes:
            return True
        if newest.nodes is None:
            return len(there) == supervisor.plan.nnodes
        return there >= (newest.nodes - newest.ended)

    # The whole

    def run(self) -> None:
        """Play it; raises Broken."""
        with simulated(self):
            for host in self.hosts:
                self.clock.at(host.begins, host.begin)
            self.clock.at(0.5, self.let_work)
            self.script(self, Faults(self))
            while not self.over() and self.clock.step(self.longest):
                pass
        self.check_end()

    def over(self) -> bool:
        """Whether nothing of the run is left on any host that is on."""
        return self.clock.now > 3.0 and not any(
            host.on and (host.supervisor or (host.agent and host.agent.code is None)) for host in self.hosts
        )

    def check_end(self) -> None:
        left = [host.first_plan.host for host in self.hosts if host.on and host.supervisor]
        if left:
            raise Broken(f"still there after {self.longest:.0f} s: {left}")
        finished = [host for host in self.hosts if host.finished]
        # A spare that was never needed may outlive all others, and heard no end that it could judge. A host without a
        # fence leaves at once, and tells others its end; the exit record is there for who asks.
        took_part = [host for host in finished if (host.agent or not host.first_plan.standby) and not host.unfenced]
        if took_part and not any(host.verdicts for host in finished):
            raise Broken("there is no verdict")
        if not self.touched and not self.stopped and (self.judged is None or self.judged.state != "succeeded"):
            raise Broken(f"nothing was wrong, and the verdict is {self.judged}")
        if self.judged and not self.parted:
            # A host of a run that was stopped before all had met may have found no leader in time, and record it alone.
            key = "writer" if self.agents or not self.stopped else "state"
            for host in finished:
                well = host.first_plan.member not in self.touched
                if well and any(getattr(one, key) != getattr(self.judged, key) for one in host.verdicts):
                    raise Broken(f"{host.first_plan.host} has another verdict, of {host.verdicts[0].writer}")

    relaunches, longest = RELAUNCHES, LONGEST
    fewest = 0  # nodes that an elastic job needs; 0: as the seed chooses
    losses = 50  # of hosts in turn, where the script has them lost
    stopped = False  # whether an operator has stopped it
    parted = False  # whether hosts were cut off

    def stop(self, host: Host) -> None:
        """An operator orders this host to stop the run."""
        self.stopped = True
        if host.supervisor:
            host.supervisor.inbox.stop = EndOrder("stop", 3.0, ours=False)
