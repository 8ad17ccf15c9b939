"""Whatever a host's helper sends, it costs that host alone, and its error says whose it is."""

from __future__ import annotations

import json
import resource
import threading
from typing import Any, NoReturn, cast

import pytest

from clusterddp.errors import HelperError, HostError, UnreachableError
from clusterddp.hosts import client, stalled
from clusterddp.hosts.answers import Limit
from clusterddp.hosts.client import Host
from clusterddp.hosts.fanout import each
from clusterddp.inventory import HostEntry, Inventory
from clusterddp.launch.ssh.over_ssh import LAUNCHER, Ssh
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.wire.frames import CREDIT, MAX_BODY, encode
from clusterddp.runs.node_answers import query_nodes
from clusterddp.runs.run import Run
from tests.integration.hostile_helper import HELLO, READY, Hostile, hostile


def header(text: bytes, body: bytes = b"") -> bytes:
    return (len(text) + 1 + len(body)).to_bytes(4, "big") + text + b"\n" + body


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "read bad"]


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xff\xff\xff",
        header(b"[" * 60_000),
        header(b'{"id":Infinity,"kind":"end"}'),
        header(b'{"id":1}'),
        header(b'{"id":1,"kind":["end"]}'),
        header(b'{"id":"1","kind":"end"}'),
        encode({"id": 1, "kind": "hello"}),
        encode({"id": 1, "kind": "credit", "n": "many"}),
        encode({"id": 1, "kind": "credit", "n": -5}),
        encode({"id": 1, "kind": "end"}, b"no JSON"),
        encode({"id": 1, "kind": "end"}, b"[" * 10_000),
        encode({"id": 1, "kind": "end"}, b'{"a":NaN}'),
        encode({"id": 1, "kind": "error"}),
        encode({"id": 1, "kind": "error", "message": {"a": []}, "remedy": 3}),
    ],
    ids=lambda answer: repr(answer[:40]),
)
def test_an_answer_that_is_none_is_an_error_of_its_host(answer: bytes) -> None:
    with hostile(answer) as host, pytest.raises(HelperError, match="bad: "):
        host.call("facts", timeout=20)
    assert not reading_threads()


@pytest.mark.parametrize("told", [None, "1", 1.5, [1]])
def test_a_clock_that_cannot_be_read_is_an_error_of_its_host(told: Any) -> None:
    answer = encode({"id": 1, "kind": "end", "time_ns": told})
    with hostile(answer) as host, pytest.raises(HelperError, match="bad: its clock cannot be read"):
        host.ping(20)


def test_frames_that_nobody_asked_for_are_passed_over() -> None:
    answer = encode({"id": 77, "kind": "data"}, b"x" * 999) + encode({"id": 1, "kind": "end"}, b"5")
    with hostile(answer) as host:
        assert host.call("facts", timeout=20) == 5


