"""A transfer of some seconds says how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.sync import result
from clusterddp.sync.send_code import sync
from clusterddp.sync.transfer import progress_rate
from clusterddp.sync.transfer.progress_rate import Transfer
from tests.unit.sync_help import FakeHost, tree_of, write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

MB = 10**6


class Clock:
    """Seconds, as they are set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_bytes_rate_and_the_time_that_is_left_are_told_after_two_seconds_and_not_too_often() -> None:
    clock, told = Clock(), list[str]()
    watched = Transfer("syncing", told.append, clock=clock)
    watched.expect(100 * MB)
    watched.expect(100 * MB)
    pieces = watched.counted((b"", MB) for _ in range(200))
    for seconds in (0.0, 1.0, 1.9, 2.0, 2.1, 4.0):
        next(pieces)
        clock.now = 100.0 + seconds
    next(pieces)
    assert told == [
        "syncing: 4 MB of 200 MB, 2 MB/s, 1m38s left",
        "syncing: 6 MB of 200 MB, 1.5 MB/s, 2m09s left",
    ]


def test_a_sync_tells_what_it_sends_to_all_its_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_rate, "PROGRESS_DELAY", 1e-9)
    monkeypatch.setattr(result, "PROGRESS_DELAY", 1e-9)
    monkeypatch.setattr(progress_rate, "_PROGRESS_INTERVAL", 0.0)
    write(tmp_path / "project", **{"train.py": "x" * 200_000})
    told: list[str] = []
    hosts = [FakeHost(tmp_path, name) for name in ("gpu01", "gpu02")]
    done = sync(hosts, tree_of(tmp_path / "project"), workdir="/nowhere", progress=told.append)  # type: ignore[arg-type]
    size = told[-1].partition(", ")[0]
    assert size == "syncing: 400 kB of 400 kB"
    assert told[-1].endswith(" 0s left")
    (notice,) = done.notices
    assert notice.startswith("synced 400 kB to 2 hosts in ")
