"""How the threads of a real process wait, read from /proc."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.processes.worker_threads import MAX_SENT, core_wait_ms, cpu_ms, look_at_threads
from clusterddp.remote.shared.collectives.trace_records import LOCK, READ, SLEEP
from clusterddp.remote.system.small_files import text_of
from tests.integration.shim_spool import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")

START = """
import os, select, signal, socket, sys, threading, time
def start(*targets):
    for target in targets:
        threading.Thread(target=target, daemon=True).start()
ours, theirs = socket.socketpair()
poll = select.poll()
poll.register(ours)
def sleep(): time.sleep(1000)
def read(): ours.recv(1)
"""
LINES = {
    "sleep": "sleep()",
    "read a socket": "read()",
    "read a pipe": "os.read(0, 1)",
    "write a pipe": "os.write(os.pipe()[1], bytes(1 << 20))",
    "lock": "threading.Event().wait()",
    "select": "select.select([ours], [], [])",
    "poll for ever": "poll.register(ours, select.POLLIN); poll.poll()",
    "poll for a minute": "poll.register(ours, select.POLLIN); poll.poll(60000)",
    "poll in turns": "poll.register(ours, select.POLLIN)\nwhile not poll.poll(1000): pass",
}
SHOWS_LIMITS = platform.machine() == "x86_64"
HOW: dict[str, str | None] = {
    "sleep": SLEEP,
    "read a socket": READ,
    "read a pipe": READ,
    "write a pipe": READ,
    "lock": LOCK,
    "select": None,
    "poll for ever": READ if SHOWS_LIMITS else None,
    "poll for a minute": READ if SHOWS_LIMITS else None,
    "poll in turns": None,
}


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-IS", "-c", START + request.param]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def asleep_in(pid: int, *words: str) -> bool:
    return text_of(f"/proc/{pid}/wchan").startswith(words)


KERNEL = ("hrtimer_nano", "unix_stream", "pipe_", "anon_pipe", "futex", "poll_", "do_poll", "do_select", "do_sys_poll")


@pytest.mark.parametrize(
    ("started", "how"), [(LINES[name], HOW[name]) for name in LINES], ids=LINES, indirect=["started"]
)
def test_how_a_main_thread_waits(started: subprocess.Popen[bytes], how: str | None) -> None:
    wait_for(lambda: asleep_in(started.pid, *KERNEL) and text_of(f"/proc/{started.pid}/stat").split()[2] == "S", "it")
    waits = look_at_threads(started.pid).waits
    assert [(wait.thread, wait.how) for wait in waits] == ([(started.pid, how)] if how else [])


SHIELDED = """
start(read, *[sleep] * 20)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
def spin():
    end = time.thread_time() + 0.1
    while time.thread_time() < end: pass
    print("spun", flush=True)
    read()
start(spin)
signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
threading.Event().wait()
"""


@pytest.mark.parametrize("started", [SHIELDED], indirect=True)
def test_threads_without_signals_are_none_of_the_script(started: subprocess.Popen[bytes]) -> None:
    assert started.stdout
    usual = [LOCK, READ, *[SLEEP] * (MAX_SENT - 2)]
    assert started.stdout.readline() == b"spun\n"
    wait_for(lambda: [wait.how for wait in look_at_threads(started.pid).waits] == usual, "its threads")
    assert 80 <= look_at_threads(started.pid).idle_ms < 1000


def test_a_process_that_is_gone_has_none() -> None:
    with subprocess.Popen(["true"]) as child:
        pass
    assert child.returncode == 0
    assert look_at_threads(child.pid) == ((), 0, ())


def test_the_time_of_children_that_have_ended_counts_for_a_process_not_for_a_thread() -> None:
    burns = "import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', 'sum(range(10 ** 7))'], check=True)\n"
    code = burns + "print('done', flush=True)\ninput()\n"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        folder = f"/proc/{process.pid}"
        own, whole = cpu_ms(folder), cpu_ms(folder, children=True)
        process.kill()
    assert whole - own >= 50
    assert cpu_ms("/proc/0", children=True) == 0


@pytest.mark.skipif(not text_of("/proc/self/schedstat"), reason="this kernel does not count it")
def test_a_process_that_wants_a_core_and_does_not_get_it_is_told_from_one_that_waits() -> None:
    code = "import os, sys\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile sys.argv[1:]: pass\ninput()"
    argv = [sys.executable, "-IS", "-c", code]
    with (
        subprocess.Popen([*argv, "spin"]) as one,
        subprocess.Popen([*argv, "spin"]) as other,
        subprocess.Popen(argv, stdin=subprocess.PIPE) as waits,
    ):
        try:
            wait_for(lambda: asleep_in(waits.pid, "pipe_", "anon_pipe"), "it waits")
            before = core_wait_ms(waits.pid)
            wait_for(lambda: min(core_wait_ms(one.pid), core_wait_ms(other.pid)) > 200, "both have waited")
            assert core_wait_ms(waits.pid) == before
        finally:
            for process in (one, other, waits):
                process.kill()
    assert core_wait_ms(0) == 0
