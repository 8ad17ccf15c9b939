"""A stop that reaches one host alone, in virtual time: it ends the run on all of them, whatever that host does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from clusterddp.remote.shared.verdict.failures import FAIL_FAST_REASON
from clusterddp.remote.supervisor import attempt_end
from clusterddp.remote.supervisor.node import Phase
from tests.unit.simulated.run import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.simulated.faults import Faults


def last_children(simulation: Simulation, **instead: Any) -> None:
    """Replace methods of the last host's children, before its first turn."""
    host = simulation.hosts[2]
    simulation.clock.at(host.begins, lambda: vars(host.supervisor.children).update(instead))  # type: ignore[union-attr]


def fork_late(simulation: Simulation, _: Faults) -> None:
    """The last host's agent is forked long after the others'."""
    last_children(simulation, forking=lambda: simulation.clock.now < 20)


def end_early(simulation: Simulation, _: Faults) -> None:
    """The last host's agent ends well long before the others'."""
    simulation.clock.at(5.0, lambda: simulation.hosts[2].agent.end(0))  # type: ignore[union-attr]


def clear_for_long(simulation: Simulation, faults: Faults) -> None:
    """The last host's agent ends well, and what it leaves takes long to end."""
    end_early(simulation, faults)
    cleanup = SimpleNamespace(step=lambda: None if simulation.clock.now < 20 else [])
    last_children(simulation, end=lambda _: cleanup)


@pytest.mark.parametrize("relaunches", [0, 2])
@pytest.mark.parametrize(
    ("before", "phases"),
    [
        (lambda *_: None, {Phase.RUNNING}),
        (fork_late, {Phase.STARTING}),
        (end_early, {Phase.CONCLUDING, Phase.BETWEEN}),
        (clear_for_long, {Phase.CLEARING}),
    ],
    ids=["running", "starting", "its part has ended", "clearing"],
)
def test_a_stop_that_is_told_to_one_host_alone_reaches_all_whatever_it_does(
    before: Callable[[Simulation, Faults], None], phases: set[Phase], relaunches: int
) -> None:
    working: list[int] = []

    def stop(simulation: Simulation) -> None:
        supervisor = simulation.hosts[2].supervisor
        assert supervisor
        assert supervisor.phase in phases
        simulation.stop(simulation.hosts[2])

    def script(simulation: Simulation, faults: Faults) -> None:
        before(simulation, faults)
        simulation.clock.at(7.0, lambda: stop(simulation))
        simulation.clock.at(10.0, lambda: working.append(simulation.agents_running()))

    simulation = Simulation(
        0, 3, script=script, spares=0, elastic=True, fewest=2, busy=0.0, work=30.0, relaunches=relaunches
    )
    simulation.run()
    assert not any(working)
    assert {verdict.state for host in simulation.hosts for verdict in host.verdicts} == {"stopped"}


@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize(("told", "in_contact"), [(2, True), (2, False), (0, False)])
def test_a_stop_that_is_told_to_one_host_alone_while_it_waits_for_contact_reaches_all(
    told: int, *, in_contact: bool, elastic: bool
) -> None:
    def script(simulation: Simulation, _: Faults) -> None:
        def look() -> None:
            supervisor = simulation.hosts[told].supervisor
            waits = supervisor and supervisor.phase is Phase.WAITING and supervisor.conditions.ready
            if supervisor and waits and bool(supervisor.control.connected) == in_contact:
                simulation.stop(simulation.hosts[told])
            else:
                simulation.clock.at(simulation.clock.now + 0.001, look)

        simulation.clock.at(0.01, look)

    for seed in range(3):
        simulation = Simulation(seed, 3, script=script, spares=0, elastic=elastic, fewest=2, busy=0.0, relaunches=2)
        simulation.run()
        assert simulation.stopped
        assert not simulation.agents
        assert {verdict.state for host in simulation.hosts for verdict in host.verdicts} == {"stopped"}


