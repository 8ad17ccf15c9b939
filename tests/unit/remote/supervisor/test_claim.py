"""A member index of a run is given to one of several hosts that join at the same moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from clusterddp.remote.shared.supervisor.start_records import COMMIT_TIMEOUT, START_TIMEOUT
from clusterddp.remote.supervisor import start
from clusterddp.remote.system.clock import boot_clock
from tests.unit.operation import run_operation
from tests.unit.spool_writer import Writer

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


NEXT = 1  # the made plan is of a run with one node


def claimed(writer: Writer, member: int, **more: bool) -> bool:
    return bool(run_operation(start.claim, {"spool": str(writer.folder), "member": member, **more})["claimed"])


def test_the_next_member_index_goes_to_one_of_those_who_want_it_at_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: claimed(writer, NEXT), range(8))) == 1


def test_the_index_of_another_host_cannot_be_claimed(tmp_path: Path) -> None:
    assert not claimed(Writer(tmp_path), NEXT - 1)


def test_a_claim_lapses_where_nobody_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path)
    now = boot_clock()
    assert claimed(writer, NEXT)
    assert not claimed(writer, NEXT)
    monkeypatch.setattr(start, "boot_clock", lambda: now + START_TIMEOUT + 1.0)
    assert not claimed(writer, NEXT)  # it may still start
    monkeypatch.setattr(start, "boot_clock", lambda: now + COMMIT_TIMEOUT + 1.0)
    assert claimed(writer, NEXT)


def test_a_claim_is_released_where_the_start_has_failed(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    assert claimed(writer, NEXT)
    claimed(writer, NEXT, release=True)
    assert claimed(writer, NEXT)
