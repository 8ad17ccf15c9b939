"""Hosts that join an elastic run with relaunches, in virtual time: whatever happens meanwhile, it ends, as one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.supervisor.node import Phase
from tests.unit.simulated.joins import RunWithRoom, join_at_random

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.remote.shared.run.plan import NodePlan
    from tests.unit.simulated.faults import Faults

SEEDS, SHARE = 80, 20


def played(script: Callable[[Any, Faults], None], **given: Any) -> RunWithRoom:
    """A run of three hosts, to its end."""
    values = {"spares": 0, "elastic": True, "fewest": 3, "busy": 0.0, "work": 10.0, **given}
    simulation = RunWithRoom(0, 3, script=script, **values)
    simulation.run()
    return simulation


@pytest.mark.parametrize("first", range(0, SEEDS, SHARE))
def test_whatever_happens_while_hosts_join_it_is_one_run_that_ends(first: int) -> None:
    for seed in range(first, first + SHARE):
        RunWithRoom(seed, script=join_at_random, elastic=True).run()


def test_a_spare_that_reaches_the_next_leader_late_keeps_its_verdict_and_makes_none() -> None:
    """The leader is killed here as all have succeeded, and the next one judges before the spare has called it."""
    RunWithRoom(362, script=join_at_random, elastic=True).run()


@pytest.mark.parametrize(("joiners", "forked_after"), [(2, 0.0), (1, 20.0), (1, 0.0)])
def test_who_joins_through_a_host_that_is_cut_off_makes_no_majority_there(joiners: int, forked_after: float) -> None:
    def script(run: RunWithRoom, faults: Faults) -> None:
        run.parted = True
        run.touched.update((0, 3, 4))
        others = ("10.0.0.1", "10.0.0.2")
        blocked = {("10.0.0.0", other) for other in others} | {(other, "10.0.0.0") for other in others}
        run.clock.at(5.0, lambda: faults._block(blocked, 60.0))

        def join() -> None:
            plan = run.invite()
            for _ in range(joiners):
                run.arrive(plan, forked_after)
                plan = run.place_after(plan)

        run.clock.at(13.0, join)  # the others have begun attempt 2 without the host that is cut off

    simulation = played(script, fewest=1, work=40.0, relaunches=3)
    assert {agent.host.first_plan.member for agent in simulation.agents if agent.attempt == 2} >= {1, 2}
    assert simulation.judged.writer == "gpu01"


@pytest.mark.parametrize(("invited", "arrives"), [(3, 5.5), (5.2, 7), (5.2, 9), (3, 12), (9, 12), (3, 15)])
def test_a_run_ends_though_a_host_that_joins_was_invited_to_the_attempt_before(invited: float, arrives: float) -> None:
    def script(run: RunWithRoom, faults: Faults) -> None:
        plans: list[NodePlan] = []
        run.clock.at(invited, lambda: plans.append(run.invite()))
        run.clock.at(arrives, lambda: run.arrive(plans[0]))
        faults.at(5.0, faults.agent_killed, run.hosts[1])

    simulation = played(script)
    assert (simulation.judged.state, simulation.judged.attempt) == ("succeeded", 2)
    assert all(host.finished for host in simulation.hosts)


def test_a_host_that_joins_while_another_is_cut_off_counts_for_that_one_too_once_it_is_back() -> None:
    def script(run: Any, faults: Faults) -> None:
        run.parted = True
        run.touched.update(range(5))
        run.clock.at(5.0, lambda: faults.apart({"10.0.0.1"}, 11.0))
        run.clock.at(14.0, lambda: run.arrive(run.invite()))  # the others have begun attempt 2
        for host in (run.hosts[0], run.hosts[2]):
            run.clock.at(25.0, host.power_off)  # the spare that was cut off leads then

    simulation = RunWithRoom(0, 4, script=script, spares=1, elastic=True, fewest=3, busy=0.0, work=40.0, relaunches=5)
    simulation.run()
    assert (simulation.judged.state, simulation.judged.attempt) == ("succeeded", 3)
    assert {agent.host.first_plan.member for agent in simulation.agents if agent.attempt == 3} == {1, 3, 4}


def test_a_host_that_joins_while_a_stalled_disk_keeps_another_from_beginning_the_attempt_counts_there_too() -> None:
    def script(run: RunWithRoom, faults: Faults) -> None:
        run.touched.update(range(4))
        faults.at(5.0, faults.agent_killed, run.hosts[2])

        def stall() -> None:
            supervisor: Any = run.hosts[1].supervisor
            if supervisor.phase is Phase.BETWEEN:
                run.hosts[1].stalled_until = run.clock.now + 8.0
                run.clock.at(run.clock.now + 5.0, lambda: run.arrive(run.invite()))
            else:
                run.clock.at(run.clock.now + 0.01, stall)

        run.clock.at(5.0, stall)

    simulation = played(script, work=30.0)
    assert (simulation.judged.state, simulation.judged.attempt) == ("succeeded", 2)
    assert {agent.host.first_plan.member for agent in simulation.agents if agent.attempt == 2} == {0, 1, 2, 3}


@pytest.mark.parametrize("relaunches", [0, 3])
def test_a_host_that_joins_and_is_lost_before_its_first_status_hinders_nothing(relaunches: int) -> None:
    def script(run: RunWithRoom, faults: Faults) -> None:
        run.clock.at(5.0, lambda: run.arrive(run.invite(), forked_after=60.0))
        run.clock.at(11.0, lambda: faults.strike(run.hosts[3], faults.power_cut))

    simulation = played(script, work=30.0, relaunches=relaunches)
    assert (simulation.judged.state, simulation.judged.attempt) == ("succeeded", 1)


@pytest.mark.parametrize("pause", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("relaunches", [0, 3])
def test_of_two_hosts_that_join_as_the_same_member_one_takes_part(relaunches: int, pause: float) -> None:
    def script(run: RunWithRoom, _: Faults) -> None:
        def join() -> None:
            plan = run.invite()
            run.touched.add(plan.member)
            peer = plan.peers[-1]._replace(host="gpu09", address="10.0.0.9")
            other = plan._replace(host=peer.host, peers=(*plan.peers[:-1], peer))
            run.arrive(plan)
            run.clock.at(run.clock.now + pause, lambda: run.arrive(other))

        run.clock.at(5.0, join)
        run.clock.at(20.0, lambda: working.extend(host for host in run.hosts if host.agent and host.agent.runs))

    working: list[Any] = []
    simulation = played(script, work=30.0, relaunches=relaunches)
    assert (simulation.judged.state, simulation.judged.attempt) == ("succeeded", 1)
    assert [host.first_plan.member for host in working] == [0, 1, 2, 3]
    if pause:
        assert working[-1].first_plan.host == "gpu03"


def test_hosts_that_join_through_a_host_that_is_cut_off_give_its_verdict_no_majority() -> None:
    def script(run: RunWithRoom, faults: Faults) -> None:
        run.parted = True
        run.touched.update(range(5))
        pairs = {(f"10.0.0.{inside}", f"10.0.0.{outside}") for inside in (1, 3, 4) for outside in (0, 2)}
        run.clock.at(5.0, lambda: faults._block(pairs | {(b, a) for a, b in pairs}, 200.0))

        def join() -> None:
            plan = run.invite(1)
            for _ in range(2):
                run.arrive(plan)
                plan = run.place_after(plan)

        run.clock.at(13.0, join)
        run.clock.at(14.0, lambda: run.stop(run.hosts[0]))

    simulation = played(script, fewest=1, relaunches=0)
    assert simulation.judged.writer == "gpu00"
    kept = {host.first_plan.host: host.verdicts[0].by_majority for host in simulation.hosts if host.verdicts}
    assert kept == {"gpu00": True, "gpu01": False, "gpu02": True, "gpu03": False, "gpu04": False}
