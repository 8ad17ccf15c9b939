"""The operation ``traces`` with servers made up: hostile, silent, many; each worker's part of the answer is small."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.helper.request import Request
from clusterddp.remote.processes import trace_decoder, traces
from clusterddp.remote.processes.traces import Look, look_at
from clusterddp.remote.processes.worker_server import NoAnswerError
from clusterddp.remote.shared.collectives.trace_records import CREATED, DONE, MAX_WORKER_BYTES, STARTED, WorkerTrace
from clusterddp.remote.shared.run.event_schema import WORKER_STARTED, NodeEvent
from clusterddp.remote.shared.schema.json_text import to_json
from clusterddp.remote.shared.schema.record import read_record, to_fields
from clusterddp.remote.spool.layout import Spool
from tests.unit.json_values import VALUES
from tests.unit.remote.processes.test_worker_server import bind, serving
from tests.unit.remote.processes.traces_made import COUNTERS, ENTRIES, TEXTS, entry, trace

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")

PID = os.getpid()
HUGE = (1 << 63) - 1


def event(local_rank: int = 0, pid: int = PID) -> NodeEvent:
    return NodeEvent(WORKER_STARTED, 0, local_rank=local_rank, rank=4 + local_rank, pid=pid)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    spool = Spool(str(tmp_path))
    Path(spool.traces).mkdir(0o700)
    return spool


def http(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@contextlib.contextmanager
def worker(
    spool: Spool,
    local_rank: int = 0,
    groups: bytes | None = None,
    waits: bytes | None = None,
    nccl: bytes | None = None,
) -> Iterator[list[bytes]]:
    """A worker's server with a trace and counters; without them it does not know the question."""
    answers = {b"wait_counter_values": waits, b"fr_trace_json": groups, b"dump_nccl_trace_json": nccl}

    def answer(caller: socket.socket, question: bytes) -> None:
        text = answers.get(question.split()[1].rpartition(b"/")[2])
        caller.sendall(http(b"", b"404 Not Found") if text is None else http(text))

    with serving(Path(spool.trace_socket(f"0.{local_rank}")), answer) as asked:
        yield asked


def look(spool: Spool, one: NodeEvent | None = None) -> WorkerTrace:
    return look_at(spool, one or event(), {}, time.monotonic() + 5).cut()


def ask(spool: Spool, monkeypatch: pytest.MonkeyPatch, *workers: NodeEvent) -> list[WorkerTrace]:
    """The operation's answer for these live workers."""
    monkeypatch.setattr(traces, "live_workers", lambda _events: [*workers])
    answer = json.loads(to_json(traces.traces(Request(0, {"spool": spool.folder}, -1, -1))))
    return [read_record(WorkerTrace, one, "trace") for one in answer]


def test_a_worker_is_told_with_its_state_waits_and_groups(spool: Spool) -> None:
    with worker(spool, groups=trace(entry(1), entry(2, CREATED)), waits=json.dumps(COUNTERS).encode()):
        found = look(spool)
    assert (found.rank, found.local_rank, found.start, found.pid, found.why) == (4, 0, 0, PID, "")
    assert found.state in "RS"
    assert (found.waits, found.calls) == (("TCPStore__wait",), (1,))
    assert [row[:3] for row in found.groups[0].entries] == [[1, 0, DONE], [2, 0, CREATED]]


def test_torch_without_counters_still_tells_its_groups(spool: Spool) -> None:
    with worker(spool, groups=trace(entry(1))):
        found = look(spool)
    assert (found.waits, found.why, len(found.groups)) == ((), "", 1)


def test_both_recorders_are_asked_and_their_numbers_kept_apart(spool: Spool) -> None:
    started = entry(1, STARTED)
    with worker(spool, groups=trace(entry(1)), waits=b"{}", nccl=trace(started)):
        both = look(spool)
    assert [(group.name, group.entries[0][:3]) for group in both.groups] == [
        ("0 nccl", [1, 0, STARTED]),
        ("0", [1, 0, DONE]),
    ]
    with worker(spool, 1, waits=b"{}", nccl=trace(started)):
        assert [group.name for group in look(spool, event(1)).groups] == ["0 nccl"]
    with worker(spool, 2, groups=trace(entry(1)), waits=b"{}", nccl=b"{"):
        assert look(spool, event(2)).why.startswith("what it tells of itself is damaged")


@pytest.mark.parametrize(("cores", "threads"), [(2, 8), (9, 8), (64, 63)])
def test_a_look_calls_each_thread_of_the_server_once_and_has_the_last_make_the_trace(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, cores: int, threads: int
) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: cores if name == "SC_NPROCESSORS_ONLN" else 100)
    monkeypatch.setattr(traces, "MAX_PASSING", 5)
    with worker(spool, groups=trace(entry(1)), waits=b"{}") as asked:
        assert look(spool).why == ""
    handlers = [question.split()[1].decode().rpartition("/")[2] for question in asked]
    assert handlers == [
        "wait_counter_values",
        *["ping"] * (threads - 3),
        "fr_trace_json",
        "dump_nccl_trace_json",
    ]


