"""Words of hosts on the operator's terminal: one line each, and nothing in them is obeyed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from clusterddp.checks.model import CheckResult
from clusterddp.cli import doctor_tables, output, run_tables, up_tables
from clusterddp.errors import HelperError, HostKeyError
from clusterddp.facts.bench import Bench, Together
from clusterddp.facts.bench_results import AllReduce, Gemm, Measured
from clusterddp.runs.view.run_view import run_views
from tests.unit.runs_told import Told

if TYPE_CHECKING:
    from collections.abc import Callable

EVIL = "\x1b[2J\x1b]52;c;cm0=\x07\nclusterddp: run succeeded\r[red]x[/red]\x9b1A\u202e"


def told() -> None:
    node = Told(0, name=EVIL, operator=EVIL, script=EVIL, argv=[EVIL], world_size=1, started=1)
    node.died(5, code=1, raised=f"ValueError: {EVIL}")
    node.ended("failed", 6)
    views = run_views([node.node._replace(run=f"r{EVIL}")])
    run_tables.print_status(views[0])
    run_tables.print_runs(views)


def doctored() -> None:
    result = CheckResult(
        name="gpus", category="gpus", verdict="fail", hosts=(EVIL,), message=EVIL, symptom=EVIL, fix=EVIL
    )
    doctor_tables.print_doctor([result], verbose=True)


def benched() -> None:
    gemm = Gemm(host=EVIL, rank=0, device=EVIL, type=f"[/]{EVIL}", size=1, ns=1, p95_ns=1, wrong=0, sum=EVIL)
    reduce = AllReduce(size=1, count=1, type=f"[/]{EVIL}", redop=EVIL, world=2, ns=1, p95_ns=1, rounds=1, wrong=0)
    measured = Measured(gemms=(gemm,), reduces=(reduce,))
    doctor_tables.print_bench(Bench(together=Together(hosts=(EVIL,), backend="gloo", measured=measured)))


@pytest.mark.parametrize(
    "show",
    [
        lambda: output.say(str(HelperError("gpu01", EVIL, remedy=EVIL))),
        lambda: output.put(EVIL),
        lambda: up_tables.print_host_keys([HostKeyError("gpu01", EVIL, fingerprint=EVIL)]),
        told,
        doctored,
        benched,
    ],
)
def test_they_stay_on_their_line_and_are_not_obeyed(
    capsys: pytest.CaptureFixture[str], show: Callable[[], None]
) -> None:
    show()
    said = "".join(capsys.readouterr())
    assert "\\x1b[2J" in said
    assert "[red]x[/red]" in said
    assert all(line.isprintable() for line in said.split("\n"))
    assert not re.search("^clusterddp: run succeeded", said, re.MULTILINE)
