"""What a host tells of its runs while another command removes some."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.cleanup import retention
from clusterddp.remote.helper.request import Request
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.supervisor.status_operation import runs
from tests.unit.plan_made import PLAN, made_spool

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_that_is_removed_meanwhile_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in ("first", "removed", "third"):
        assert made_spool(Spool.of(str(tmp_path), run, 1, PLAN.node), PLAN._replace(run=run))
    alive = Spool.alive

    def removed_then(spool: Spool) -> bool:
        if spool.run == "removed":
            retention.remove_spool(str(tmp_path), spool)
        return alive(spool)

    monkeypatch.setattr(Spool, "alive", removed_then)
    told = runs(Request(0, {"state": str(tmp_path), "hosts": None}, -1, -1))
    assert [one["run"] for one in told] == ["first", "third"]


def test_a_file_that_is_missing_in_a_run_that_is_there_is_no_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made_spool(Spool.of(str(tmp_path), PLAN.run, 1, PLAN.node), PLAN)

    def missing(_: Spool) -> bool:
        raise FileNotFoundError

    monkeypatch.setattr(Spool, "alive", missing)
    with pytest.raises(FileNotFoundError):
        runs(Request(0, {"state": str(tmp_path), "hosts": None}, -1, -1))
