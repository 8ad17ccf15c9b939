"""The store of an elastic run whose first host failed, in virtual time: it ends with the last agent that needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.simulated.run import Simulation

if TYPE_CHECKING:
    from tests.unit.simulated.faults import Faults


@pytest.mark.parametrize("relaunches", [0, 30])
def test_a_run_ends_whose_first_host_failed_and_was_cut_off_and_another_was_lost(relaunches: int) -> None:
    def script(simulation: Simulation, faults: Faults) -> None:
        first = simulation.hosts[0]
        simulation.touched.add(0)
        faults.at(6.0, faults.agent_fails, first)
        simulation.clock.at(12.0, lambda: faults.apart({first.address}, 9.0))
        faults.at(40.0, faults.power_cut, simulation.hosts[3])

    given: dict[str, Any] = {"elastic": True, "fewest": 2, "spares": 0, "busy": 0.0, "work": 60.0}
    simulation = Simulation(0, 5, script=script, relaunches=relaunches, **given)
    simulation.run()
    assert simulation.judged.state == "succeeded"
