"""Which hosts' lines a selection needs, in each attempt of a run, and how long one of them is waited for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.inventory import Inventory
from clusterddp.logs.selection import Selection
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.verdict.judge import VerdictRecord
from clusterddp.runs.run import Run
from clusterddp.runs.view.run_view import RunView, run_views
from tests.unit.plan_made import PLAN
from tests.unit.runs.test_follow import END, Scripted, Stream, _quick, followed, line, lost, second_attempt
from tests.unit.runs_told import Told

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["_quick"]  # fixture


def test_a_pattern_matches_the_hosts_of_each_attempt() -> None:
    site: Any = SimpleNamespace(inventory=Inventory(hosts=(), groups={}, path=None))
    run = Run(site, "abcdefghij", 1, {"gpu07": "/s"}, PLAN.record._replace(hosts=("gpu07",), launcher="slurm"))
    requeued = replace(run, attempt=2, spools={"gpu03": "/s", "cpu01": "/s"}, attempts={1: run.spools})
    assert requeued.selected(Selection(pattern="gpu*")) == ["gpu03"]
    assert requeued.selected(Selection()) == ["gpu03", "cpu01"]


def test_an_attempt_without_a_named_host_has_nothing_of_it() -> None:
    site: Any = SimpleNamespace(inventory=Inventory(hosts=(), groups={}, path=None))
    run = Run(site, "abcdefghij", 2, {"gpu03": "/s"}, PLAN.record._replace(hosts=("gpu03",), launcher="slurm"))
    assert run.selected(Selection(pattern="gpu07")) == []


def _ended_without_gpu01() -> RunView:
    told = Told(0, hosts=["gpu00", "gpu01"]).failed(5)
    fields: dict[str, Any] = {"attempt": 1, "state": "failed", "exit_code": 125, "line": "gpu01 was lost"}
    copy = VerdictRecord(writer="gpu00", member=0, reported=("gpu00",), missing=("gpu01",), **fields)
    told.fields["verdict"] = to_fields(copy)
    (view,) = run_views([told.node], ["gpu01"])
    return view


@pytest.mark.parametrize(
    ("then", "code", "events"),
    [
        (_ended_without_gpu01, 125, ["missing"]),
        (
            lambda: second_attempt(record=RunRecord(hosts=("gpu00",), lost=("gpu01",))),
            0,
            ["missing", "lost", "relaunched"],
        ),
    ],
)
def test_a_host_out_of_reach_that_alone_is_followed_is_given_up_when_others_tell_that_its_part_is_over(
    then: Callable[[], RunView], code: int, events: list[str]
) -> None:
    streams: dict[str, list[Stream]] = {"gpu00": [[END]], "gpu01": [[line("b\n"), lost("gpu01")], [lost("gpu01")]]}
    (live,) = run_views([Told(0, hosts=["gpu00", "gpu01"]).node], ["gpu01"])
    run, said = Scripted(streams, [live, live, then()]), list[tuple[str, str]]()
    verdict, shown = followed(run, said, pattern="gpu01")
    assert (verdict.exit_code, shown, [event for event, _ in said]) == (code, ["b\n"], events)