def told_to_end(told: tuple[int, ...], count: int, **given: Any) -> tuple[Simulation, list[int]]:
    """A run with hosts that shut down, so that their supervisors get SIGTERM: the run, at its end; who left at once."""
    left: list[int] = []

    def terminate(simulation: Simulation) -> None:
        for member in told:
            supervisor = simulation.hosts[member].supervisor
            assert supervisor
            simulation.touched.add(member)
            supervisor.conditions.terminated = True

    def script(simulation: Simulation, _: Faults) -> None:
        simulation.clock.at(7.0, lambda: terminate(simulation))
        simulation.clock.at(15.0, lambda: left.extend(m for m in told if simulation.hosts[m].supervisor is None))

    simulation = Simulation(0, count, script=script, busy=0.0, work=30.0, **{"spares": 0, "elastic": False, **given})
    simulation.run()
    return simulation, left


@pytest.mark.parametrize(
    ("told", "attempt", "given"),
    [
        (2, 1, {"elastic": True, "fewest": 2, "relaunches": 2}),
        (2, 1, {"elastic": True, "fewest": 2, "relaunches": 0}),
        (0, 2, {"elastic": True, "fewest": 2, "relaunches": 2}),
        (1, 2, {"spares": 1, "relaunches": 2}),
        (2, 1, {"spares": 1, "relaunches": 2}),
    ],
    ids=["elastic", "elastic, without relaunches", "the one with the store, which leads", "a spare follows", "a spare"],
)
def test_a_host_that_shuts_down_leaves_a_run_that_goes_on_without_it(
    told: int, attempt: int, given: dict[str, Any]
) -> None:
    simulation, left = told_to_end((told,), 3, **given)
    assert (simulation.judged.state, simulation.judged.attempt) == ("succeeded", attempt)
    assert left == [told]  # its shutdown does not wait for the run


@pytest.mark.parametrize(
    ("told", "given"),
    [
        (1, {"relaunches": 0}),
        (0, {"elastic": True, "fewest": 2, "relaunches": 0}),
        (1, {"relaunches": 2}),
    ],
    ids=["a fixed size", "the one with the store", "no other host to take its place"],
)
def test_a_host_that_shuts_down_ends_a_run_that_needs_it_and_is_named(told: int, given: dict[str, Any]) -> None:
    simulation, _ = told_to_end((told,), 3, **given)
    assert simulation.judged.state == "failed"  # nobody has stopped it
    assert f"the supervisor of gpu{told:02} was told to end (SIGTERM)" in simulation.judged.line
    assert all(host.verdicts for host in simulation.hosts)


@pytest.mark.parametrize(
    ("told", "given"),
    [
        ((1, 2), {"elastic": True, "fewest": 2}),
        ((0, 1), {"elastic": True, "fewest": 2}),
        ((1, 2), {"spares": 1}),
        ((0, 1, 2), {"spares": 1}),
        ((0, 1, 2), {}),
    ],
    ids=["the others of an elastic job", "most of it", "a spare too", "all, of a run with a spare", "all"],
)
def test_hosts_that_shut_down_at_once_are_why_the_run_has_failed(told: tuple[int, ...], given: dict[str, Any]) -> None:
    simulation, _ = told_to_end(told, 3, relaunches=2, **given)
    verdicts = [host.verdicts[0] for host in simulation.hosts if host.verdicts]
    assert verdicts
    for verdict in verdicts:
        assert (verdict.state, "was told to end (SIGTERM)" in verdict.line) == ("failed", True), verdict.line


@pytest.mark.parametrize(
    ("cause", "said"), [("rank 2: ValueError: NaN", "rank 2: ValueError: NaN"), ("", "the agent ended with 1")]
)
def test_a_host_that_fails_and_then_loses_power_is_why_the_run_has_failed(cause: str, said: str) -> None:
    """Only its status has come; that the others were told to end because of it is no stop."""

    def script(simulation: Simulation, faults: Faults) -> None:
        first, second, third = simulation.hosts
        for host in (first, second):
            faults.at(6.0, faults.hangs, host)
        faults.at(7.0, faults.agent_fails, third)
        faults.at(9.0, faults.power_cut, third)

    def cause_of(node: Any) -> tuple[bool, str]:
        return True, cause if node.member == 2 else FAIL_FAST_REASON

    simulation = Simulation(0, 3, script=script, spares=0, elastic=False, busy=0.0, work=40.0, relaunches=2)
    with mock.patch.object(attempt_end, "_cause", cause_of):
        simulation.run()
    assert (simulation.judged.state, simulation.judged.exit_code) == ("failed", 125)
    assert simulation.judged.line == f"torchrun failed on gpu02 before any worker did: {said}"
