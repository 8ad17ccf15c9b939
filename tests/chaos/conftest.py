"""The chaos suite's arena, and the table at its end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.chaos import beside
from tests.chaos.rounds import ROUNDS, SEED, dice
from tests.chaos.scene import Row, Scene, played, table
from tests.own_lab import own_lab
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from _pytest.terminal import TerminalReporter

    from tests.chaos.beside import Lost
    from tests.lab import Lab
    from tests.lab.host import LabHost

HOSTS = 3
ROWS: list[Row] = []


class Play(Protocol):
    """Begin a scenario of this name; on the arena's first hosts, unless others are given."""

    def __call__(
        self, scenario: str, hosts: int | Sequence[LabHost] = 2, lab: Lab | None = None
    ) -> AbstractContextManager[Scene]: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of it runs on a lab and starts torchrun; what plays beside the rest is asked for last."""
    ours = [item for item in items if "chaos" in item.path.parts]
    for item in ours:
        item.add_marker(pytest.mark.lab)
        item.add_marker(pytest.mark.torch)
    places = [place for place, item in enumerate(items) if item in set(ours)]
    for place, item in zip(places, sorted(ours, key=lambda item: _lost(item) is not None), strict=True):
        items[place] = item


def _lost(item: pytest.Item) -> tuple[Lost, int] | None:
    """The scenario that plays beside the rest, and its round, if that is what an item waits for."""
    if any(mark.args[0] for mark in item.iter_markers("skipif")) or any(item.iter_markers("skip")):
        return None
    params = getattr(getattr(item, "callspec", None), "params", {})
    return (params["lost"], params["number"]) if {"lost", "number"} <= set(params) else None


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """The seed, and the table of faults."""
    reports = [report for kind, found in terminalreporter.stats.items() if kind != "deselected" for report in found]
    if any("tests/chaos/" in getattr(report, "nodeid", "") for report in reports):
        terminalreporter.section(f"chaos: CLUSTERDDP_CHAOS_SEED={SEED}")
        terminalreporter.write("".join(f"{line}\n" for line in table(ROWS)))


@contextlib.contextmanager
def open_lab(hosts: int, **variants: Any) -> Iterator[Lab]:
    """A lab, or the reason why not as a skip; the variants are ``Lab``'s."""
    need_torch()
    with own_lab(hosts, **variants) as lab:
        yield lab


def begin(
    lab: Lab, hosts: Sequence[LabHost], folder: Path, scenario: str, number: int
) -> AbstractContextManager[Scene]:
    """A scenario of that name, in its nth round."""
    row = Row(scenario=scenario)
    ROWS.append(row)
    return played(lab, hosts, folder, dice(scenario, number), row)


@pytest.fixture(scope="package", autouse=True)
def begun_early(request: pytest.FixtureRequest) -> None:
    """What plays beside all others begins with the first of them; with pytest-xdist in the process that asks for it."""
    if not hasattr(request.config, "workerinput"):
        request.getfixturevalue("under_way")


@pytest.fixture(scope="package")
def under_way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[beside.UnderWay]:
    """The scenarios that play beside all others."""
    wanted = [lost for item in request.session.items if (lost := _lost(item))]
    if not wanted:
        yield {}
        return
    # Here, because pytest's factory is not meant for threads.
    folders = {(lost.name, number): tmp_path_factory.mktemp("lost") for lost, number in wanted}
    with open_lab(sum({lost.name: lost.hosts for lost, _ in wanted}.values())) as lab:

        def one(hosts: Sequence[LabHost], name: str, number: int) -> AbstractContextManager[Scene]:
            return begin(lab, hosts, folders[name, number], name, number)

        with beside.under_way(wanted, lab, one) as futures:
            yield futures


@pytest.fixture(scope="package")
def arena() -> Iterator[Lab]:
    """Hosts to be broken; each scenario leaves them mended."""
    with open_lab(HOSTS) as lab:
        yield lab


@pytest.fixture(params=range(ROUNDS), ids=lambda number: f"round{number}")
def play(request: pytest.FixtureRequest, arena: Lab, tmp_path_factory: pytest.TempPathFactory) -> Play:
    """What begins a scenario."""

    def one(scenario: str, hosts: int | Sequence[LabHost] = 2, lab: Lab | None = None) -> AbstractContextManager[Scene]:
        own = lab or arena
        chosen = own.hosts[:hosts] if isinstance(hosts, int) else hosts
        return begin(own, chosen, tmp_path_factory.mktemp("chaos"), scenario, request.param)

    return one
