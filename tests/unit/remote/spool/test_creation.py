"""A spool is made whole, or not at all."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.system import disk_space
from tests.unit.plan_made import PLAN, made_spool

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside another node"])
def test_nothing_is_left_of_a_spool_for_which_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, others: bool
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    spool = Spool.of(str(tmp_path), PLAN.run, 1, PLAN.node)
    beside = tmp_path / "runs" / PLAN.run / "1" / "7-other"
    if others:
        beside.mkdir(parents=True)
    monkeypatch.setattr(disk_space, "reserve_record", full)
    with pytest.raises(OSError, match="No space left"):
        made_spool(spool)
    assert list((tmp_path / "runs").rglob("*")) == ([beside.parent.parent, beside.parent, beside] if others else [])
    monkeypatch.undo()
    assert made_spool(spool)
