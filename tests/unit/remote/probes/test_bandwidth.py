"""Pouring and draining on real sockets of this machine. Between hosts: tests/integration/doctor/test_bench.py."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.helper.request import Request
from clusterddp.remote.probes import bandwidth
from clusterddp.remote.probes.bandwidth import drain, pour
from clusterddp.remote.shared.wire.frames import Decoder
from tests.unit.operation import run_operation

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME = "127.0.0.1"
PORTS = [29440, 29459]


@contextlib.contextmanager
def drained(nonce: str = "secret") -> Iterator[int]:
    """The port of a listener in a process of its own, killed as the helper kills a cancelled operation."""
    frames, sink = os.pipe()
    child = os.fork()
    if not child:
        try:
            drain(Request(1, {"ports": PORTS, "nonce": nonce, "seconds": 60}, 0, sink))
        finally:
            os._exit(1)
    os.close(sink)
    try:
        yield next(Decoder().feed(os.read(frames, 1 << 16))).header["ports"][0]
    finally:
        os.close(frames)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def poured(port: int, nonce: str = "secret") -> Any:
    return run_operation(pour, {"address": HOME, "port": port, "nonce": nonce})


def test_what_flows_is_counted_for_the_window() -> None:
    with drained() as port:
        assert PORTS[0] <= port <= PORTS[1]
        for _ in range(2):
            found = poured(port)
            assert found["error"] is None
            assert found["counted"]["bytes"] > 1 << 20
            assert found["counted"]["ns"] > bandwidth.MEASURE_SECONDS * 1e9 / 2


def test_another_machine_behind_the_address_is_noticed() -> None:
    with drained("other") as port:
        assert poured(port) == {"counted": None, "error": "wrong nonce"}


def test_nobody_there_is_a_word() -> None:
    with socket.create_server((HOME, 0)) as taken:
        port = taken.getsockname()[1]
    assert poured(port)["error"] == "refused"


def test_a_caller_that_leaves_or_says_nothing_disturbs_no_other() -> None:
    with drained() as port, socket.create_connection((HOME, port)) as silent:
        assert silent.recv(6) == b"secret"
        for _ in range(3):
            socket.create_connection((HOME, port)).close()
        assert poured(port)["error"] is None


def test_a_way_that_is_stuck_is_measured_in_its_time() -> None:
    """What comes is one byte, and then nothing."""
    with drained() as port, socket.create_connection((HOME, port), 10) as caller:
        assert caller.recv(6) == b"secret"
        caller.sendall(b"x")
        answer = json.loads(caller.recv(200))
    assert answer["bytes"] == 0
    assert answer["ns"] > 0


def test_a_listener_that_never_answers_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "TIMEOUT", 0.3)
    with socket.create_server((HOME, 0)) as listener:

        def greet() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                kept.append(connection)
                connection.sendall(b"secret")

        kept: list[socket.socket] = []
        greeter = threading.Thread(target=greet)
        greeter.start()
        found = poured(listener.getsockname()[1])
        greeter.join()
        for connection in kept:
            connection.close()
    assert found == {"counted": None, "error": "timeout"}


def test_a_listener_without_operator_ends_by_itself() -> None:
    assert run_operation(drain, {"ports": PORTS, "nonce": "n", "seconds": 0.05}) == {}


NO_COUNTS = (b"[" * 100_000, b"[" * 150 + b"\n", b"{}\n", b"1\n", b'{"bytes":-1,"ns":1}\n', b"x" * 1000)


@pytest.mark.parametrize("answer", NO_COUNTS, ids=range(len(NO_COUNTS)))
def test_whatever_answers_at_the_port_an_error_is_told(answer: bytes) -> None:
    with socket.create_server((HOME, 0)) as listener:

        def greet() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(b"secret")
                    if connection.recv(1):
                        connection.sendall(answer)

        greeter = threading.Thread(target=greet)
        greeter.start()
        found = poured(listener.getsockname()[1])
        greeter.join()
    assert found.pop("error")
    assert found == {"counted": None}
