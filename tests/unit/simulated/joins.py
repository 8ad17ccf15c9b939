"""Hosts that join a simulated run, as ``run --join`` lets them: by the plan of a host that is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.remote.control.messages import NodeState
from clusterddp.remote.shared.run.plan import NodePlan, Peer, with_peer
from clusterddp.remote.supervisor.node import Phase
from tests.unit.simulated.faults import choose_faults
from tests.unit.simulated.host import Host
from tests.unit.simulated.run import Broken, Simulation

if TYPE_CHECKING:
    from clusterddp.remote.supervisor.node import Supervisor
    from tests.unit.simulated.faults import Faults
    from tests.unit.simulated.parts import Agent

ROOM = 3  # hosts that may join
GUIDES = (Phase.STARTING, Phase.RUNNING, Phase.BETWEEN)


class RunWithRoom(Simulation):
    """An elastic run that other hosts may join."""

    def plans(self, count: int) -> list[NodePlan]:
        plans = super().plans(count)
        return [
            plan._replace(bound=(0, 29400), settings=plan.settings._replace(max_nodes=count + ROOM)) for plan in plans
        ]

    def let_work(self) -> None:
        for host in self.hosts:
            agent, supervisor = host.agent, host.supervisor
            if agent and agent.runs and supervisor and agent.lease.newest.over_without(supervisor.plan.node_rank):
                agent.ends_after(0.3, 0)
            if host.on and supervisor:
                self.check_members(supervisor)
        super().let_work()

    def check_members(self, supervisor: Supervisor) -> None:
        """Check that a node counts each host that has joined its attempt, as far as it knows of it; and records it."""
        plan = supervisor.plan
        if plan.record.hosts != tuple(plan.peers[member].host for member in plan.members):
            raise Broken(f"{plan.host} has {plan.record.hosts} as the hosts of attempt {plan.attempt}, not its members")
        for member, status in supervisor.membership.statuses.items():
            takes_part = status.joined and status.attempt == plan.attempt and status.state is not NodeState.STANDBY
            if takes_part and member not in plan.members:
                raise Broken(f"gpu{member:02} has joined attempt {plan.attempt}, and {plan.host} does not count it")

    def all_there(self, agents: list[Agent]) -> bool:
        supervisor = agents[0].host.supervisor
        return supervisor is not None and len(agents) >= supervisor.plan.settings.min_nodes

    def invite(self, guide: int = 0) -> NodePlan:
        """The plan with which another host may begin, from the plan that ``guide`` has now (``joined_plan``)."""
        supervisor = self.hosts[guide].supervisor
        assert supervisor
        return self.place_after(supervisor.plan)

    @staticmethod
    def place_after(plan: NodePlan) -> NodePlan:
        """The plan of the host that joins next."""
        member = len(plan.peers)
        name = f"gpu{member:02}"
        return with_peer(plan, Peer(name, f"10.0.0.{member}", 1))._replace(
            node=f"{member}-{name}", node_rank=member, member=member, host=name, joined=True, standby=False, store=None
        )

    def arrive(self, plan: NodePlan, forked_after: float = 0.0) -> Host:
        """A host begins with this plan; its agent is forked so many seconds later."""
        self.say(f"{plan.host} arrives for attempt {plan.attempt}")
        host, until = Host(self, plan, 0.0), self.clock.now + forked_after
        self.hosts.append(host)
        host.begin()
        supervisor: Any = host.supervisor
        supervisor.spool.attempt = plan.attempt
        supervisor.children.forking = lambda: self.clock.now < until
        return host


def join_at_random(simulation: Simulation, faults: Faults) -> None:
    """One or two hosts are invited, and begin a moment or many seconds later; often hosts meet faults meanwhile."""
    assert isinstance(simulation, RunWithRoom)
    run, chance = simulation, simulation.random

    def invite() -> None:
        guides = [host for host in run.hosts if host.on and host.supervisor and host.supervisor.phase in GUIDES]
        if guides:
            guide = guides[0]
            plan = run.invite(run.hosts.index(guide))
            run.clock.at(run.clock.now + chance.choice((0.05, 0.5, 2.0, 5.0, 9.0)), lambda: arrive(guide, plan))

    def arrive(guide: Host, plan: NodePlan) -> None:
        """It begins unless another one has the place."""
        taken = any(host.first_plan.member == plan.member for host in run.hosts)
        if not taken and guide.supervisor and len(guide.supervisor.plan.peers) == plan.member:
            run.touched.add(plan.member)
            run.arrive(plan, chance.choice((0.0, 0.0, chance.uniform(0, 8))))

    for _ in range(chance.choice((1, 1, 2))):
        run.clock.at(chance.uniform(2.5, 20), invite)
    if chance.random() < 0.8:
        choose_faults(run, faults)
