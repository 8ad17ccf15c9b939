"""Play seeds, or one seed as it is told: ``python -m tests.unit.simulated SEEDS | --seed NUMBER``."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

from tests.unit.simulated.faults import choose_faults, cut_off_and_back, lose_in_turn
from tests.unit.simulated.joins import RunWithRoom, join_at_random
from tests.unit.simulated.run import Broken, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = 10  # seeds that a process plays at once


def by_faults(seed: int, *, told: bool = False) -> Simulation:
    """Hosts, faults and weather as the seed chooses them."""
    return Simulation(seed, told=told, script=choose_faults)


def by_losses(seed: int, *, told: bool = False) -> Simulation:
    """Hosts with spares, of which fifty are lost in turn and come back, in one run."""
    return Simulation(
        seed, 4 + seed % 5, told=told, script=lose_in_turn, spares=1 + seed % 2, relaunches=100, longest=7200.0
    )


def by_joins(seed: int, *, told: bool = False) -> Simulation:
    """An elastic run that hosts join, with faults as the seed chooses them."""
    return RunWithRoom(seed, told=told, script=join_at_random, elastic=True)


def by_cuts(seed: int, *, told: bool = False) -> Simulation:
    """An elastic run of which some hosts are cut off and back, while MIN or more are not."""
    return Simulation(
        seed, told=told, script=cut_off_and_back, elastic=True, spares=0, relaunches=(0, 1, 30)[seed % 3], work=120.0
    )


def check_cuts(simulation: Simulation) -> None:
    """Raise Broken unless the first attempt succeeded."""
    if simulation.judged is None or (simulation.judged.state, simulation.judged.attempt) != ("succeeded", 1):
        raise Broken(f"hosts that were cut off have ended the attempt of all: {simulation.judged}")


def check_losses(simulation: Simulation) -> None:
    """Raise Broken unless all hosts were lost in turn and the run still succeeded."""
    if simulation.losses or simulation.judged is None or simulation.judged.state != "succeeded":
        raise Broken(f"the run was lost with {simulation.losses} losses to come: {simulation.judged}")


SCRIPTS: dict[str, tuple[Callable[..., Simulation], Callable[[Simulation], object]]] = {
    "faults": (by_faults, lambda _: None),
    "losses": (by_losses, check_losses),
    "joins": (by_joins, lambda _: None),
    "cuts": (by_cuts, check_cuts),
}


def play(script: str, first: int, share: int) -> tuple[list[str], float]:
    """So many seeds from this one on: what was broken, and the seconds of virtual time."""
    broken, virtual = [], 0.0
    make, check = SCRIPTS[script]
    for seed in range(first, first + share):
        simulation = make(seed)
        try:
            simulation.run()
            check(simulation)
        except Broken as error:
            broken.append(f"seed {seed}: {error}")
        except Exception as error:  # noqa: BLE001 - a fault of the simulation: the loop catches all others
            broken.append(f"seed {seed}: {error!r}")
        virtual += simulation.clock.now
    return broken, virtual


def main() -> int:
    """Play them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=int, nargs="?", default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--script", choices=SCRIPTS, default="faults")
    given = parser.parse_args()
    if given.seed is not None:
        make, check = SCRIPTS[given.script]
        simulation = make(given.seed, told=True)
        simulation.run()
        check(simulation)
        return 0
    began, share = time.monotonic(), 1 if given.script == "losses" else SHARE
    count, hours = 0, 0.0
    with ProcessPoolExecutor(given.processes) as pool:
        work = functools.partial(play, given.script, share=share)
        for broken, virtual in pool.map(work, range(given.first, given.first + given.seeds, share)):
            count, hours = count + len(broken), hours + virtual / 3600
            for line in broken:
                print(line, flush=True)
    print(f"{given.seeds} seeds, {hours:.1f} h of virtual time, {time.monotonic() - began:.0f} s: {count} broken")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
