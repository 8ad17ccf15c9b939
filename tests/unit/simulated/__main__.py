"""Play seeds, or one seed as it is told: ``python -m tests.unit.simulated SEEDS | --seed NUMBER``."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.unit.simulated.run import Broken, Simulation

SHARE = 10  # seeds that a process plays at once


def play(first: int) -> tuple[list[str], float]:
    """So many seeds from this one on: what was broken, and the seconds of virtual time."""
    broken, virtual = [], 0.0
    for seed in range(first, first + SHARE):
        simulation = Simulation(seed)
        try:
            simulation.run()
        except Broken as error:
            broken.append(f"seed {seed}: {error}")
        except Exception as error:  # noqa: BLE001 - a fault of the simulation: the loop catches all others
            broken.append(f"seed {seed}: {error!r}")
        virtual += simulation.clock.now
    return broken, virtual


def main() -> int:
    """Play them."""
    if sys.argv[1] == "--seed":
        Simulation(int(sys.argv[2]), told=True).run()
        return 0
    seeds, began = int(sys.argv[1]), time.monotonic()
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    count, hours = 0, 0.0
    with ProcessPoolExecutor(int(sys.argv[3]) if len(sys.argv) > 3 else None) as pool:
        for broken, virtual in pool.map(play, range(first, first + seeds, SHARE)):
            count, hours = count + len(broken), hours + virtual / 3600
            for line in broken:
                print(line, flush=True)
    print(f"{seeds} seeds, {hours:.1f} h of virtual time, {time.monotonic() - began:.0f} s: {count} broken")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
