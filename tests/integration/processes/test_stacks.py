"""Where workers are, asked of live ones: in Python, in C that holds the interpreter, stopped, without our hook."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.helper.request import Request
from clusterddp.remote.processes import stacks as remote_stacks
from clusterddp.remote.shared.processes.worker_stacks import WorkerStack, parse_stacks
from tests.integration.freezer import freeze, freezing, thaw
from tests.integration.shim_spool import ShimSpool, make_spool, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")

WAITS = """
import signal, sys, threading, time
done = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: done.set())
def waits(): done.wait()
def main():
    other = threading.Thread(target=waits)
    other.start()
    print('ready', flush=True)
    began = time.monotonic()
    time.sleep(1.5)
    print('slept', time.monotonic() - began >= 1.5, flush=True)
    other.join()
main()
print('on', flush=True)
"""
# ctypes.PyDLL keeps the interpreter's lock while C reads: no Python thread can run.
HOLDS = """
import ctypes, os
ours, _ = os.pipe()
def holds(): ctypes.PyDLL(None).read(ours, bytes(1), 1)
print('ready', flush=True)
holds()
"""


@pytest.fixture
def spool(tmp_path: Path) -> ShimSpool:
    return make_spool(tmp_path)


@contextlib.contextmanager
def worker(spool: ShimSpool, text: str, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A worker that has said that it is ready: its shim, its pid."""
    (spool.cwd / "train.py").write_text(text)
    with spool.popen(*options, "train.py") as process:
        try:
            pid = int(spool.event("worker_started")["pid"])
            out = spool.folder / "logs" / "0.0.out"
            wait_for(out.read_text, "the script")
            yield process, pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def ask(spool: ShimSpool, monkeypatch: pytest.MonkeyPatch, spy: str | None = None) -> WorkerStack:
    """The one worker's stacks, by py-spy at ``spy`` or without it."""
    monkeypatch.setattr(remote_stacks, "find_py_spy", lambda _python: spy)
    (stack,) = parse_stacks("here", remote_stacks.stacks(Request(0, {"spool": str(spool.folder)}, -1, -1)))
    return stack


def functions(stack: WorkerStack) -> list[str]:
    return [frame.function for frame in stack.frames]


