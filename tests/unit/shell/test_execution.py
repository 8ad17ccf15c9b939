"""One input for many readers, and hosts that begin while the command is ended."""

from __future__ import annotations

import errno
import io
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.hosts.fanout import HostGroup
from clusterddp.inventory import HostEntry
from clusterddp.remote.shared.wire.frames import Frame
from clusterddp.remote.system import setup_env
from clusterddp.shell import Command, Execution
from clusterddp.shell import execution as execution_module
from clusterddp.shell.execution import SETUP_TIMEOUT, SharedInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

    from clusterddp.hosts.outgoing import Outgoing


class FakeHost:
    """A stand-in for a host: its command prints nothing; ends when stopped or, unless ``sleeps``, at end of input."""

    def __init__(self, name: str, *, sleeps: bool = False) -> None:
        self.ends = {"data": False, "end": not sleeps}  # whether a frame of that kind ends it
        self.entry, self.name = HostEntry(name=name, address=name), name
        self.frames = queue.Queue[Any]()  # what was sent to it
        self.begun = threading.Event()
        self.code = queue.Queue[int]()  # its command's exit code: the size of its input, or 143 if it was stopped

    def stream(self, _op: str, _args: object, outgoing: Outgoing) -> Iterator[Frame]:
        self.begun.set()
        outgoing.attach(lambda header, body: self.frames.put((header, body)))
        given, stopped = b"", False
        while not stopped:
            header, body = self.frames.get(timeout=10)
            given, stopped = given + body, header.get("stop", False) or self.ends[header["kind"]]
        code = 143 if header.get("stop") else len(given)
        end = {"code": code, "error": "", "stopped": code == 143, "left": [], "cwd": "/", "home": False}
        outgoing.detach()
        self.code.put(code)
        yield Frame({"kind": "end"}, json.dumps(end).encode())


def run_on(host: FakeHost, connect: Callable[[HostEntry], Any], given: IO[bytes] | None = None) -> Execution:
    return Execution(
        HostGroup([host.entry], connect),
        Command(argv=("true",), bare=True),
        workdirs={host.name: ""},
        subfolder="",
        given=given,
    )


def test_a_host_that_is_connected_after_a_stop_never_starts_the_command() -> None:
    host, asked, answer = FakeHost("gpu00"), threading.Event(), threading.Event()
    left = threading.Event()

    def connect(_entry: HostEntry) -> Any:
        asked.set()
        answer.wait(10)
        threading.Timer(0.2, left.set).start()
        return host

    execution = run_on(host, connect)
    assert asked.wait(10)
    list(execution.stop())
    assert execution.results["gpu00"].error == "was not reached before the command was ended"
    answer.set()
    assert left.wait(10)
    assert not host.begun.is_set()


def test_a_command_that_begins_during_a_stop_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    host, begins, stopped = FakeHost("gpu00"), threading.Event(), threading.Event()
    stream = host.stream

    def begin_late(*args: Any) -> Iterator[Frame]:
        begins.set()
        stopped.wait(10)
        yield from stream(*args)

    monkeypatch.setattr(host, "stream", begin_late)
    stdin, into = os.pipe()
    with os.fdopen(stdin, "rb") as never_ends:
        execution = run_on(host, lambda _: host, never_ends)
        assert begins.wait(10)
        threading.Timer(0.2, stopped.set).start()
        list(execution.stop())
        execution.close()
        os.close(into)
    assert (execution.results["gpu00"].code, execution.results["gpu00"].stopped) == (143, True)


@pytest.mark.parametrize("whole", [True, False])
def test_a_command_that_is_left_before_its_input_ends_is_stopped(*, whole: bool) -> None:
    host = FakeHost("gpu00")
    stdin, into = os.pipe()
    with io.FileIO(stdin) as source:
        execution = run_on(host, lambda _: host, source)
        os.write(into, b"half")
        if whole:
            os.close(into)
            assert host.code.get(timeout=10) == len(b"half")
        assert host.begun.wait(10)
        execution.close()
        if not whole:
            assert host.code.get(timeout=10) == 143
            os.close(into)


def test_a_command_whose_caller_was_interrupted_is_stopped() -> None:
    host = FakeHost("gpu00", sleeps=True)
    execution = run_on(host, lambda _: host)
    assert host.begun.wait(10)
    execution.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert host.code.get(timeout=10) == 143


def test_a_host_that_takes_nothing_delays_the_end_on_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {name: FakeHost(name, sleeps=True) for name in ("gpu00", "gpu01")}
    over = threading.Event()

    def stall(_op: str, _args: object, outgoing: Outgoing) -> Iterator[Frame]:
        outgoing.attach(lambda *_: over.wait(20))
        hosts["gpu00"].begun.set()
        over.wait(20)
        yield Frame({"kind": "end"}, b"{}")

    monkeypatch.setattr(hosts["gpu00"], "stream", stall)
    group = HostGroup([host.entry for host in hosts.values()], lambda entry: hosts[entry.name])  # type: ignore[arg-type, return-value]
    execution = Execution(
        group, Command(argv=("true",), bare=True), workdirs=dict.fromkeys(hosts, ""), subfolder="", given=None
    )
    assert all(host.begun.wait(10) for host in hosts.values())
    execution.close()
    try:
        assert hosts["gpu01"].code.get(timeout=10) == 143
    finally:
        over.set()