@pytest.mark.parametrize(
    ("groups", "waits", "why"),
    [
        (None, b"{}", "its torch does not answer this question"),
        (b"{}", b"{", "what it tells of itself is damaged: no JSON: "),
        (b"[]", b"{}", "what it tells of itself is damaged: trace"),
        (
            b"{}",
            b'{"\\u001b[2J\\n": {"active_count": "\\u001b[2J\\n"}}',
            "what it tells of itself is damaged: counters",
        ),
    ],
)
def test_what_is_no_trace_is_said_in_few_printable_words(
    spool: Spool, groups: bytes | None, waits: bytes, why: str
) -> None:
    with worker(spool, groups=groups, waits=waits):
        found = look(spool)
    assert found.why.startswith(why)
    assert found.why.isprintable()
    assert len(found.why) <= traces.MAX_WHY
    assert found.groups == ()


def test_one_without_a_server_says_so_and_one_that_has_ended_is_not_asked(spool: Spool) -> None:
    assert look(spool).why.startswith("it has not loaded torch.distributed")
    with serving(Path(spool.trace_socket("0.0")), lambda _caller, _question: None) as asked:
        ended = look(spool, event(pid=1 << 30))
        assert look(spool, event(pid=0)) == ended._replace(pid=0)
    assert (ended.state, ended.why, ended.cpu_ms, ended.children) == ("", "it has just ended", 0, ())
    assert not asked


def test_one_silent_worker_of_eight_delays_the_answer_by_its_timeout_and_no_more(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[tuple[float, float]] = []  # of each look: the end of its time, and how much of it was left

    def noting(*asked: Any) -> Look:
        limits.append((asked[3], asked[3] - time.monotonic()))
        return look_at(*asked)

    monkeypatch.setattr(traces, "look_at", noting)
    text = trace(*(entry(number) for number in range(1, 101)))
    with contextlib.ExitStack() as stack:
        for local_rank in range(7):
            stack.enter_context(worker(spool, local_rank, groups=text, waits=b"{}"))
        silent = stack.enter_context(socket.socket(socket.AF_UNIX))
        bind(silent, Path(spool.trace_socket("0.7")))
        silent.listen(5)
        found = ask(spool, monkeypatch, *map(event, range(8)))
    assert len({end for end, _ in limits}) == 1  # it is one for all, who are looked at side by side
    assert len(limits) == 8 <= traces.AT_ONCE
    assert max(left for _, left in limits) <= traces.TIMEOUT
    assert [trace.why for trace in found] == [""] * 7 + ["it does not answer"]
    assert all(len(trace.groups[0].entries) == 64 for trace in found[:7])


def test_the_workers_of_a_host_keep_their_first_mismatch(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = [entry(number) for number in range(1, 501)]
    theirs = [*mine[:9], entry(10, name="broadcast"), *mine[10:]]
    with worker(spool, 0, trace(*mine), b"{}"), worker(spool, 1, trace(*theirs), b"{}"):
        found = ask(spool, monkeypatch, event(0), event(1), event(2))
    assert [trace.groups[0].entries[0][0] for trace in found[:2]] == [10, 10]
    assert [trace.groups[0].operations[0].name for trace in found[:2]] == ["all_reduce", "broadcast"]
    assert found[2].groups == ()


def test_one_that_has_no_socket_of_its_server_is_not_asked(spool: Spool) -> None:
    path = Path(spool.trace_socket("0.0"))
    with serving(path, lambda _caller, _question: None) as asked, subprocess.Popen(["sleep", "60"]) as other:
        assert look(spool, event(pid=other.pid)).why == "its script has closed the socket of its server"
        other.kill()
    assert not asked


def test_no_live_worker_is_an_empty_answer(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(spool, monkeypatch) == []


@given(
    entries=st.lists(ENTRIES, max_size=40),
    counters=st.dictionaries(TEXTS, st.integers(0, 2), max_size=8),
    names=st.lists(TEXTS, max_size=6),
    numbers=st.integers(0, 5) | st.just(HUGE),
)
def test_whatever_a_worker_says_its_part_of_the_answer_is_small(
    entries: list[dict[str, Any]], counters: dict[str, int], names: list[str], numbers: int
) -> None:
    prefix = trace_decoder.WAIT_PREFIX
    text = json.dumps(
        {prefix + name: {"active_count": count, "total_calls": numbers} for name, count in counters.items()}
    )
    waits = trace_decoder.read_waits(text.encode())
    children = tuple(trace_decoder.clean(name[:15]) for name in names[: traces.MAX_CHILDREN])
    whole = WorkerTrace(
        *(numbers, numbers, numbers, numbers, "S", trace_decoder.clean("".join(names)), numbers, numbers, children),
        waits=tuple(waits),
        calls=tuple(waits.values()),
    )
    groups = trace_decoder.read_groups(trace(*entries))
    trace_decoder.mark_mismatches([groups, groups[:1]])
    found = Look(whole, groups, numbers).cut()
    assert len(to_json(to_fields(found)).encode()) <= MAX_WORKER_BYTES
    assert bool(found.groups) == bool(groups)


@given(st.sampled_from(["wait_counter_values", "fr_trace_json"]), VALUES | TEXTS, TEXTS)
def test_whatever_is_wrong_with_an_answer_its_reason_is_small(handler: str, value: Any, why: str) -> None:
    def ask(_path: str, asked: str, **_limits: object) -> bytes:
        if asked == handler:
            return json.dumps(value).encode()
        raise NoAnswerError(why)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "ask", ask)
        patch.setattr(os.path, "lexists", lambda _path: True)
        patch.setattr(traces, "is_open", lambda _pid, _path: True)
        found = look(Spool("/none"))
    assert len(to_json(to_fields(found)).encode()) <= MAX_WORKER_BYTES
    assert found.why.isprintable()
