"""What a node's output may take: holes at the heads of real files, readers that meet them, records on a full disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.logs import limit as limiting
from clusterddp.remote.logs.limit import HOLE_STEP, LogLimit, fill_level
from clusterddp.remote.shared.run.event_schema import event_json, of_kind
from clusterddp.remote.shared.run.spool_records import StopOrder
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.system import disk_space
from tests.unit.plan_made import plan_text
from tests.unit.spool_writer import Tail, Writer, caught_up, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK = b"0123456789abcde\n" * 4096  # 64 KiB


@pytest.fixture(params=["disk", "tmpfs"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder on the machine's disk, and one in memory."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no tmpfs here")
    folder = Path(f"/dev/shm/clusterddp-test-{os.getpid()}-{tmp_path.name}")
    folder.mkdir()
    try:
        yield folder
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.fixture
def writer(base: Path) -> Writer:
    spool = Writer(base)
    spool.start(0, 0)
    spool.start(1, 1)
    return spool


def limits(writer: Writer, limit: int) -> LogLimit:
    (writer.folder / "plan.json").write_text(plan_text(log_limit=limit, clock_offset_ns=0))
    return LogLimit(Spool(str(writer.folder)))


def look(limit: LogLimit) -> None:
    """A turn of the supervisor's loop, a second later."""
    limit._last_check = 0.0
    limit.poll()


def kept(path: Path) -> int:
    """Bytes it takes on the disk."""
    return path.stat().st_blocks * 512


def events(writer: Writer, name: str) -> list[dict[str, object]]:
    return [event_json(event) for event in of_kind(Spool(str(writer.folder)).events(), name)]


class TestLevel:
    @pytest.mark.parametrize(
        ("sizes", "wanted", "most"),
        [([], 10, 0), ([3, 4], 10, 4), ([20], 10, 10), ([8, 8], 10, 5), ([1, 30, 30], 11, 5), ([2, 3, 90], 15, 10)],
    )
    def test_the_large_give_until_the_sum_fits(self, sizes: list[int], wanted: int, most: int) -> None:
        assert fill_level(sizes, wanted) == most
        assert sum(min(size, most) for size in sizes) <= wanted or not sizes


