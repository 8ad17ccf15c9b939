"""What a host tells of 300 failed runs: a list costs little, whether they keep their verdicts or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterddp.remote.helper.request import Request
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.verdict.judge import judge
from clusterddp.remote.shared.verdict.node_end import end_of, fit
from clusterddp.remote.shared.verdict.status_reply import read_nodes
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.supervisor import status_operation
from clusterddp.runs.view.run_view import run_views
from tests.unit.plan_made import PLAN

RUNS, WORKERS = 300, 8
SAID = "".join(f"  frame {number} of a long stack of C++\n" for number in range(200)) + "RuntimeError: no\n"


def status_request(state: Path, **args: Any) -> Request:
    return Request(0, {"state": str(state), "hosts": ["h"], "run": "", **args}, -1, -1)


def failed_run(state: Path, number: int, *, kept: bool) -> None:
    """One host's spool of a run whose workers all failed with long stacks."""
    run = f"{number:010}"
    spool = Spool.of(str(state), run, 1, "0-h")
    Path(spool.path("logs")).mkdir(parents=True)
    name, project = "night" if number % 2 else None, f"p{number % 3}"
    record = RunRecord(hosts=("h",), code="c0de", name=name, started=number, project=project, world_size=WORKERS)
    spool.write_plan(PLAN._replace(run=run, record=record))
    for local in range(WORKERS):
        of_worker = {"start": 0, "local_rank": local, "rank": local, "pid": 100 + local}
        spool.event("worker_started", **of_worker, round=0)
        spool.event("worker_exited", **of_worker, exit_code=3, signal=None, signals_received=[], oom_kills=0)
        Path(spool.path("logs", f"0.{local}.err")).write_text(SAID)
    spool.event("agent_exited", exit_code=1)
    spool.write_exit("failed", 1, "the agent ended with 1", agent_exit=1, survivors=[])
    if kept:
        end = fit(end_of(status_operation.describe(spool, spool.plan()).part))
        spool.write_verdict(judge([end]).bounded()._replace(writer="h"))


@pytest.mark.parametrize("kept", [True, False], ids=["verdicts kept", "no verdicts"])
def test_a_list_costs_little_and_says_the_same(tmp_path: Path, kept: bool) -> None:  # noqa: FBT001
    for number in range(RUNS):
        failed_run(tmp_path, number, kept=kept)
    whole, brief = (status_operation.runs(status_request(tmp_path, brief=brief)) for brief in (False, True))
    size = len(json.dumps(brief))
    assert size <= RUNS * 3500
    assert len(json.dumps(whole)) > 10 * size
    views = [run_views(read_nodes(told, "h", "")) for told in (whole, brief)]
    assert len(views[0]) == RUNS
    for one, other in zip(*views, strict=True):
        assert one.to_json(hosts=False) == other.to_json(hosts=False)


def test_only_those_that_are_wanted_are_told(tmp_path: Path) -> None:
    for number in range(6):
        failed_run(tmp_path, number, kept=True)

    def told(**args: Any) -> list[int]:
        return [int(node["run"]) for node in status_operation.runs(status_request(tmp_path, brief=True, **args))]

    assert told(project="p1") == [1, 4]
    assert told(reference="night") == [1, 3, 5]
    assert told(reference="0000000004") == [4]
    assert told(reference="nope") == []
