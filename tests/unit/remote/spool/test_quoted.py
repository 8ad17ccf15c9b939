"""What is quoted of a worker holds no secret of the run: while it lives, after it, and where a disk was full then."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.spool import quoted
from clusterddp.remote.spool.events import append_event
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.spool.quoted import MAX_QUOTED, drop_secrets, exception_record, keep_secrets, output_end
from clusterddp.remote.spool.worker_traces import evidence
from tests.unit.spool_writer import Writer

if TYPE_CHECKING:
    from pathlib import Path

VALUE = "hunter2-token"
KEY = "0.1"


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    made = Writer(tmp_path)
    keep_secrets(str(made.folder), json.dumps({"TOKEN": VALUE, "PIN": "1"}).encode())
    return made


def raised(writer: Writer, value: object, folder: str = "errors") -> Path:
    path = writer.folder / folder / f"{KEY}.json"
    path.parent.mkdir(parents=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def end(writer: Writer, most: int = MAX_QUOTED) -> str:
    return output_end(str(writer.folder), f"{KEY}.err", most)[0]


@pytest.mark.parametrize("over", [False, True])
def test_the_end_of_output_is_quoted_without_a_secret_and_the_file_keeps_it(writer: Writer, *, over: bool) -> None:
    writer.write(f"{KEY}.err", f"rank 1 of 2\n401 for {VALUE}\n".encode())
    if over:
        drop_secrets(str(writer.folder))
    assert end(writer) == "rank 1 of 2\n401 for ********\n"
    assert end(writer, 9) == "********\n"
    assert (writer.logs / f"{KEY}.err").read_text().endswith(f"{VALUE}\n")
    assert (writer.folder / "secrets.json").exists() is not over


@pytest.mark.parametrize("over", [False, True])
def test_it_is_said_whether_the_end_is_all_of_it(writer: Writer, *, over: bool) -> None:
    writer.write(f"{KEY}.err", f"401 for {VALUE}\n".encode())
    if over:
        drop_secrets(str(writer.folder))
    shown = "401 for ********\n"
    assert output_end(str(writer.folder), f"{KEY}.err", len(shown)) == (shown, True)
    assert output_end(str(writer.folder), f"{KEY}.err", len(shown) - 1) == (shown[1:], False)


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("cut", range(4, len(VALUE) + 1))
def test_a_secret_at_the_place_where_the_end_begins_is_struck(writer: Writer, cut: int, *, over: bool) -> None:
    writer.write(f"{KEY}.err", b"early " + VALUE.encode() + b"." * (MAX_QUOTED - cut))
    if over:
        drop_secrets(str(writer.folder))
    assert end(writer).strip(".*") == ""


def test_a_run_without_secrets_leaves_no_trace_of_this(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(f"{KEY}.err", b"plain\n")
    Spool(str(writer.folder)).drop_secrets()
    assert end(writer) == "plain\n"
    assert {path.name for path in writer.folder.iterdir()} == {"logs", "plan.json"}


def test_records_of_exceptions_are_struck_where_they_lie(writer: Writer) -> None:
    stack = f"Traceback\nValueError: {VALUE!r}"
    record: dict[str, Any] = {
        "message": {"message": f"ValueError: {VALUE}", "extraInfo": {"py_callstack": stack, "timestamp": "5"}},
        "exc_type": "ValueError", "exc_message": f"https://u:{VALUE}@h", "file": "/a/train.py", "line": 7, "time_ns": 8,
    }  # fmt: skip
    own, torch = raised(writer, record), raised(writer, record, "torch/run/attempt_0/1")
    assert VALUE not in str(exception_record(str(writer.folder), KEY))
    drop_secrets(str(writer.folder))
    for path in (own, torch):
        kept = json.loads(path.read_text())
        assert kept == json.loads(json.dumps(record).replace(VALUE, "********"))
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", [f'{{"message": "{VALUE}', f'["{VALUE}' * 2, "\xff{", "[" * 100_000 + VALUE])
def test_half_a_record_is_struck_too(writer: Writer, text: str) -> None:
    path = raised(writer, text)
    drop_secrets(str(writer.folder))
    assert VALUE not in path.read_text()


def test_what_packages_have_printed_into_the_fork_servers_log_is_struck(writer: Writer) -> None:
    log = writer.folder / "fork-server.log"
    log.write_text(f"a package says {VALUE}\nand more\n")
    drop_secrets(str(writer.folder))
    assert log.read_text() == "a package says ********\nand more\n"


def test_a_second_time_nothing_changes(writer: Writer) -> None:
    writer.write(f"{KEY}.err", VALUE.encode())
    for _ in range(2):
        Spool(str(writer.folder)).drop_secrets()
        assert end(writer) == "********"


def test_where_a_full_disk_keeps_no_struck_copy_nothing_is_quoted(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    writer.write(f"{KEY}.err", f"{VALUE}\n".encode())
    path = raised(writer, {"exc_type": "E", "exc_message": VALUE})
    monkeypatch.setattr(quoted, "write_private", full)
    drop_secrets(str(writer.folder))
    assert end(writer) == ""
    assert not path.exists()
    assert not (writer.folder / "secrets.json").exists()


def test_events_and_the_exit_record_hold_no_secret(writer: Writer) -> None:
    spool = Spool(str(writer.folder))
    assert append_event(spool.path("events.jsonl"), "not_forked", reason=f"an import said {VALUE}")
    spool.event("stopping", reason="another host failed")
    left = [{"pid": 5, "ticks": 6, "command": f"train --as {VALUE} {VALUE[:9]}", "state": "D", "user": ""}]
    spool.write_exit("stopped", 143, "another host failed", agent_exit=None, survivors=left)
    texts = (writer.folder / "events.jsonl").read_text() + (writer.folder / "exit.json").read_text()
    assert VALUE[:9] not in texts
    assert texts.count("train --as ******** ********") == 2
    assert [event.reason or event.more["reason"] for event in spool.events()] == [
        "an import said ********", "another host failed", "another host failed"
    ]  # fmt: skip


@pytest.mark.parametrize("over", [False, True])
def test_the_evidence_for_a_verdict_holds_no_secret(writer: Writer, *, over: bool) -> None:
    for rank, text in enumerate((f"x {VALUE}\n", f"ValueError: {VALUE} of {VALUE!r}\n")):
        writer.start(rank, rank)
        writer.write(f"0.{rank}.err", text.encode())
        ended = {"start": 0, "local_rank": rank, "rank": rank, "exit_code": 1, "signal": None, "pid": 3}
        append_event(str(writer.folder / "events.jsonl"), "worker_exited", **ended)
    writer.write("agent.out", f"child said {VALUE}\n".encode())
    raised(writer, {"exc_type": "E", "exc_message": VALUE})
    if over:
        drop_secrets(str(writer.folder))
    seen = evidence(Spool(str(writer.folder)))
    error = seen.errors["0.1.json"]
    assert error
    assert error.exc_message == "********"
    assert seen.stderr == {"0.0": "x ********\n", "agent": "child said ********\n"}
