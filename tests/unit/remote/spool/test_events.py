"""Events: one write a record, and what a reader makes of torn ones."""

from __future__ import annotations

import json
import stat
import time
from typing import TYPE_CHECKING

from clusterddp.remote.shared.run.event_schema import NodeEvent, event_json
from clusterddp.remote.spool.events import append_event, read_events

if TYPE_CHECKING:
    from pathlib import Path


def test_events_are_read_as_they_were_appended(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    before = time.time_ns()
    assert append_event(str(path), "worker_started", start=0, local_rank=0, rank=4, round=None)
    assert append_event(str(path), "ended", reason="ü\n", time=5)
    first, second = read_events(str(path))
    assert before <= first.time <= time.time_ns()
    assert first == NodeEvent("worker_started", first.time, start=0, local_rank=0, rank=4, round=None)
    assert second == NodeEvent("ended", 5, more={"reason": "ü\n"})
    assert event_json(second) == {"event": "ended", "reason": "ü\n", "time": 5}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_missing_file_has_no_events(tmp_path: Path) -> None:
    assert read_events(str(tmp_path / "none")) == []


def test_a_torn_record_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event":"agent_started","time":1,"pid":1}\n{"event":"worker_st')
    append_event(str(path), "ended")
    assert [event.kind for event in read_events(str(path))] == ["agent_started", "ended"]


def test_what_is_no_event_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [
        b"",
        b"\xff\xfe",
        b"[1]",
        b"3",
        json.dumps({"event": 3}).encode(),
        b'{"no": "event"}',
        b'{"event":"a"}',
        b'{"event":"a","time":1}',
        b'{"event":"agent_exited","time":1,"exit_code":"one"}',
        b"{",
    ]
    path.write_bytes(b"\n".join(lines))
    assert read_events(str(path)) == [NodeEvent("a", 1)]


def test_an_event_that_cannot_be_written_raises_nothing(tmp_path: Path) -> None:
    assert append_event(str(tmp_path / "no" / "folder"), "ended") is False
    assert append_event("/dev/full", "ended") is False
