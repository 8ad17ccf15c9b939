"""Scenarios that mostly wait, played in threads beside the rest of the suite."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from tests.chaos.scene import Scene
    from tests.lab import Lab
    from tests.lab.host import LabHost

STARTING = threading.Semaphore(2)  # held while a run starts: each has two or three torchruns; waiting costs nothing
UnderWay = dict[tuple[str, int], Future[None]]
LONGEST = 280.0  # seconds that a test waits for its scenario; whatever that waits for has an end of its own


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """A scenario on ``hosts`` hosts of its own."""

    name: str
    hosts: int
    play: Callable[[Scene], None]


def outcome(playing: Future[None], what: str) -> None:
    """Raise what a scenario raised; and where it has not ended in time."""
    try:
        playing.result(LONGEST)
    except TimeoutError:
        if playing.done():  # it is the scenario's own
            raise
        raise AssertionError(f"{what}: it had not ended after {LONGEST:g} s") from None


@contextlib.contextmanager
def under_way(
    wanted: Sequence[tuple[Lost, int]],
    lab: Lab,
    begin: Callable[[Sequence[LabHost], str, int], AbstractContextManager[Scene]],
) -> Iterator[UnderWay]:
    """Play each scenario in each of its rounds, the rounds of one after each other.

    Args:
        wanted: Scenarios and numbers of rounds.
        lab: As many hosts as all these scenarios have together.
        begin: Begins a scenario: its hosts, name and round.
    """
    scenarios = {lost.name: lost for lost, _ in wanted}
    locks = {name: threading.Lock() for name in scenarios}
    spare = iter(lab.hosts)
    hosts = {name: [next(spare) for _ in range(lost.hosts)] for name, lost in scenarios.items()}

    def one(lost: Lost, number: int) -> None:
        with locks[lost.name], begin(hosts[lost.name], lost.name, number) as scene:
            lost.play(scene)

    pool = ThreadPoolExecutor(max(len(scenarios), 1))
    try:
        rounds = sorted(wanted, key=lambda pair: pair[1])
        yield {(lost.name, number): pool.submit(one, lost, number) for lost, number in rounds}
    finally:
        pool.shutdown(cancel_futures=True)
