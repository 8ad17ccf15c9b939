"""The supervisor's file work, against a disk that stalls: a FIFO that nobody reads holds up whoever opens it."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.supervisor import file_work
from clusterddp.remote.supervisor.file_work import FileWork

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 20.0


class Disk:
    """A file that takes nothing until somebody reads it, and file work that has met it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "stalled"
        os.mkfifo(self.path)
        self.woken = threading.Event()
        self.work = FileWork(self.woken.set)
        self.stalled = False

    def stall(self) -> None:
        self.stalled = True
        self.work.do(lambda: os.close(os.open(self.path, os.O_WRONLY)))

    def go_on(self) -> None:
        if self.stalled:
            self.stalled = False
            os.close(os.open(self.path, os.O_RDONLY))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.go_on()
    made.work.close(PATIENCE)


def test_what_is_asked_for_comes_once_and_wakes_the_loop(disk: Disk) -> None:
    assert disk.work.ask("sum", lambda: 1 + 1) is None
    assert disk.woken.wait(PATIENCE)
    answer = disk.work.ask("sum", lambda: 3)
    assert answer
    assert answer.value == 2
    assert not disk.work.is_asked("sum")


def test_what_nobody_needs_any_more_is_not_kept(disk: Disk) -> None:
    assert disk.work.ask("sum", lambda: 1 + 1) is None
    disk.work.forget("sum")
    assert disk.woken.wait(PATIENCE)
    assert not disk.work.is_asked("sum")
    disk.work.forget("sum")


def test_an_error_is_the_askers_and_the_next_time_it_is_tried_anew(disk: Disk) -> None:
    disk.work.ask("quotient", lambda: 1 // 0)
    disk.woken.wait(PATIENCE)
    with pytest.raises(ZeroDivisionError):
        disk.work.ask("quotient", lambda: 1)
    disk.woken.clear()
    assert disk.work.ask("quotient", lambda: 1) is None
    assert disk.work.failing_since() < time.monotonic()
    disk.woken.wait(PATIENCE)
    answer = disk.work.ask("quotient", lambda: 2)
    assert answer
    assert answer.value == 1
    assert disk.work.failing_since() == math.inf


def test_while_the_disk_stalls_nothing_waits_but_the_work_and_its_order_is_kept(disk: Disk, tmp_path: Path) -> None:
    disk.stall()
    spool = Spool(str(tmp_path))
    done: list[str] = []
    for number in range(1000):
        disk.work.queue_latest("look", lambda number=number: done.append(f"look {number}"))  # type: ignore[misc]
    disk.work.event(spool, "before")
    assert disk.work.ask("record", lambda: [event.kind for event in spool.events()]) is None
    disk.work.event(spool, "behind")
    assert not done
    disk.go_on()
    assert disk.woken.wait(PATIENCE)
    answer = disk.work.ask("record", lambda: ["another"])
    assert answer
    assert (done, answer.value) == (["look 999"], ["before"])
    disk.work.close(PATIENCE)
    assert [event.kind for event in spool.events()] == ["before", "behind"]


def test_an_event_has_the_time_at_which_it_came_about(disk: Disk, tmp_path: Path) -> None:
    disk.stall()
    spool = Spool(str(tmp_path))
    disk.work.event(spool, "first")
    spool.event("second")  # a shim's, whose disk goes on
    disk.go_on()
    disk.work.close(PATIENCE)
    times = {event.kind: event.time for event in spool.events()}
    assert times["first"] < times["second"]


def test_whether_an_event_is_on_record_is_known_and_wakes_the_loop(disk: Disk, tmp_path: Path) -> None:
    disk.stall()
    spool = Spool(str(tmp_path))
    on_record = disk.work.record_event(spool, "stopping", agent_bytes=7)
    assert (on_record(), spool.events()) == (False, [])
    disk.go_on()
    assert disk.woken.wait(PATIENCE)
    assert (on_record(), [event.agent_bytes for event in spool.events()]) == (True, [7])


def test_who_waits_too_long_is_told_and_may_wait_on(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.stall()
    disk.work.ask("record", lambda: "kept")
    monkeypatch.setattr(file_work, "RESULT_TIMEOUT", 0.0)
    with pytest.raises(TimeoutError, match="record is held up: a disk does not answer"):
        disk.work.ask("record", lambda: "again")
    disk.go_on()
    disk.woken.wait(PATIENCE)
    answer = disk.work.ask("record", lambda: "again")
    assert answer
    assert answer.value == "kept"


def test_a_disk_that_never_answers_holds_up_no_end(disk: Disk) -> None:
    disk.stall()
    disk.work.close(0.01)
