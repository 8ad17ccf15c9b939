"""Which hosts `Run.stop` asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import UnreachableError, UsageError
from clusterddp.inventory import HostEntry
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.runs.run import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

START = RunRecord(hosts=("gpu00", "gpu01"), run="abcdefghij", spares=("gpu08",))


class FollowedRun(Run):
    """A run as it was at its start; a look at it finds its record as it is now, or no host that answers."""

    now: RunRecord | None = None
    silent: tuple[str, ...] = ()
    state = RunState.STARTING  # of the host that answers

    def view(self, *_: object, **__: object) -> Any:
        if self.now is None:
            raise UnreachableError("gpu00", "no answer")
        nodes = [SimpleNamespace(record=self.now, state=self.state)]
        spools: dict[int, dict[str, str]] = {1: {"gpu00": "/s"}}
        return SimpleNamespace(
            nodes=nodes,
            record=self.now,
            attempt=1,
            spools=spools,
            current=spools[1],
            live=True,
            local_record=None,
            job=None,
            silent=self.silent,
            earlier=(),
        )


def started(asked: list[str], *, now: RunRecord | None = None, limited_to: Sequence[str] = ()) -> Run:
    """The run, whose launcher notes which hosts it is to stop; on the hosts of a limited inventory, or of all."""

    def cancel(_cluster: object, _run: str, hosts: Sequence[str], **_: object) -> list[Any]:
        asked.extend(hosts)
        return []

    hosts = tuple(HostEntry(name=name, address=name) for name in limited_to)
    inventory = SimpleNamespace(hosts=hosts, pattern=",".join(limited_to), path="inventory.yaml")
    site: Any = SimpleNamespace(launcher_of=lambda _: SimpleNamespace(cancel=cancel), inventory=inventory)
    run = FollowedRun(site, "abcdefghij", 1, dict.fromkeys(limited_to or START.hosts, "/s"), START)
    run.now = now
    return run


@pytest.mark.parametrize("hosts", ["gpu00, gpu01", "gpu00,gpu01,", ["gpu00", "gpu01"], ("gpu00", " gpu01 ", "gpu00")])
def test_the_hosts_that_are_named_alone_are_asked(hosts: str | Sequence[str]) -> None:
    asked: list[str] = []
    started(asked).stop(hosts=hosts)
    assert asked == ["gpu00", "gpu01"]


@pytest.mark.parametrize("hosts", [" ", ",", [""], (" ", "")])
def test_hosts_without_a_name_are_refused_and_none_is_asked(hosts: str | Sequence[str]) -> None:
    asked: list[str] = []
    with pytest.raises(UsageError, match="hosts names no host"):
        started(asked).stop(hosts=hosts)
    assert asked == []


@pytest.mark.parametrize("hosts", ["", (), []])
def test_empty_hosts_are_all(hosts: str | Sequence[str]) -> None:
    asked: list[str] = []
    started(asked).stop(hosts=hosts)
    assert asked == ["gpu00", "gpu01", "gpu08"]


def test_a_host_that_joined_the_run_since_its_start_and_one_that_was_lost_are_asked_too() -> None:
    asked: list[str] = []
    started(asked, now=START._replace(hosts=("gpu00", "gpu02"), lost=("gpu01", "gpu03"))).stop()
    assert asked == ["gpu00", "gpu01", "gpu02", "gpu08", "gpu03"]


@pytest.mark.parametrize(
    ("silent", "state", "expected"),
    [
        ((), RunState.STARTING, ["gpu00"]),
        (("gpu01",), RunState.STARTING, ["gpu00", "gpu01"]),
        ((), RunState.RUNNING, ["gpu00", "gpu01"]),  # its state was removed there
    ],
)
@pytest.mark.parametrize("path", [None, "inventory.yaml"])
def test_a_host_that_answers_without_a_part_is_asked_only_of_a_run_that_has_begun(
    silent: tuple[str, ...], state: RunState, expected: list[str], path: str | None
) -> None:
    asked: list[str] = []
    run = started(asked, now=START, limited_to=["gpu00"])  # where its start was interrupted
    hosts = tuple(HostEntry(name=name, address=name) for name in ("gpu00", "gpu01"))
    inventory = SimpleNamespace(hosts=hosts, pattern="", path=path)
    run.cluster.inventory = inventory  # type: ignore[assignment]
    run.silent, run.state = silent, state  # type: ignore[attr-defined]
    run.stop()
    assert [name for name in asked if name != "gpu08"] == expected


def test_where_no_host_answers_all_that_are_known_are_asked() -> None:
    asked: list[str] = []
    started(asked).stop()
    assert asked == ["gpu00", "gpu01", "gpu08"]


def test_of_a_limited_inventory_no_host_outside_is_asked() -> None:
    asked: list[str] = []
    now = START._replace(hosts=("gpu00", "gpu01", "gpu02"), lost=("gpu03",))
    started(asked, now=now, limited_to=["gpu00"]).stop()
    assert asked == ["gpu00"]
