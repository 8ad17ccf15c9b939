"""Listening and dialling on real sockets of this machine. Firewalls: tests/integration/doctor/test_probe.py."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.helper.request import Request
from clusterddp.remote.probes import dial as dialling
from clusterddp.remote.probes import reachability
from clusterddp.remote.probes.dial import TcpInfo
from clusterddp.remote.probes.reachability import bind_range, dial, dial_all, listen
from clusterddp.remote.shared.probes.network_records import DialRequest, DialTarget, Heard
from clusterddp.remote.shared.schema.record import read_record, to_fields
from clusterddp.remote.shared.wire.frames import Decoder, encode
from clusterddp.remote.system.bootstrap import Refused
from tests.unit.operation import run_operation

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME = "127.0.0.1"


@contextlib.contextmanager
def listener(nonce: str = "secret", ports: tuple[int, int] = (29480, 29499)) -> Iterator[list[int]]:
    """A listener in a process of its own, killed as the helper kills a cancelled operation."""
    frames, sink = os.pipe()
    source, operator = os.pipe()
    child = os.fork()
    if not child:
        try:
            listen(Request(1, {"ports": list(ports), "nonce": nonce, "seconds": 60}, source, sink))
        finally:
            os._exit(1)
    os.close(sink)
    os.close(source)
    try:
        yield next(Decoder().feed(os.read(frames, 1 << 16))).header["ports"]
    finally:
        os.close(frames)
        os.close(operator)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def measure(*targets: tuple[str, int, str], timeout: float = 1.0, echoes: int = 0, bulk: int = 0) -> Any:
    wanted = tuple(DialTarget(*target, echoes, bulk) for target in targets)
    return run_operation(dial, to_fields(DialRequest(wanted, timeout)))


def ask(*targets: tuple[str, int, str], timeout: float = 1.0) -> Any:
    return [answer["word"] for answer in measure(*targets, timeout=timeout)]


def test_both_ports_of_a_listener_answer_with_its_nonce() -> None:
    with listener() as (ranged, chosen):
        assert 29480 <= ranged <= 29499
        assert ask((HOME, ranged, "secret"), (HOME, chosen, "secret")) == ["ok", "ok"]


def test_a_listener_answers_on_ipv6_too() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with listener() as (ranged, _):
        assert ask(("::1", ranged, "secret")) == ["ok"]


def test_another_machine_behind_the_address_is_noticed() -> None:
    with listener("other") as (ranged, _):
        assert ask((HOME, ranged, "secret")) == ["wrong nonce"]


def test_a_port_without_listener_is_refused() -> None:
    with socket.create_server((HOME, 0)) as taken:
        port = taken.getsockname()[1]
    assert ask((HOME, port, "secret")) == ["refused"]


def test_a_peer_that_connects_and_says_nothing_is_no_firewall() -> None:
    with socket.create_server((HOME, 0)) as silent:
        assert ask((HOME, silent.getsockname()[1], "secret"), timeout=0.4) == ["no data"]


def test_a_port_that_answers_no_handshake_is_a_timeout() -> None:
    with socket.create_server((HOME, 0), backlog=0) as full, socket.create_connection(full.getsockname(), 10):
        assert ask((HOME, full.getsockname()[1], "secret"), timeout=0.4) == ["timeout"]


def test_a_dial_whose_answer_is_lost_is_repeated_before_its_time_is_over() -> None:
    with socket.create_server((HOME, 0)) as server, ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        server.settimeout(30)
        asking = pool.submit(measure, (HOME, server.getsockname()[1], "secret"), timeout=6, bulk=1)
        lost = [stack.enter_context(server.accept()[0]) for _ in range(2)]
        for connection in lost:
            connection.settimeout(30)
        answered = stack.enter_context(server.accept()[0])
        answered.settimeout(30)
        answered.sendall(b"secret")
        assert answered.recv(5) == b"\0\0\0\1\0"
        assert [connection.recv(1) for connection in lost] == [b"", b""]  # nobody waits for them any more
        answered.sendall(b"\0\0\0\1")
        (answer,) = asking.result(30)
    assert (answer["word"], answer["bulk"]) == ("ok", True)


def test_a_network_without_route_is_told() -> None:
    assert ask(("255.255.255.255", 9, "secret"))[0] != "ok"


def test_addresses_that_are_none_are_results_not_crashes() -> None:
    words = ask(("nonsense:", 1, "n"), (HOME, 70000, "n"), ("", -1, "n"))
    assert len(words) == 3
    assert "ok" not in words


def test_many_dials_cost_about_one_timeout() -> None:
    with socket.create_server((HOME, 0)) as silent, listener() as (ranged, _):
        targets = [(HOME, silent.getsockname()[1], "x"), (HOME, ranged, "secret")] * 40
        words = ask(*targets, timeout=0.5)
    assert words == ["no data", "ok"] * 40


def test_more_dials_than_descriptors_go_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "DIALS_AT_ONCE", 3)
    with listener() as (ranged, _):
        assert ask(*[(HOME, ranged, "secret")] * 10) == ["ok"] * 10


def test_no_targets_give_no_results() -> None:
    assert dial_all([], 1.0) == []


def test_a_taken_port_is_passed_over_and_a_full_range_is_refused() -> None:
    with bind_range(29470, 29479) as first:
        port = first.getsockname()[1]
        with bind_range(port, 29479) as second:
            assert second.getsockname()[1] > port
        with pytest.raises(Refused, match=f"no free port in {port}-{port}"):
            bind_range(port, port)


def test_a_range_can_be_bound_again_at_once() -> None:
    with listener(ports=(29460, 29460)) as (ranged, _):
        assert ask((HOME, ranged, "secret")) == ["ok"]
    with bind_range(29460, 29460):
        pass


def test_a_listener_without_operator_ends_by_itself() -> None:
    heard = read_record(Heard, run_operation(listen, {"ports": [29480, 29499], "nonce": "n", "seconds": 0.05}), "heard")
    assert heard.callers == {}


def test_a_listener_reports_at_the_end_of_its_data_who_connected_on_which_port() -> None:
    operator_reads, sink = os.pipe()
    source, operator_writes = os.pipe()
    request = Request(1, {"ports": [29480, 29499], "nonce": "n", "seconds": 60}, source, sink)
    try:
        with ThreadPoolExecutor(1) as pool:
            listening = pool.submit(listen, request)
            ranged, chosen = next(Decoder().feed(os.read(operator_reads, 1 << 16))).header["ports"]
            assert ask((HOME, ranged, "n"), timeout=30) == ["ok"]
            assert ask(("::1" if socket.has_ipv6 else HOME, chosen, "n"), timeout=30) == ["ok"]
            os.write(operator_writes, encode({"kind": "end"}))
            heard = read_record(Heard, listening.result(30), "heard")
    finally:
        for handle in (operator_reads, sink, source, operator_writes):
            os.close(handle)
    assert heard.callers == {str(ranged): (HOME,), str(chosen): ("::1" if socket.has_ipv6 else HOME,)}
    assert heard.before.listen_overflows is not None


def test_the_time_for_which_a_process_does_not_get_to_run_is_no_time_of_the_dialled_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock jumps where a process that was stopped goes on; then the answer, which has come meanwhile, is read."""
    jumps, now = iter([0.0, 0.0, 40.0]), time.monotonic
    passed = [0.0]

    def clock() -> float:
        return now() + passed[0]

    class Suspended(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            passed[0] += next(jumps, 0.0)
            return super().select(timeout) if passed[0] else []

    monkeypatch.setattr(reachability, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(selectors, "DefaultSelector", Suspended)
    with socket.create_server((HOME, 0)) as server, ThreadPoolExecutor(1) as pool:
        dialling = pool.submit(dial_all, [DialTarget(HOME, server.getsockname()[1], "secret")], 20.0)
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"secret")
            (answer,) = dialling.result(60)
    assert answer.word == "ok"


def test_a_process_that_hardly_runs_gives_up_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [0.0]

    class Suspended(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            passed[0] += 3.0
            return super().select(0 if timeout else None)

    monkeypatch.setattr(reachability, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    monkeypatch.setattr(selectors, "DefaultSelector", Suspended)
    with socket.create_server((HOME, 0)) as silent:
        assert dial_all([DialTarget(HOME, silent.getsockname()[1], "n")], 1.0)[0].word == "no data"
    assert passed[0] < 60


def test_what_is_said_after_the_nonce_is_measured() -> None:
    answers = []
    for _ in range(3):
        with listener() as (_, chosen):
            answers += measure((HOME, chosen, "secret"), echoes=5, bulk=1 << 16, timeout=10)
    for answer in answers:
        assert (answer["word"], answer["bulk"]) == ("ok", True)
        assert 0 < answer["rtt_us"] < 10**6
        assert answer["sent"] >= 7
    # Where this process is held up, TCP sends its last segment again, on the loopback too.
    assert min(answer["resent"] for answer in answers) == 0


def test_nothing_is_measured_unasked() -> None:
    with listener() as (ranged, _):
        (answer,) = measure((HOME, ranged, "secret"))
    assert (answer["word"], answer["bulk"]) == ("ok", None)


def test_a_message_larger_than_a_socket_takes_is_sent_in_pieces() -> None:
    with listener() as (_, chosen):
        (answer,) = measure((HOME, chosen, "secret"), bulk=1 << 20, timeout=10)
    assert (answer["word"], answer["bulk"]) == ("ok", True)


def test_a_listener_that_says_the_nonce_and_then_hangs_up_is_told() -> None:
    with socket.create_server((HOME, 0)) as server, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(measure, (HOME, server.getsockname()[1], "secret"), echoes=1, timeout=10)
        connection, _ = server.accept()
        connection.send(b"secret")
        connection.close()
        assert asking.result()[0]["word"] == "refused"


def test_a_listener_that_answers_another_length_is_not_ours() -> None:
    with socket.create_server((HOME, 0)) as server, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(measure, (HOME, server.getsockname()[1], "secret"), echoes=1, timeout=10)
        connection, _ = server.accept()
        connection.sendall(b"secret")
        with connection:
            assert connection.recv(1)
            connection.sendall(b"xxxx")
            assert asking.result()[0]["word"] == "wrong nonce"


def test_a_listener_that_is_slow_after_its_nonce_is_no_black_hole() -> None:
    with socket.create_server((HOME, 0)) as server, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(measure, (HOME, server.getsockname()[1], "secret"), bulk=1000, timeout=0.5)
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"secret")
            (answer,) = asking.result()
    assert (answer["word"], answer["bulk"]) == ("ok", None)


@pytest.mark.parametrize(("resent", "expected"), [(0, ("black hole", False)), (1, ("ok", None))])
def test_large_packets_are_not_judged_where_small_ones_had_to_be_sent_again(
    resent: int, expected: tuple[str, bool | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialling, "tcp_info", lambda _connection: TcpInfo(sent=9, resent=resent))
    with socket.create_server((HOME, 0)) as server, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(measure, (HOME, server.getsockname()[1], "secret"), bulk=1000, timeout=0.5)
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"secret")
            (answer,) = asking.result()
    assert (answer["word"], answer["bulk"]) == expected


def test_a_caller_who_says_what_is_no_message_is_hung_up_on_and_the_next_is_answered() -> None:
    with listener() as (ranged, _):
        with socket.create_connection((HOME, ranged), 10) as caller:
            assert caller.recv(6) == b"secret"
            caller.sendall(b"\xff\xff\xff\xff")
            assert caller.recv(1) == b""
        assert ask((HOME, ranged, "secret")) == ["ok"]
