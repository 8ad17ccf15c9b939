"""The time index: what is noted, what a byte's time is, what thinning may do to it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.remote.logs import time_index
from clusterddp.remote.logs.time_index import IndexReader, IndexWriter, last_growth, thin_entries
from clusterddp.remote.system.inotify import FolderWatch

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND = 10**9
NOW = 1_700_000_000 * SECOND


def grow(path: Path, size: int, at: int) -> None:
    with path.open("ab") as file:
        file.write(b"x" * size)
    os.utime(path, ns=(at, at))


def reader(path: Path) -> IndexReader:
    found = IndexReader(f"{path}.idx")
    found.refresh()
    return found


def test_a_line_has_the_time_of_the_first_size_that_holds_it(tmp_path: Path) -> None:
    log, writer = tmp_path / "0.0.out", IndexWriter(str(tmp_path))
    for step in range(3):
        grow(log, 10, NOW + step * SECOND)
        writer.poll(NOW + step * SECOND)
    found = reader(log)
    assert [found.at(end) for end in (1, 10, 11, 30)] == [
        (NOW, 10), (NOW, 10), (NOW + SECOND, 20), (NOW + 2 * SECOND, 30)
    ]  # fmt: skip
    assert found.at(31) is None
    assert (found.size_before(NOW + SECOND), found.size_until(NOW + SECOND), found.covered) == (10, 20, 30)


def test_when_a_file_grew_last_is_known_with_and_without_an_index(tmp_path: Path) -> None:
    log, writer = tmp_path / "0.0.out", IndexWriter(str(tmp_path))
    log.touch()
    assert (last_growth(str(log)), last_growth(str(tmp_path / "none"))) == (None, None)
    grow(log, 10, NOW)
    assert last_growth(str(log)) == NOW
    for step in range(9):
        grow(log, 10, NOW + step * SECOND)
        writer.poll(NOW + step * SECOND)
    os.utime(log, ns=(NOW + 99 * SECOND, NOW + 99 * SECOND))  # as punching out its head does
    assert last_growth(str(log)) == NOW + 8 * SECOND
    with (tmp_path / "0.0.out.idx").open("a") as index_file:
        index_file.write("17000000099999")  # a torn entry
    assert last_growth(str(log)) == NOW + 8 * SECOND


def test_the_time_is_the_last_write_and_never_of_the_future_or_before_an_earlier_one(tmp_path: Path) -> None:
    log, writer = tmp_path / "0.0.out", IndexWriter(str(tmp_path))
    for written, looked in [(50, 100), (900, 300), (200, 500)]:  # ms
        grow(log, 1, NOW + written * 10**6)
        writer.poll(NOW + looked * 10**6)
    assert [reader(log).at(end) for end in (1, 2, 3)] == [
        (NOW + 50 * 10**6, 1), (NOW + 300 * 10**6, 2), (NOW + 300 * 10**6, 3)
    ]  # fmt: skip


def test_at_most_ten_entries_a_second_and_a_last_one(tmp_path: Path) -> None:
    log, writer = tmp_path / "0.0.out", IndexWriter(str(tmp_path))
    for millisecond in range(0, 1000, 20):
        grow(log, 1, NOW + millisecond * 10**6)
        writer.poll(NOW + millisecond * 10**6)
    assert len((tmp_path / "0.0.out.idx").read_bytes().splitlines()) <= 10
    writer.finish(NOW + SECOND)
    assert reader(log).covered == 50


def test_a_torn_entry_is_skipped_and_the_next_one_stands_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, writer = tmp_path / "0.0.out", IndexWriter(str(tmp_path))
    grow(log, 5, NOW)
    with monkeypatch.context() as full_disk:
        write = os.write
        full_disk.setattr(os, "write", lambda handle, data: write(handle, data[:8]))
        writer.poll(NOW)
    assert reader(log).covered == 0
    writer.poll(NOW + SECOND)
    assert reader(log).at(5) == (NOW, 5)


def test_a_missing_folder_or_index_is_no_error(tmp_path: Path) -> None:
    IndexWriter(str(tmp_path / "none")).poll(NOW)
    assert reader(tmp_path / "none").at(1) is None


@pytest.mark.parametrize("put", [os.mkdir, os.mkfifo, lambda path: Path(path).symlink_to("/dev/zero")])
def test_what_a_job_puts_in_place_of_an_index_is_not_read(tmp_path: Path, put: Callable[[str], None]) -> None:
    log = tmp_path / "0.0.out"
    log.write_bytes(b"line\n")
    put(f"{log}.idx")
    assert reader(log).at(5) is None
    assert last_growth(str(log)) == log.stat().st_mtime_ns


@settings(deadline=None)
@given(steps=st.lists(st.integers(1, 20_000), min_size=1, max_size=200), again=st.lists(st.integers(1, 10**6)))
def test_thinning_moves_a_time_forward_by_less_than_a_thousandth_of_its_age(steps: list[int], again: list[int]) -> None:
    entries, at = [], NOW
    for size, step in enumerate(steps, 1):
        at += step * SECOND // 10
        entries.append((at, size))
    kept, now = entries, at
    for later in again or [50_000]:
        now += later * SECOND
        kept = thin_entries(kept, now)
    assert kept[-1] == entries[-1]
    for time, size in entries:
        new = next(entry[0] for entry in kept if entry[1] >= size)
        assert 0 <= new - time <= (now - time) / 1000


def test_a_large_index_is_thinned_and_a_reader_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_index, "THIN_SIZE", 1000)
    log, writer = tmp_path / "0.0.out", IndexWriter(str(tmp_path))
    found = IndexReader(f"{log}.idx")
    for step in range(50):
        grow(log, 1, NOW + step * SECOND // 10)
        writer.poll(NOW + step * SECOND // 10)
        found.refresh()
    later = NOW + 100 * 24 * 3600 * SECOND
    assert writer._states["0.0.out"].length > 1000
    monkeypatch.setattr(writer._states["0.0.out"], "thin_at", 1000)
    grow(log, 1, later)
    writer.poll(later)
    found.refresh()
    assert len((tmp_path / "0.0.out.idx").read_bytes().splitlines()) == 2
    assert found.at(51) == (later, 51)
    assert found.at(1) == reader(log).at(1) == (NOW + 49 * SECOND // 10, 50)


def test_a_watch_wakes_for_a_write(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    watch = FolderWatch(str(tmp_path))
    woken = threading.Event()

    def wait() -> None:
        watch.wait(60)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    with (tmp_path / "log").open("ab") as file:
        while not woken.wait(0.01):
            file.write(b"x")
            file.flush()
    watch.close()
