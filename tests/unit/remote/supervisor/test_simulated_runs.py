"""Whole runs in virtual time: never two attempts at once, one verdict, nothing left, whatever happens to hosts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from clusterddp.remote.supervisor import relaunch
from clusterddp.remote.supervisor.node import Phase
from clusterddp.remote.supervisor.relaunch import ALONE_TIMEOUT
from clusterddp.remote.supervisor.stop_conditions import LIMITS_RELAUNCH
from tests.unit.simulated.__main__ import by_cuts, check_cuts
from tests.unit.simulated.faults import BOTH, lose_in_turn
from tests.unit.simulated.network import Weather
from tests.unit.simulated.run import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.remote.shared.run.plan import NodePlan
    from tests.unit.simulated.faults import Faults
    from tests.unit.simulated.host import Host
    from tests.unit.simulated.parts import Agent

SEEDS, SHARE = 200, 20


@pytest.mark.parametrize("first", range(0, SEEDS, SHARE))
def test_whatever_happens_there_is_one_attempt_at_once_one_verdict_and_nothing_left(first: int) -> None:
    for seed in range(first, first + SHARE):
        Simulation(seed).run()


def test_a_leader_that_was_stopped_does_not_judge_what_the_others_have_judged() -> None:
    def script(_: Simulation, faults: Faults) -> None:
        faults.at_leader(0.5, lambda host: host.stop_processes(16.0, BOTH), Phase.CLEARING)

    for seed in range(3):
        simulation = Simulation(seed, 5, script=script, spares=1, busy=0.0)
        simulation.run()
        assert simulation.judged.writer == "gpu01"


def test_a_spare_that_the_end_of_a_run_left_alone_does_not_judge_it_for_all() -> None:
    def script(_: Simulation, faults: Faults) -> None:
        faults.at_leader(0.5, faults.supervisor_killed, Phase.CONCLUDING)

    for seed in range(3):
        Simulation(seed, 3, script=script, spares=1, busy=0.0, work=5.0).run()


def test_no_attempt_begins_while_the_one_before_runs_though_a_spare_is_lost() -> None:
    def script(simulation: Simulation, faults: Faults) -> None:
        faults.at(5.0, faults.supervisor_killed, simulation.hosts[4])
        faults.at(9.0, faults.hangs, simulation.hosts[2])
        faults.at(10.0, faults.agent_fails, simulation.hosts[1])

    simulation = Simulation(0, 5, script=script, spares=1, work=15.0)
    simulation.run()
    assert simulation.judged.attempt == 2


def test_a_spare_that_gave_up_without_a_majority_is_not_chosen_when_it_is_back() -> None:
    def script(simulation: Simulation, faults: Faults) -> None:
        simulation.hosts[1].power_off()  # before it begins: it counts as lost after half a minute
        faults.at(19.0, lambda host: faults.apart({host.address}, ALONE_TIMEOUT + 1.5), simulation.hosts[0])

    for seed in range(3):
        simulation = Simulation(seed, 3, script=script, spares=1, elastic=False, busy=0.0)
        simulation.run()
        assert {agent.attempt for agent in simulation.agents} == {1}


def test_the_store_of_a_host_that_was_stopped_waits_for_no_node_of_a_later_attempt() -> None:
    def script(simulation: Simulation, faults: Faults) -> None:
        faults.at(4.8, lambda host: host.stop_processes(12.0, BOTH), simulation.hosts[0])

    for seed in range(3):
        simulation = Simulation(seed, 5, script=script, spares=1, elastic=True, fewest=3, busy=0.0, work=20.0)
        simulation.run()
        assert simulation.judged.attempt == 2


def test_a_spare_that_outlives_all_others_ends_and_judges_nothing() -> None:
    def script(simulation: Simulation, faults: Faults) -> None:
        faults.at(10.0, faults.both_killed, simulation.hosts[0])
        faults.at(15.0, faults.power_cut, simulation.hosts[1])  # before it is told to end its part

    simulation = Simulation(0, 3, script=script, spares=1, elastic=False, work=25.0)
    simulation.run()
    assert simulation.hosts[2].finished
    assert not simulation.hosts[2].verdicts


def cut_off_when_it_has_judged(simulation: Simulation, faults: Faults) -> None:
    """The leader, as soon as it knows all ends; its verdict is on the way then."""
    simulation.network.weather = Weather(delay=0.4)

    def look() -> None:
        for host in simulation.hosts:
            if host.supervisor and host.supervisor.conclusion._parts:
                faults.apart({host.address}, 30.0)
                simulation.touched.add(host.first_plan.member)
                return
        simulation.clock.at(simulation.clock.now + 0.001, look)

    simulation.clock.at(1.0, look)


def test_of_a_leader_that_is_cut_off_when_it_has_judged_and_the_next_one_only_one_has_a_majority() -> None:
    for seed in range(10):
        simulation = Simulation(seed, 5, script=cut_off_when_it_has_judged, spares=0, elastic=False, busy=0.0)
        simulation.run()
        (cut_off,) = simulation.touched
        kept = [host.verdicts[0] for host in simulation.hosts]
        confirmed = [verdict.writer for verdict in kept if verdict.confirmed]
        assert kept[cut_off].writer == f"gpu{cut_off:02}" not in confirmed
        assert len(set(confirmed)) == 1
        assert len(confirmed) > 2


def test_a_verdict_without_contact_says_whose_ends_were_known() -> None:
    def script(simulation: Simulation, faults: Faults) -> None:
        faults.at(5.0, faults.power_cut, simulation.hosts[1])
        faults.at(5.0, faults.supervisor_killed, simulation.hosts[2])

    simulation = Simulation(1, 3, script=script, spares=0, elastic=False)
    simulation.run()
    (verdict,) = simulation.hosts[0].verdicts
    assert (verdict.reported, verdict.missing, verdict.confirmed) == (("gpu00", "gpu02"), ("gpu01",), False)


def test_a_run_of_fifty_hosts_has_one_attempt_at_once_and_one_verdict() -> None:
    simulation = Simulation(3, 50, work=3.0)
    simulation.run()
    assert simulation.judged


def test_one_run_outlives_fifty_losses_of_hosts_that_come_back() -> None:
    simulation = Simulation(
        0, 4, script=lose_in_turn, spares=1, elastic=False, busy=0.0, relaunches=60, longest=3600.0, work=5.0
    )
    simulation.run()
    assert (simulation.losses, simulation.judged.state, simulation.judged.attempt) == (0, "succeeded", 51)
    assert all(host.finished for host in simulation.hosts)


@pytest.mark.parametrize("seed", [4, 19, 21])
def test_a_host_that_was_only_cut_off_and_is_back_does_not_end_the_attempt_of_the_others(seed: int) -> None:
    simulation = by_cuts(seed)
    simulation.run()
    check_cuts(simulation)


def test_hosts_that_end_well_while_they_are_told_to_end_do_so_again_in_the_next_attempt() -> None:
    simulation = Simulation(4, 8, script=lose_in_turn, spares=1, relaunches=5)
    simulation.losses = 3  # the last one ends the parts of the others while their agents end by themselves
    simulation.run()
    assert (simulation.losses, simulation.judged.state) == (0, "succeeded")


def test_hosts_that_were_all_cut_off_from_each_other_go_on_together_when_they_are_back() -> None:
    def script(simulation: Simulation, faults: Faults) -> None:
        for host in simulation.hosts:
            faults.at(12.0, lambda one: faults.apart({one.address}, 10.0), host)  # longer than a lost node is given

    for seed in range(3):
        simulation = Simulation(seed, 5, script=script, spares=1, elastic=False, work=25.0)
        simulation.run()
        assert (simulation.judged.state, simulation.judged.attempt) == ("succeeded", 2)
        again = {agent.host for agent in simulation.agents if agent.attempt == 2}
        assert len(again) == 4
        assert len(again & set(simulation.hosts[:4])) >= 3, "a spare takes the place of one that is back too late"


def led_by_a_spare(seed: int, script: Callable[[Simulation, Faults], None], work: float = 60.0) -> Simulation:
    """A run of two nodes whose three spares are there first, so one of those leads."""

    def begun(simulation: Simulation, faults: Faults) -> None:
        simulation.clock.at(11.0, lambda: led.append(simulation.leader))
        script(simulation, faults)

    led: list[Host | None] = []
    simulation = Simulation(seed, 5, script=begun, spares=3, elastic=False, busy=0.0, work=work)
    for host in simulation.hosts[:2]:
        host.begins = 8.0
    simulation.run()
    assert led[0]
    assert led[0].first_plan.standby
    return simulation


def test_a_spare_that_leads_notices_that_a_node_is_lost() -> None:
    for seed in range(3):
        simulation = led_by_a_spare(seed, lambda run, faults: faults.at(15.0, faults.power_cut, run.hosts[1]))
        assert (simulation.judged.state, simulation.judged.attempt) == ("succeeded", 2)


def test_a_spare_that_leads_waits_for_the_nodes_of_a_later_attempt_too() -> None:
    for seed in range(3):
        simulation = led_by_a_spare(seed, lambda run, faults: faults.at(50.0, faults.agent_killed, run.hosts[0]))
        assert (simulation.judged.state, simulation.judged.attempt) == ("succeeded", 2)


@pytest.mark.parametrize("kind", ["power_cut", "agent_killed"])
def test_a_spare_that_has_led_for_minutes_gives_nodes_their_time_to_end_an_attempt(kind: str) -> None:
    for seed in range(2):
        simulation = led_by_a_spare(
            seed, lambda run, faults: faults.at(150.0, getattr(faults, kind), run.hosts[1]), work=200.0
        )
        assert (simulation.judged.state, simulation.judged.attempt) == ("succeeded", 2)


def ended_long_before_the_others(relaunches: int, then: Callable[[Simulation, Faults], None]) -> Simulation:
    """A run in which the first node's agent ends well minutes before ``then``; the second's will not heed SIGTERM.

    Without an agent that fails the run would go on for ever, and what follows an attempt takes seconds.
    """

    def script(simulation: Simulation, faults: Faults) -> None:
        def end_well() -> None:
            assert first.agent
            first.agent.end(0)

        clock, (first, second, _) = simulation.clock, simulation.hosts
        clock.at(10.0, end_well)
        faults.at(499.0, faults.hangs, second)
        clock.at(500.0, lambda: setattr(simulation, "work", 5.0))
        clock.at(500.0, lambda: then(simulation, faults))

    simulation = Simulation(
        3, 3, script=script, spares=0, elastic=False, busy=0.0, work=float("inf"), relaunches=relaunches
    )
    simulation.run()
    return simulation


def test_a_node_that_has_ended_long_before_gives_the_others_their_time_when_one_of_them_fails() -> None:
    simulation = ended_long_before_the_others(1, lambda run, faults: faults.strike(run.hosts[2], faults.agent_killed))
    assert (simulation.judged.state, simulation.judged.attempt) == ("succeeded", 2)


def test_a_leader_that_has_ended_long_before_gives_the_others_their_time_to_tell_how_they_were_stopped() -> None:
    simulation = ended_long_before_the_others(0, lambda run, _: run.stop(run.hosts[2]))
    assert (simulation.judged.state, simulation.judged.missing) == ("stopped", ())


def test_a_leader_that_has_ended_long_before_hears_how_another_one_has_failed() -> None:
    simulation = ended_long_before_the_others(0, lambda run, faults: faults.strike(run.hosts[2], faults.agent_fails))
    assert simulation.judged.line == "torchrun failed on gpu02 before any worker did: the agent ended with 1"
    assert simulation.judged.missing == ()


def test_a_leader_loses_power_and_the_next_attempt_begins_as_soon_as_it_is_lost() -> None:
    def script(_: Simulation, faults: Faults) -> None:
        faults.at_leader(8.0, faults.power_cut)

    for seed in range(8):
        simulation = Simulation(seed, 5, script=script, spares=1, elastic=False, busy=0.0, work=25.0)
        simulation.run()
        (lost,) = [line for line in simulation.history if "power_cut" in line]
        began = max(agent.began for agent in simulation.agents if agent.attempt == 2)
        assert LIMITS_RELAUNCH.lost - 1 < began - float(lost.split()[0]) < LIMITS_RELAUNCH.lost + 0.5


def test_an_agent_has_its_lease_though_supervisor_and_fence_are_stopped_as_it_begins() -> None:
    def script(simulation: Simulation, faults: Faults) -> None:
        begun = simulation.begun

        def stop_with_it(agent: Agent) -> None:
            begun(agent)
            if agent.attempt == 1 and agent.host is simulation.hosts[1]:
                faults.strike(agent.host, lambda host: host.stop_processes(60.0, BOTH))

        vars(simulation)["begun"] = stop_with_it

    for seed in range(8):
        simulation = Simulation(seed, 5, script=script, spares=1, elastic=False, busy=0.0, work=25.0)
        simulation.run()
        assert simulation.judged.attempt == 2


def test_a_host_without_a_fence_is_in_no_later_attempt_however_late_it_leaves() -> None:
    def script(simulation: Simulation, faults: Faults) -> None:
        host, clock = simulation.hosts[1], simulation.clock
        faults.at(6.0, faults.fence_killed, host)

        def stall_its_last_record() -> None:
            if host.supervisor and host.supervisor.phase is Phase.BETWEEN:
                host.stalled_until = clock.now + 4.0
            elif clock.now < 20:
                clock.at(clock.now + 0.001, stall_its_last_record)

        clock.at(6.0, stall_its_last_record)

    for seed in range(4):
        simulation = Simulation(seed, 3, script=script, spares=1, elastic=False, busy=0.0, work=15.0, relaunches=1)
        simulation.run()
        assert (simulation.judged.state, simulation.judged.attempt) == ("succeeded", 2)


def test_a_leader_whose_connections_are_reset_as_the_run_ends_gives_all_one_verdict() -> None:
    def script(_: Simulation, faults: Faults) -> None:
        faults.at_leader(0.5, faults.connections_reset, Phase.CONCLUDING)

    for seed in range(40):
        simulation = Simulation(seed, 9, script=script, spares=0)
        simulation.run()
        assert len({one.writer for host in simulation.hosts for one in host.verdicts}) == 1, seed


class Carrying(Simulation):
    """A run whose spare gets the paths to carry only after minutes."""

    arrived = 420.0  # seconds from the start of the run until they are there

    def plans(self, count: int) -> list[NodePlan]:
        plans = super().plans(count)
        return [plan._replace(host_settings=plan.host_settings._replace(carry=("ckpt/last",))) for plan in plans]

    def run(self) -> None:
        clock, fetched = self.clock, self.arrived

        class Fetcher:
            done = property(lambda _: clock.now >= fetched)

            def __init__(self, *_: object) -> None: ...

        server = SimpleNamespace(port=29499, close=lambda: None)
        with (
            mock.patch.object(relaunch, "ReplicaFetcher", Fetcher),
            mock.patch.object(relaunch, "ReplicaServer", return_value=server),
        ):
            super().run()


def test_an_attempt_that_ends_while_paths_are_carried_to_a_spare_is_followed_by_one_with_that_spare() -> None:
    def script(simulation: Simulation, faults: Faults) -> None:
        faults.at(5.0, faults.power_cut, simulation.hosts[1])
        faults.at(60.0, faults.agent_killed, simulation.hosts[2])

    simulation = Carrying(0, 4, script=script, spares=1, elastic=False, busy=0.0, work=20.0, relaunches=5)
    simulation.run()
    assert (simulation.judged.state, simulation.judged.attempt) == ("succeeded", 3)
    begun = {agent.attempt: agent.began for agent in simulation.agents if agent.host is simulation.hosts[3]}
    assert begun.keys() == {3}
    assert simulation.arrived < begun[3] < simulation.arrived + 10


@pytest.mark.parametrize(("relaunches", "curable"), [(1, True), (5, False)], ids=["all relaunches used", "incurable"])
def test_an_attempt_that_none_can_follow_ends_at_once_though_paths_are_carried_to_a_spare(
    relaunches: int, *, curable: bool
) -> None:
    def fail(host: Host) -> None:
        supervisor: Any = host.supervisor
        supervisor.children.start_error = "" if curable else "no interpreter"
        supervisor.children.agent_exit, host.agent = 1, None

    def script(simulation: Simulation, faults: Faults) -> None:
        faults.at(5.0, faults.power_cut, simulation.hosts[1])
        faults.at(60.0, fail, simulation.hosts[2])

    simulation = Carrying(0, 4, script=script, spares=1, elastic=False, busy=0.0, work=90.0, relaunches=relaunches)
    simulation.run()
    assert (simulation.judged.state, simulation.judged.attempt) == ("failed", 2)
    assert simulation.clock.now < 90


def test_a_stop_ends_a_run_at_once_though_paths_are_carried_to_a_spare() -> None:
    def script(simulation: Simulation, faults: Faults) -> None:
        faults.at(5.0, faults.power_cut, simulation.hosts[1])
        simulation.clock.at(60.0, lambda: simulation.stop(simulation.hosts[0]))

    simulation = Carrying(0, 4, script=script, spares=1, elastic=False, busy=0.0, work=90.0, relaunches=5)
    simulation.run()
    assert (simulation.judged.state, simulation.judged.attempt) == ("stopped", 2)
    assert simulation.clock.now < 90


@pytest.mark.parametrize("seed", [1308, 3345, 5445, 7869, 8050, 9569])
def test_what_was_broken_once_is_not_again(seed: int) -> None:
    Simulation(seed).run()


def test_a_seed_plays_the_same_run_again() -> None:
    first, second = Simulation(7), Simulation(7)
    first.run()
    second.run()
    assert first.history == second.history
