"""How a run ended, as `run`, `logs --follow` and `wait` print it, and the exit code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli.run_end import print_awaited_end, print_followed_end, print_own_end
from clusterddp.remote.shared.run.run_record import RunRecord
from tests.unit.runs_told import Told, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.runs.view.verdict_lines import Verdict

HOST = SimpleNamespace(name="gpu00", call=lambda *_, **__: {"text": "step 8\n"})
RUN: Any = SimpleNamespace(
    id="r1",
    attempt=1,
    spools={"gpu00": "/spool"},
    record=RunRecord(world_size=1, hosts=("gpu00",), workdirs={"gpu00": "/home/u/x"}),
    reader=lambda _: HOST,
)
OUTPUT = ["last lines of rank 0 (gpu00:0):", "  step 8"]
FULL_DISK = "OSError: [Errno 28] No space left on device"


def printed(
    report: Callable[..., int], found: Verdict | None, capsys: pytest.CaptureFixture[str], *took: str
) -> tuple[int, list[str]]:
    code = report(RUN, found, *took)
    return code, [line.removeprefix("clusterddp: ") for line in capsys.readouterr().err.splitlines()]


def test_of_a_success_run_tells_how_long_it_took_and_where_its_files_are(capsys: pytest.CaptureFixture[str]) -> None:
    found = verdict(Told(0, min_nodes=1).succeeded(9), unreachable=["gpu01"])
    lost = "gpu01 was lost: no answer"
    own = f"run r1 {found.line} in 5.0 s; its files are in /home/u/x"
    assert printed(print_own_end, found, capsys, " in 5.0 s") == (0, [lost, own])
    assert printed(print_followed_end, found, capsys) == (0, [lost, "run r1: succeeded"])
    assert printed(print_awaited_end, found, capsys) == (0, [f"run r1: {lost}", "run r1: succeeded"])


def test_of_a_failure_the_remedy_comes_before_the_verdict_and_wait_leaves_the_workers_lines_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = verdict(Told(0).died(5, raised=FULL_DISK).failed(6))
    line, remedy = f"rank 0 (gpu00:0) failed first: {FULL_DISK} (train.py:81)", f"remedy: {found.remedy}"
    assert found.remedy
    files = "the files of run r1 are in /home/u/x"
    assert printed(print_own_end, found, capsys) == (1, [files, *OUTPUT, remedy, line])
    assert printed(print_followed_end, found, capsys) == (1, [*OUTPUT, remedy, f"run r1: {line}"])
    assert printed(print_awaited_end, found, capsys) == (1, [f"run r1: {remedy}", f"run r1: {line}"])


@pytest.mark.parametrize("report", [print_own_end, print_followed_end])
def test_a_run_that_goes_on_has_no_code_of_its_own(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    goes_on = ["the run goes on, but its hosts cannot be followed"]
    assert printed(report, None, capsys) == (125, goes_on)