def test_every_thread_is_shown_and_the_worker_does_not_notice(
    spool: ShimSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker(spool, WAITS, "-u") as (process, _):
        found = [ask(spool, monkeypatch) for _ in range(3)]
        process.send_signal(signal.SIGUSR1)
        assert process.wait(20) == 0
    for stack in found:
        assert (stack.source, stack.why, stack.rank, stack.local_rank) == ("faulthandler", "", 3, 0)
        assert functions(stack)[:2] == ["<module>", "main"]
        assert stack.place.startswith("train.py:")
        assert [[frame.function for frame in thread][-1] for thread in stack.threads] == ["wait"]
    logs = spool.folder / "logs"
    assert (logs / "0.0.out").read_text() == "ready\nslept True\non\n"
    assert (logs / "0.0.err").read_text() == ""


def test_c_code_that_holds_the_interpreter_is_seen(spool: ShimSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(spool, HOLDS, "-u"):
        stack = ask(spool, monkeypatch)
    assert (stack.source, functions(stack)) == ("faulthandler", ["<module>", "holds"])
    assert stack.place == "train.py:4 in holds"


def test_a_stopped_worker_is_named_and_gets_no_signal(spool: ShimSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(spool, WAITS, "-u") as (_, pid):
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: remote_stacks.kernel_state(pid) == "T", "the stop")
        stack = ask(spool, monkeypatch)
        assert not remote_stacks._is_pending(pid, remote_stacks.STACK_SIGNAL)
    assert (stack.source, stack.frames, stack.state) == ("", (), "T")
    assert stack.place == "it is stopped (SIGSTOP); stopped" + (f" in {stack.wchan}" if stack.wchan.strip("0") else "")


def test_one_that_blocks_the_signal_is_named_and_asked_no_second_time(
    spool: ShimSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nprint('ready')\n"
    monkeypatch.setattr(remote_stacks, "ANSWER_TIMEOUT", 0.5)
    with worker(spool, text + "signal.pause()", "-u"):
        first, second = (ask(spool, monkeypatch) for _ in range(2))
    assert first.place.startswith("it does not answer; sleeping")
    assert second.place.startswith("it has not answered an earlier question; sleeping")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to freeze a process")
def test_one_in_uninterruptible_sleep_is_named_and_goes_on_when_it_wakes(
    spool: ShimSpool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(remote_stacks, "ANSWER_TIMEOUT", 0.5)
    place = tmp_path / "freezer"
    place.mkdir()
    with freezing(place) as group, worker(spool, WAITS, "-u") as (process, pid):
        (group / "cgroup.procs").write_text(str(pid))
        freeze(group)
        stack = ask(spool, monkeypatch)
        thaw(group)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(20) == 0
    assert stack.place.startswith("it does not answer; in uninterruptible sleep")


@pytest.mark.parametrize("text", ["import threading; print('ready'); threading.Event().wait(600)"])
def test_one_without_our_hook_gets_no_signal_that_would_end_it(
    spool: ShimSpool, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    with worker(spool, text, "-S", "-u") as (process, _):  # no site, so no sitecustomize
        stack = ask(spool, monkeypatch)
        assert process.poll() is None
    assert stack.place.startswith("it runs no Python of ours, or has not begun; sleeping")


def test_one_that_closed_our_descriptor_gets_nothing_written_anywhere(
    spool: ShimSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import os, threading\nos.closerange(3, 256)\nfor n in range(3, 256): os.dup2(os.open('own', 66), n)\n"
    with worker(spool, text + "print('ready')\nthreading.Event().wait(600)", "-u"):
        stack = ask(spool, monkeypatch)
    assert stack.why == "it runs no Python of ours, or has not begun"
    assert (spool.cwd / "own").read_bytes() == b""


def test_the_scripts_children_do_not_get_our_descriptor(spool: ShimSpool) -> None:
    text = "import subprocess\nprint(subprocess.run(['ls', '-l', '/proc/self/fd'], close_fds=False, "
    text += "capture_output=True, text=True).stdout)"
    (spool.cwd / "train.py").write_text(text)
    assert "/stacks/" not in spool.run("train.py").out.decode()


def test_old_dumps_do_not_grow_for_ever(spool: ShimSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_stacks, "MAX_EARLIER", 10)
    with worker(spool, HOLDS, "-u"):
        found = [ask(spool, monkeypatch) for _ in range(3)]
    assert {stack.place for stack in found} == {"train.py:4 in holds"}
    assert (spool.folder / "stacks" / "0.0").read_text().count("most recent call first") == 1


def test_a_worker_that_has_ended_is_no_worker(spool: ShimSpool) -> None:
    (spool.cwd / "train.py").write_text("print(1)")
    spool.run("train.py")
    assert remote_stacks.stacks(Request(0, {"spool": str(spool.folder)}, -1, -1)) == []


@functools.cache
def py_spy() -> str:
    found = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not found:
        pytest.skip("py-spy is not installed")
    return found


def test_py_spy_is_asked_where_the_host_has_it(spool: ShimSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(spool, WAITS, "-u"):
        stack = ask(spool, monkeypatch, py_spy())
    assert (stack.source, functions(stack)[:2]) == ("py-spy", ["<module>", "main"])
    ((*_, innermost),) = stack.threads
    assert innermost.function in {"wait", "Condition.wait"}
    assert (spool.folder / "stacks" / "0.0").read_text() == ""


def test_where_py_spy_fails_the_worker_is_asked_itself(
    spool: ShimSpool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "py-spy"
    broken.write_text("#!/bin/sh\necho 'Permission Denied'; exit 1\n")
    broken.chmod(0o755)
    with worker(spool, HOLDS, "-u"):
        assert ask(spool, monkeypatch, str(broken)).source == "faulthandler"


def test_py_spy_is_looked_for_beside_the_training_interpreter(tmp_path: Path) -> None:
    own: Any = tmp_path / "py-spy"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert remote_stacks.find_py_spy(str(tmp_path / "python")) == str(own)
