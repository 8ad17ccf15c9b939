"""Puts the simulation's clock, sockets, pipes and signals where the supervisors' code has the system's."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from clusterddp.remote.control import connection, datagrams
from clusterddp.remote.shared.verdict.failures import Evidence
from clusterddp.remote.supervisor import attempt_end, conclusion, fence, fence_pipe, node, relaunch
from tests.unit.simulated.host import SimulatedAttempt, SimulatedLoop, SimulatedRelaunching
from tests.unit.simulated.network import DatagramSocket, Stream
from tests.unit.simulated.parts import Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.remote.control.messages import Message
    from tests.unit.simulated.run import Simulation

ROOMS = ("clusterddp.remote.control.", "clusterddp.remote.supervisor.", "clusterddp.remote.rendezvous.")
_TAG = b"t" * 32


class Messages:
    """Messages as numbers: their encoding and its proofs have tests of their own, and cost most of a run's time."""

    def __init__(self) -> None:
        self._sent: list[Message] = []

    def encode(self, message: Message) -> bytes:
        self._sent.append(message)
        return struct.pack(">Q", len(self._sent) - 1)

    def decode(self, payload: bytes) -> Message:
        (number,) = struct.unpack(">Q", payload)
        return self._sent[int(number)]


def _fakes(simulation: Simulation) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """What stands in which module, and the clocks that stand in all."""

    def here() -> Any:
        return simulation.running

    pipes = {
        "set_blocking": lambda *_: None,
        "write": lambda pipe, data: pipe.write(data),
        "read": lambda pipe, size: pipe.read(size),
        "close": lambda _: None,
        "getpid": lambda: 1,
        "kill": lambda _, number: here().agent.signal(number),
        "umask": lambda _: 0,
    }
    clock = SimpleNamespace(
        monotonic=lambda: here().monotonic(), time_ns=lambda: here().time_ns(), sleep=lambda _: None
    )
    port = SimpleNamespace(getsockname=lambda: ("", 29500), detach=lambda: 7)
    of_network = {name: getattr(socket, name) for name in ("AF_INET", "AF_INET6", "SOCK_STREAM", "SOCK_DGRAM")}
    options = {"IPPROTO_TCP": 6, "TCP_NODELAY": 1}
    fakes: dict[Any, dict[str, Any]] = {
        connection: {
            "socket": SimpleNamespace(
                socket=lambda *_: Stream(simulation.network, here().address), **of_network, **options
            ),
            "messages": Messages(),
            "_tag": lambda *_: _TAG,
            "os": SimpleNamespace(urandom=simulation.random.randbytes, strerror=str),
        },
        datagrams: {
            "socket": SimpleNamespace(
                socket=lambda *_: DatagramSocket(simulation.network, here().address), **of_network
            ),
            "_tag": lambda *_: _TAG,
        },
        node: {
            "Loop": lambda record: SimulatedLoop(record, simulation.running),
            "FileWork": lambda _: Work(simulation.running),
            "Relaunching": SimulatedRelaunching,
            "Attempt": SimulatedAttempt,
            "socket": SimpleNamespace(socket=lambda fileno: fileno),
            "os": SimpleNamespace(**pipes),
            "resource": SimpleNamespace(RLIMIT_NOFILE=0, getrlimit=lambda _: (9, 9), setrlimit=lambda *_: None),
        },
        fence: {
            "os": SimpleNamespace(**pipes),
            "procfs": SimpleNamespace(read_process=lambda _: SimpleNamespace(parent=1)),
        },
        fence_pipe: {"os": SimpleNamespace(**pipes)},
        relaunch: {"bind_ports": lambda *_: [port]},
        conclusion: {"evidence": lambda _: Evidence()},
        attempt_end: {"evidence": lambda _: Evidence(), "count_clients": lambda _: simulation.agents_running()},
    }
    return fakes, {"boot_clock": lambda: here().boot_clock(), "time": clock}


@contextlib.contextmanager
def simulated(simulation: Simulation) -> Iterator[None]:
    """While this lasts, all code of run control runs on the simulation's hosts."""

    fakes, clocks = _fakes(simulation)
    with contextlib.ExitStack() as stack:
        for module in [module for name, module in sys.modules.items() if name.startswith(ROOMS)]:
            for name, value in clocks.items():
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, value))
        for module, values in fakes.items():
            for name, value in values.items():
                stack.enter_context(mock.patch.object(module, name, value))
        yield