@pytest.mark.parametrize("told", ["many", 10**12, None])
def test_data_grants_nothing_whatever_is_written_in_its_header(told: Any) -> None:
    answer = encode({"id": 1, "kind": "data", "n": told}) + encode({"id": 1, "kind": "end"}, b"5")
    with hostile(answer) as host:
        assert host.upload("sync_apply", {}, [b"x" * MAX_BODY] * (CREDIT // MAX_BODY + 2), timeout=20) == 5


def read_late(host: Host) -> None:
    """Ask for a stream, and read on only when the host's bytes are read to their end; that may be before the first."""
    stream = host.stream("tail")
    assert host._reader is not None
    try:
        next(stream)
    finally:
        host._reader.join(60)
    list(stream)


def test_a_host_that_sends_more_than_was_granted_is_cut_off_and_its_data_is_not_kept() -> None:
    """Nobody reads the stream: all that comes would be held in memory."""
    times = 20 * CREDIT // MAX_BODY
    with hostile(encode({"id": 1, "kind": "data"}, b"x" * MAX_BODY), times=times) as host:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(HelperError, match="bad: its helper sends nonsense: it sends more than was asked for"):
            read_late(host)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10 * CREDIT >> 10


def test_frames_without_a_body_are_no_way_around_that() -> None:
    empty = encode({"id": 1, "kind": "data"}) * 100
    with hostile(empty, times=1000) as host, pytest.raises(HelperError, match="more than was asked for"):
        read_late(host)


def test_a_result_has_a_limit() -> None:
    answer = encode({"id": 1, "kind": "data", "result": True}, b"1" * MAX_BODY)
    limit = Limit(memory=10 * MAX_BODY)
    with hostile(answer, times=9) as host, pytest.raises(HelperError, match="bad: its answer is over"):
        host.call("facts", timeout=20, limit=limit)


def test_a_host_that_sends_and_never_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What grants it more fills its pipe, and whoever reads its answers is held in a write."""
    monkeypatch.setattr(client, "SILENCE_TIMEOUT", 0.5)
    monkeypatch.setattr(stalled, "CHECK_INTERVAL", 0.1)
    answer = encode({"id": 1, "kind": "data", "result": True}, b" ")
    with hostile(answer, times=3000, deaf=True) as host, pytest.raises(HostError, match=r"bad: .*it took nothing for"):
        host.call("facts", timeout=20)


@pytest.mark.parametrize(
    "first",
    [
        READY + header(b"[" * 60_000),
        READY + encode({"kind": "hello", "protocol": 1}),
        READY + encode({**HELLO, "state": "../.."}),
        READY + encode({**HELLO, "state": "/s\n\x1b[2J"}),
        READY + encode({**HELLO, "pid": -1}),
        READY + encode({**HELLO, "protocol": 2}),
        READY.replace(b"have", b"refused {}"),
        READY.replace(b"have", b"refused [["),
        READY.replace(b"have", b'refused {"message": 5, "remedy": ""}'),
        READY.replace(b"have", b"ready"),
        READY + READY,
    ],
    ids=lambda first: repr(first[13:60]),
)
def test_a_hello_that_is_none_is_an_error_of_its_host(first: bytes) -> None:
    with pytest.raises(HelperError, match="bad: ") as caught:
        Host.open(HostEntry(name="bad", address="bad"), Hostile(b"", first=first))
    assert not {character for character in str(caught.value) if not character.isprintable()}


def test_one_bad_host_costs_the_others_nothing() -> None:
    answers = {
        "bad": header(b'{"kind":NaN}'),
        "gone": encode({"id": 1, "kind": "error", "repeatable": True}),
        "good": encode({"id": 1, "kind": "end"}, json.dumps({"nodes": []}).encode()),
    }

    def ask(entry: HostEntry) -> Any:
        with Host.open(entry, Hostile(answers[entry.name])) as host:
            return host.call("stop", timeout=20)

    bad, gone, good = each([HostEntry(name=name, address=name) for name in answers], ask)
    assert isinstance(bad.error, HelperError)
    assert isinstance(gone.error, UnreachableError)
    assert isinstance(bad.error, HostError)
    assert good.get() == {"nodes": []}


@pytest.mark.parametrize(
    "answer",
    [5, {}, {"nodes": []}, {"nodes": [{"found": "x"}]}, {"nodes": {"a": 1}}, [], None, {"nodes": [{"survivors": [1]}]}],
    ids=repr,
)
def test_a_stop_whose_proof_is_damaged_is_not_proved_there_and_goes_on_elsewhere(answer: Any) -> None:
    good = {"host": "good", "found": 2, "killed": 0, "survivors": [], "unknown": [], "gpus": None}
    answers = {"bad": answer, "good": {"nodes": [good], "proved_empty": True}}

    class Both:
        inventory = Inventory(path=None, hosts=tuple(HostEntry(name=name, address=name) for name in answers), groups={})

        def launcher_of(self, record: object) -> Ssh:
            del record
            return LAUNCHER

        def describe(self, *_: object) -> NoReturn:
            raise UnreachableError("good", "is not asked")

        def host(self, name: str) -> Host:
            said = encode({"id": 1, "kind": "end"}, json.dumps(answers[name]).encode())
            return Host.open(HostEntry(name=name, address=name), Hostile(said))

    record = RunRecord(hosts=tuple(answers))
    run = Run(cast("Any", Both()), "abcdefghjk", 1, dict.fromkeys(answers, "/s"), record)
    proofs = {proof.host: proof for proof in run.stop()}
    assert not proofs["bad"].proved_empty
    assert "bad: its answer is damaged" in proofs["bad"].error
    assert proofs["good"].proved_empty
    assert proofs["good"].found == 2


@pytest.mark.parametrize("host", ["bad", "gpu01"])
def test_a_host_tells_of_its_own_nodes_alone(host: str) -> None:
    node = {
        "run": "abcdefghjk", "attempt": 1, "host": host, "node_rank": 0, "spool": "/s", "state": "running",
        "record": {"hosts": []}, "exit": None, "events": [], "clock_offset_ns": 0, "clock_error_ns": 0, "pids": [],
    }  # fmt: skip
    answer = encode({"id": 1, "kind": "end"}, json.dumps([node]).encode())
    with hostile(answer) as opened:
        if host == "bad":
            assert query_nodes(opened, "abc", lambda _: None)[0].state == "running"
            return
        with pytest.raises(HelperError, match=r"bad: what it tells of runs .* on gpu01"):
            query_nodes(opened, "abc", lambda _: None)


@pytest.mark.parametrize("kind", ["result", "error", "end of a stream"])
def test_half_of_a_character_from_a_host_can_be_written_wherever_it_goes(kind: str) -> None:
    """A page, a crash file and a terminal are UTF-8: it ended the page of the doctor."""
    if kind == "error":
        answer = encode(
            {"id": 1, "kind": "error", "message": "a\ud800b", "remedy": "\udc01", "trace": "\udcff", "bug": True}
        )
        with hostile(answer) as host, pytest.raises(HelperError) as caught:
            host.call("facts", timeout=20)
        told = [str(caught.value), caught.value.trace]
    else:
        answer = encode({"id": 1, "kind": "end"}, rb'{"\ud800": ["a\udc01", "\ud83d\ude00", "\udcff"]}')
        with hostile(answer) as host:
            found = host.call("facts", timeout=20) if kind == "result" else json.loads([*host.stream("tail")][-1].body)
        assert found == {"\ufffd": ["a\ufffd", "\U0001f600", "\ufffd"]}
        told = [json.dumps(found, ensure_ascii=False)]
    assert all(text.encode() for text in told)
