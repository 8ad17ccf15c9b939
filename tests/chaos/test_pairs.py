"""Every pair of a node's processes is killed, and stopped, at each phase of a run; see pairs.py.

`make chaos` plays all of them, once; else twelve. `-k` takes part of them. Hosts of their own, a few side by side.
"""

from __future__ import annotations

import os
import queue
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.chaos.beside import outcome
from tests.chaos.conftest import begin, open_lab
from tests.chaos.pairs import PAIRS, Pair, play
from tests.chaos.rounds import ROUNDS
from tests.lean import training_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.host import LabHost

HOSTS = 3
SIDE_BY_SIDE = int(os.environ.get("CLUSTERDDP_CHAOS_PAIRS") or 3)
ALWAYS = (
    ("waiting", ("supervisor", "fence"), "killed"),
    ("starting", ("supervisor", "fence"), "killed"),
    ("starting", ("fence", "agent"), "killed"),
    ("running", ("supervisor", "fence"), "killed"),
    ("running", ("supervisor", "fence"), "stopped"),
    ("running", ("supervisor", "agent"), "stopped"),
    ("running", ("supervisor", "store"), "killed"),
    ("running", ("shim", "worker"), "killed"),
    ("running", ("shim", "keeper"), "killed"),
    ("running", ("agent", "fork server"), "killed"),
    ("between", ("supervisor", "fence"), "killed"),
    ("concluding", ("supervisor", "fence"), "killed"),
)
UnderWay = dict[str, Future[None]]
LONG = pytest.mark.skipif(ROUNDS == 1, reason="`make chaos` plays all pairs")


def wanted(pair: Pair) -> bool:
    return (pair.phase, pair.roles, pair.how) in ALWAYS


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """All pairs that are asked for, under way."""
    items = [item for item in request.session.items if item.path == request.path]
    played = [item for item in items if not any(mark.args[0] for mark in item.iter_markers("skipif"))]
    params = [getattr(getattr(item, "callspec", None), "params", {}) for item in played]
    pairs = [each["pair"] for each in params if "pair" in each]
    folders = {pair.name: tmp_path_factory.mktemp("pair") for pair in pairs}
    variables = {"clusterddp_python": training_python(), "clusterddp_fork_server": True, "clusterddp_warm": 0}
    count = min(SIDE_BY_SIDE, len(pairs))
    with open_lab(count * HOSTS, variables=variables) as lab:
        arenas: queue.Queue[list[LabHost]] = queue.Queue()
        for place in range(count):
            arenas.put(lab.hosts[place * HOSTS : (place + 1) * HOSTS])

        def one(pair: Pair) -> None:
            hosts = arenas.get_nowait()  # as many as threads
            try:
                with begin(lab, hosts, folders[pair.name], pair.name, 0) as scene:
                    play(scene, pair)
            finally:
                arenas.put(hosts)

        pool = ThreadPoolExecutor(count)
        try:
            yield {pair.name: pool.submit(one, pair) for pair in pairs}
        finally:
            pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    "pair",
    [pytest.param(pair, id=pair.name, marks=() if wanted(pair) else LONG) for pair in PAIRS],
)
def test_two_processes_of_a_node(pair: Pair, played: UnderWay) -> None:
    outcome(played[pair.name], pair.name)


def test_the_twelve_that_are_always_played_are_among_all_pairs() -> None:
    assert sum(map(wanted, PAIRS)) == len(ALWAYS) == 12