class TestHoles:
    def test_the_oldest_output_of_the_largest_file_goes_and_offsets_stay(self, writer: Writer) -> None:
        limit = limits(writer, 16 * HOLE_STEP)
        writer.write("0.1.out", b"small\n")
        writer.write("0.0.out", BLOCK * 64)
        writer.write("0.0.out", b"the last line\n")
        look(limit)
        big = writer.logs / "0.0.out"
        assert big.stat().st_size == 64 * HOLE_STEP + 14
        assert kept(big) <= 16 * HOLE_STEP
        assert kept(writer.logs / "0.1.out") > 0
        writer.note()
        writer.end()
        found = read(writer)
        (told,) = [frame.header for frame in found.frames if "dropped" in frame.header]
        assert (told["file"], told["rank"]) == ("0.0.out", 0)
        assert told["dropped"] + len(found.text()) == 64 * HOLE_STEP + 14
        assert found.text().endswith(b"the last line\n")
        assert set(found.text().split(b"\n")[:-2]) == {b"0123456789abcde"}
        assert found.text("0.1.out") == b"small\n"

    def test_nothing_goes_below_the_limit(self, writer: Writer) -> None:
        limit = limits(writer, 16 * HOLE_STEP)
        writer.write("0.0.out", BLOCK * 15)
        look(limit)
        limit.finish()
        assert (limit.dropped, events(writer, "log_dropped")) == (0, [])

    def test_what_is_gone_is_an_event_with_the_sum(self, writer: Writer) -> None:
        limit = limits(writer, 4 * HOLE_STEP)
        for _ in range(32):
            writer.write("0.0.out", BLOCK)
            look(limit)
        limit.finish()
        told = events(writer, "log_dropped")
        assert told[-1]["bytes"] == limit.dropped > 24 * HOLE_STEP
        assert len(told) < 8

    def test_the_last_lines_are_found_behind_a_hole_and_nothing_is_said_of_it(self, writer: Writer) -> None:
        limit = limits(writer, 4 * HOLE_STEP)
        writer.write("0.0.out", BLOCK * 64)
        look(limit)
        writer.note()
        writer.end()
        found = read(writer, tail=2)
        assert found.text() == b"0123456789abcde\n" * 2
        assert not any("dropped" in frame.header for frame in found.frames)

    def test_a_file_system_that_cannot_is_an_event_once(self, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(path: str, *_: int) -> None:
            raise OSError(95, "Operation not supported", path)

        monkeypatch.setattr(disk_space, "punch_hole", refuse)
        limit = limits(writer, 4 * HOLE_STEP)
        for _ in range(3):
            writer.write("0.0.out", BLOCK * 8)
            look(limit)
        (told,) = events(writer, "log_limit_failed")
        assert told["error"] == "Operation not supported"
        writer.note()
        writer.end()
        assert len(read(writer).text()) == 24 * HOLE_STEP

    def test_a_reader_that_follows_meets_whole_lines_and_every_gap_is_told(self, writer: Writer) -> None:
        """Lines carry their own offsets; the writer is faster than the reader may be."""
        limit = limits(writer, 8 * HOLE_STEP)
        tail = Tail(writer, follow=True).begin().wait(caught_up)
        stop = threading.Event()

        def punch() -> None:
            while not stop.is_set():
                look(limit)

        puncher = threading.Thread(target=punch)
        puncher.start()
        size = 0
        for _ in range(200):
            lines = b"".join(b"%015d\n" % (size + 16 * place) for place in range(4096))
            writer.write("0.0.out", lines)
            size += len(lines)
        stop.set()
        puncher.join()
        writer.end()
        tail.finish()
        check_chain(tail, size)

    def test_a_reader_that_replays_while_holes_are_punched(self, writer: Writer) -> None:
        limit = limits(writer, 8 * HOLE_STEP)
        size = 0
        for _ in range(64):
            lines = b"".join(b"%015d\n" % (size + 16 * place) for place in range(4096))
            writer.write("0.0.out", lines)
            size += len(lines)
        writer.note()
        tail = Slow(writer, between=lambda: look(limit))
        writer.end()
        tail.begin().finish()
        assert limit.dropped
        check_chain(tail, size)


class Slow(Tail):
    """A reader beside which the supervisor punches a hole after its second frame."""

    def __init__(self, writer: Writer, between: Callable[[], None]) -> None:
        super().__init__(writer)
        self._between = between

    def send(self, body: bytes, **header: object) -> None:
        super().send(body, **header)
        if len(self.frames) == 3:
            self._between()


def check_chain(tail: Tail, size: int) -> None:
    """Every byte was sent or is told as dropped, in order; every line stands at the offset it names."""
    place = 0
    for frame in [frame for frame in tail.frames if "file" in frame.header]:
        place += frame.header.get("dropped", 0)
        assert frame.header["offset"] == place
        for line in frame.body.splitlines():
            assert int(line) == place
            place += 16
        assert frame.header["next"] == place
    assert place == size


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> None:
    """To the last byte."""
    with (folder / "filled").open("ab", buffering=0) as file:
        for size in (1 << 16, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    assert not os.statvfs(folder).f_bavail


class TestFullDisk:
    @pytest.fixture
    def spool(self, small_disk: Path) -> Spool:
        folder = small_disk / "runs" / "r" / "1" / "0-h"
        (folder / "logs").mkdir(parents=True)
        (folder / "plan.json").write_text(plan_text())
        return Spool(str(folder))

    def test_orders_events_and_the_exit_record_are_written_all_the_same(self, spool: Spool, small_disk: Path) -> None:
        for name in ("stop.json", "exit.json"):
            disk_space.reserve_record(spool.path(name), 16 << 10)
        limit = LogLimit(spool)
        fill(small_disk)
        limit.poll()
        spool.write_stop_order("by a test", 30.0)
        fill(small_disk)
        spool.write_stop_order("by another", 5.0)  # no room for that: the first stands
        assert spool.stop_order() == StopOrder("by a test", 30.0)
        spool.write_exit("stopped", 143, "by a test")
        record = spool.exit_record()
        assert record
        assert record.exit_code == 143
        assert [event.kind for event in spool.events()] == ["disk_full", "ended"]
        assert not list(Path(spool.folder).glob("*.room"))

    def test_without_room_kept_it_is_an_error(self, spool: Spool, small_disk: Path) -> None:
        fill(small_disk)
        with pytest.raises(OSError, match="No space"):
            spool.write_stop_order("by a test", 30.0)

    def test_a_disk_is_full_once_until_there_is_room_again(self, spool: Spool, small_disk: Path) -> None:
        limit = LogLimit(spool)
        for _ in range(2):
            fill(small_disk)
            look(limit)
            look(limit)
            (small_disk / "filled").unlink()
            look(limit)
        assert len(spool.events()) == 1  # the whole disk is smaller than what counts as room

    def test_what_nobody_can_keep_is_no_error(self, spool: Spool, small_disk: Path) -> None:
        fill(small_disk)
        disk_space.reserve_record(spool.path("exit.json"), 1 << 14)
        assert not disk_space.preallocate(spool.path("events.jsonl"), 1 << 18)
        limiting.LogLimit(spool).poll()
