"""The lab's ground floor: commands, processes by pid and start time, sockets in a namespace."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CLONE_NEWNET = 0x40000000
IDLE, SELDOM = 4, 1.0  # between two looks: so many times what the last one took, and at most so many seconds
LIMIT = 120.0  # seconds for one command of the lab; each takes a moment
PATIENCE = 120.0  # seconds for what happens at once on a free machine: only a hang takes longer on a busy one
T = TypeVar("T")


class LabError(RuntimeError):
    """A step of the lab failed: the command and what it said."""


def command(*argv: str, text: str | None = None, check: bool = True) -> str:
    """Run a program and return its stdout; a failure names the program and what it said.

    Raises:
        LabError: It failed, or had not ended in time.
    """
    try:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise LabError(f"{' '.join(argv)}: it had not ended after {LIMIT:g} s") from None
    if check and done.returncode:
        raise LabError(f"{' '.join(argv)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def ip_batch(namespace: str | None, *lines: str) -> None:
    """Give `ip` several commands in one process, in a network namespace or in the operator's own."""
    place = ("-n", namespace) if namespace else ()
    command("ip", *place, "-batch", "-", text="\n".join(lines) + "\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_ticks: int

    @classmethod
    def from_stat(cls, line: str) -> ProcessId:
        """Read a line of `/proc/PID/stat`."""
        return cls(pid=int(line.split(" ", 1)[0]), start_ticks=int(line.rpartition(")")[2].split()[19]))

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has this pid now; None when there is none, or only its remains."""
        try:
            line = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        return None if line.rpartition(")")[2].split()[0] in "ZX" else cls.from_stat(line)

    @property
    def alive(self) -> bool:
        return ProcessId.of(self.pid) == self


def kill_and_wait(processes: Sequence[ProcessId], timeout: float = 20) -> None:
    """SIGKILL these processes and return when all of them are gone.

    Raises:
        LabError: One was still there after `timeout` seconds.
    """
    with contextlib.ExitStack() as stack:
        waiting = []
        for process in processes:
            handle = _handle(process)
            if handle is not None:
                stack.callback(os.close, handle)
                with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                waiting.append((process, handle))
        deadline = time.monotonic() + timeout
        for process, handle in waiting:
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            if not poller.poll(max(0, deadline - time.monotonic()) * 1000):
                raise LabError(f"process {process.pid} outlived SIGKILL by {timeout} s")


def _handle(process: ProcessId) -> int | None:
    """A pidfd of exactly this process; compared after opening, so no reuse can slip between."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return None
    if process.alive:
        return handle
    os.close(handle)
    return None


def inside_network(namespace: str, function: Callable[[], T]) -> T:
    """Call a function in a thread that lives in a network namespace; sockets it opens stay there."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            _enter_network(namespace)
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            errors.append(error)

    # A thread of its own: a namespace entered is left only by the thread's end.
    thread = threading.Thread(target=body, name=f"in-{namespace}")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter_network(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(handle, CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), namespace)
    finally:
        os.close(handle)


def ssh_banner(address: str, port: int = 22, timeout: float = 1) -> str:
    """The first line an SSH server says ('' when it closes without a word).

    Raises:
        OSError: Nobody answered.
    """
    with socket.create_connection((address, port), timeout=timeout) as connection:
        return connection.recv(256).decode("ascii", "replace").split("\r\n", 1)[0]


def wait_until(what: str, ready: Callable[[], T], timeout: float = PATIENCE, interval: float = 0.01) -> T:
    """Return what `ready()` returned once that is true.

    It is called every `interval` seconds, or less often where it takes long itself: whoever waits leaves the machine to
    those who are waited for.

    Raises:
        LabError: It was not true within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        if found := ready():
            return found
        now = time.monotonic()
        if now > deadline:
            raise LabError(f"{what}: not within {timeout} s")
        time.sleep(max(interval, min(SELDOM, IDLE * (now - began))))


def let_pass(seconds: float) -> None:
    """Wait for nothing but time, where a scenario says how long a fault lasts or when a command is killed."""
    time.sleep(seconds)