@pytest.mark.parametrize("bare", [True, False])
def test_a_host_that_does_not_report_the_end_in_time_is_given_up(
    monkeypatch: pytest.MonkeyPatch, *, bare: bool
) -> None:
    monkeypatch.setattr(execution_module, "_END_TIMEOUT", 0.2)
    monkeypatch.setattr(execution_module, "SETUP_TIMEOUT", 0.1)
    good, silent, left = FakeHost("gpu00"), FakeHost("gpu01"), threading.Event()
    hosts = {"gpu00": good, "gpu01": silent}

    def hang(*_: object, **__: object) -> Iterator[Frame]:
        left.wait(30)
        yield from ()

    monkeypatch.setattr(silent, "stream", hang)
    group = HostGroup([good.entry, silent.entry], lambda entry: hosts[entry.name])  # type: ignore[arg-type, return-value]
    command = Command(argv=("true",), bare=bare, timeout=0.1, grace=0.1)
    monkeypatch.setattr(Command, "args", lambda *_: {})
    with Execution(group, command, workdirs=dict.fromkeys(hosts, ""), subfolder="", given=None) as execution:
        ends = {end.host: end for end in execution.collected()}
    left.set()
    assert ends["gpu00"].code == 0
    assert (ends["gpu01"].code, ends["gpu01"].error) == (125, "does not say whether the command has ended there")


def test_an_end_that_lies_unread_when_the_time_is_over_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_module, "_END_TIMEOUT", 0.0)
    monkeypatch.setattr(execution_module, "_LAST_LOOK", 5.0)
    monkeypatch.setattr(Command, "args", lambda *_: {})
    host, awake = FakeHost("gpu00"), threading.Event()
    frames = host.stream

    def suspended(*words: Any) -> Iterator[Frame]:
        awake.wait(10)
        yield from frames(*words)

    monkeypatch.setattr(host, "stream", suspended)
    command = Command(argv=("true",), bare=True, timeout=0.0, grace=0.0)
    group = HostGroup([host.entry], lambda _: host)  # type: ignore[arg-type, return-value]
    with Execution(group, command, workdirs={"gpu00": ""}, subfolder="", given=None) as execution:
        give_up = execution._give_up_late_hosts

        def wake() -> None:
            awake.set()
            give_up()

        monkeypatch.setattr(execution, "_give_up_late_hosts", wake)
        (end,) = execution.collected()
    assert (end.code, end.error) == (0, "")


def test_setup_lines_have_the_time_that_the_host_gives_them() -> None:
    assert setup_env.TIMEOUT == SETUP_TIMEOUT


class FullFile(io.RawIOBase):
    """A file of a folder that has little room; it takes a part of what is written."""

    def __init__(self) -> None:
        self.file, self.room = io.BytesIO(), 100_000

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self.file.write(data[: min(self.room, 30_000)])
        self.room -= written
        return written

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def read(self, size: int | None = -1) -> bytes:
        return self.file.read(size)


@pytest.mark.parametrize("size", [10, 11])
def test_output_that_is_cut_says_so(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(execution_module, "MAX_COLLECTED", 10)
    host = FakeHost("gpu00")
    frames = host.stream

    def write(*words: Any) -> Iterator[Frame]:
        yield Frame({"kind": "data", "stream": "out"}, b"x" * 6)
        yield Frame({"kind": "data", "stream": "err"}, b"y" * (size - 6))
        yield from frames(*words)

    monkeypatch.setattr(host, "stream", write)
    with run_on(host, lambda _: host) as execution:
        (end,) = execution.collected()
    cut = "only the first 16 MiB of its output are kept" if size > 10 else ""
    assert (end.code, end.output, end.error) == (0, b"xxxxxxyyyy", cut)


def test_input_that_cannot_be_kept_whole_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost("gpu00")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: FullFile())
    execution = run_on(host, lambda _: host, io.BytesIO(b"x" * 200_000))
    (end,) = execution.collected()
    execution.close()
    assert (end.code, end.error.partition(";")[0]) == (
        125,
        f"the input cannot be kept in {tempfile.gettempdir()}: No space left on device",
    )
    assert not [header for header in host.frames.queue if header[0]["kind"] == "end"]


@pytest.mark.parametrize("source", ["raw", "closed"])
def test_input_is_read_from_any_file(source: str) -> None:
    file = io.BytesIO(b"x" * 100_000)
    if source == "closed":
        file.close()
    given = SharedInput(SimpleNamespace(read=file.read))  # type: ignore[arg-type]
    assert sum(map(len, given.pieces())) == (0 if source == "closed" else 100_000)
    assert given.error == ("the input cannot be read: I/O operation on closed file." if source == "closed" else "")
    given.close()


def test_input_that_never_ends_does_not_disturb_the_end_of_exec() -> None:
    code = """
import io, sys
from clusterddp.cli.actions import exec_action
from clusterddp.shell.execution import SharedInput
class Cluster:
    __enter__ = lambda self: self
    __exit__ = lambda self, *_: None
    def execution(self, command, *, given, sync):
        SharedInput(given)
        sys.exit(7)
exec_action.open_cluster = lambda *_, **__: Cluster()
exec_action.act(None, None, gather=False, sync=False, timeout=None, bare=True, as_json=False, shell=None, argv=("a",))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert (process.wait(60), process.stderr.read()) == (7, b"")


def test_every_reader_gets_the_whole_input_at_its_own_pace() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb") as source:
        given = SharedInput(source)
        first, second = given.pieces(), given.pieces()
        os.write(into, b"one")
        assert next(first) == b"one"
        os.write(into, b"two")
        os.close(into)
        assert b"".join(first) == b"two"
        assert b"".join(second) == b"onetwo"
        assert list(given.pieces()) == [b"onetwo"]
        given.close()
        assert list(given.pieces()) == []


def test_a_reader_that_waits_ends_with_the_input() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb") as source:
        given, found = SharedInput(source), list[bytes]()
        reader = threading.Thread(target=lambda: found.extend(given.pieces()))
        reader.start()
        given.close()
        reader.join(10)
        assert not reader.is_alive()
        assert found == []
        os.close(into)  # the thread that reads it ends
