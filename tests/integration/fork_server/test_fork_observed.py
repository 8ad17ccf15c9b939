"""A forked worker looked at from outside, or by itself with the tools for it, shows what a started one shows.

By debuggers and profilers that attach, core files, faulthandler, tracers and profilers, titles in /proc. With an empty
torch: what is looked at here is Python's own.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.fork_spool import LOADED, empty_torch, fork_server, torch_environment
from tests.integration.shim_spool import ShimSpool, make_spool, run_plain, wait_for
from tests.integration.warm_spool import begun, warm_server
from tests.integration.worker.test_shim_transparency import normal

if TYPE_CHECKING:
    from collections.abc import Iterator

ARGS = ("-u", "script.py", "report.json", "a b")
ENV: dict[str, str] = {}  # with an empty torch, by the fixture
SLEEPS = "import os, signal\ndef inner():\n    signal.pause()\ndef outer():\n    inner()\nprint(os.getpid())\nouter()\n"


@pytest.fixture(scope="module", params=["cold", "warm"])
def spool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShimSpool]:
    """Forks ``python -u script.py …``, whatever the script is by then; from a server of its own, or a warm one."""
    folder = tmp_path_factory.mktemp(request.param)
    for name in ("run", "warm"):
        (folder / name).mkdir()
    made = make_spool(folder / "run")
    ENV.update(torch_environment(PYTHONPATH=empty_torch(folder), PYTHONFAULTHANDLER="1"))
    if request.param == "cold":
        with fork_server(made, *ARGS, env=ENV) as said:
            assert said == "ready\n"
            yield made
    else:
        warm = make_spool(folder / "warm")
        with warm_server(warm, env=ENV), begun(warm, made, *ARGS, env=ENV):
            yield made


def assert_same(spool: ShimSpool, text: str) -> bytes:
    """Run the script plainly and forked; what it wrote."""
    (spool.cwd / "script.py").write_text(LOADED + text)
    plain, forked = run_plain(spool, sys.executable, *ARGS, env=ENV), spool.run(*ARGS, env=ENV)
    assert spool.events("worker_started")[-1]["forked"], spool.events("not_forked")
    assert normal(forked) == normal(plain)
    return forked.out + forked.err


@contextlib.contextmanager
def sleeping(spool: ShimSpool, *, forked: bool) -> Iterator[int]:
    """A worker that sleeps; its pid."""
    (spool.cwd / "script.py").write_text(LOADED + SLEEPS)
    out = spool.cwd.parent / "plain.out"
    if forked:
        out = spool.folder / "logs" / f"{len(list((spool.folder / 'logs').glob('*.0.out')))}.0.out"
        process = spool.popen(*ARGS, env=ENV)
    else:
        with out.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, *ARGS], stdin=subprocess.DEVNULL, stdout=stream, cwd=spool.cwd, env=ENV
            )
    with process:
        try:
            wait_for(lambda: out.exists() and out.read_bytes().endswith(b"\n"), "the worker")
            yield int(out.read_bytes())
        finally:
            process.terminate()
    assert not forked or spool.events("worker_started")[-1]["forked"]


def shown(*command: str) -> str:
    """What a program prints on stdout, where it is installed."""
    program = shutil.which(command[0], path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not program:
        pytest.skip(f"no {command[0]}")
    return subprocess.run([program, *command[1:]], capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_profiler_that_attaches_sees_the_scripts_stack(spool: ShimSpool) -> None:
    seen = []
    for forked in (False, True):
        with sleeping(spool, forked=forked) as pid:
            seen.append(shown("py-spy", "dump", "--pid", str(pid)).replace(str(pid), "PID"))
    assert seen[0] == seen[1]
    assert "inner (script.py:4)" in seen[1]
    assert "-u script.py report.json a b" in seen[1]


def functions(text: str) -> list[str]:
    """The names in a backtrace of gdb; those that it does not know are question marks."""
    return re.findall(r"^#\d+ +(?:0x[0-9a-f]+ in )?([^ ]+)", text, re.MULTILINE)


def test_a_debugger_that_attaches_sees_the_program_and_its_frames(spool: ShimSpool) -> None:
    seen = []
    for forked in (False, True):
        with sleeping(spool, forked=forked) as pid:
            text = shown("gdb", "-nx", "-batch", "-p", str(pid), "-ex", "info proc", "-ex", "bt")
            told = [line for line in text.splitlines() if line.startswith(("cmdline", "cwd", "exe"))]
            seen.append((told, functions(text)))
    assert seen[0] == seen[1]
    assert len(seen[1][0]) == 3
    assert seen[1][1][-1] in {"_start", "main", "Py_BytesMain"}


def test_a_core_file_names_the_program_and_its_frames(spool: ShimSpool) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard == 0 or Path("/proc/sys/kernel/core_pattern").read_text().strip() != "core":
        pytest.skip("core files do not come into the working folder here")
    seen = []
    dies = f"import os, resource, sys\nresource.setrlimit(resource.RLIMIT_CORE, ({hard}, {hard}))\nos.abort()\n"
    (spool.cwd / "script.py").write_text(LOADED + dies)
    for forked in (False, True):
        ended = spool.run(*ARGS, env=ENV) if forked else run_plain(spool, sys.executable, *ARGS, env=ENV)
        assert ended.returncode == -6
        (core,) = spool.cwd.glob("core*")
        text = shown("gdb", "-nx", "-batch", "-c", str(core), sys.executable, "-ex", "bt")
        told = [line for line in text.splitlines() if line.startswith(("Core was", "Program term"))]
        seen.append((told, functions(text)))
        core.unlink()
    assert spool.events("worker_started")[-1]["forked"]
    assert seen[0] == seen[1]
    assert "-u script.py report.json a b" in seen[1][0][0]


def test_a_crash_is_told_by_faulthandler_as_ever(spool: ShimSpool) -> None:
    said = assert_same(spool, "import ctypes\ndef crashes():\n    ctypes.string_at(0)\ncrashes()\n")
    assert b"Fatal Python error: Segmentation fault" in said
    assert b"line 4 in crashes" in said


WATCHES_ITSELF = """
import cProfile, faulthandler, os, signal, sys, threading, time, tracemalloc
def add(a, b):
    return a + b
lines = []
sys.settrace(lambda frame, event, _: lines.append((event, frame.f_code.co_name, frame.f_lineno)))
add(1, 2)
sys.settrace(None)
profile = cProfile.Profile()
profile.runcall(add, 1, 2)
tracemalloc.start()
kept = [bytes(1000) for _ in range(100)]
(top, *_) = tracemalloc.take_snapshot().statistics("lineno")
faulthandler.register(signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGUSR1)
faulthandler.dump_traceback_later(0.01)
time.sleep(0.1)
faulthandler.cancel_dump_traceback_later()
print(lines, sorted(str(entry.code) for entry in profile.getstats()), str(top.traceback), top.count > 99)
print(faulthandler.is_enabled(), signal.set_wakeup_fd(-1), [signal.getitimer(n) for n in range(3)], os.times()[2:4])
"""
KERNEL = """
import ctypes, os
libc = ctypes.CDLL(None)
print({option: libc.prctl(option, 0, 0, 0, 0) for option in (3, 7, 13, 21, 27, 30, 34, 39, 42)})  # dumpable …
value = ctypes.c_int()
print([(libc.prctl(option, ctypes.byref(value), 0, 0, 0), value.value) for option in (5, 6, 37)])  # subreaper …
for name in ("personality", "timerslack_ns", "limits", "cgroup", "coredump_filter", "wchan"):
    if os.path.exists("/proc/self/" + name):
        print(open("/proc/self/" + name).read())
print(libc.syscall(252, 1, 0), os.sched_getscheduler(0), os.getpriority(0, 0), os.get_inheritable(1))  # ioprio_get
"""
TITLED = """
import ctypes, os
line = open("/proc/self/cmdline", "rb").read()
environ = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ").value
(first,) = ctypes.c_void_p.from_address(environ),
print(ctypes.string_at(first.value - len(line), len(line)) == line, line)  # what setproctitle writes over
ctypes.memmove(first.value - len(line), b"title".ljust(len(line), b"\\0"), len(line))
os.environ["NEW"] = "1"
del os.environ["RANK"]
print(open("/proc/self/cmdline").read().strip("\\0"), os.popen("echo $NEW $RANK $LOCAL_RANK").read())
"""
EXECUTES = """
import os, sys
if len(sys.argv) < 4:
    os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
print(sys.argv, sorted(os.environ), "sitecustomize" in sys.modules, open("/proc/self/cmdline").read())
"""


@pytest.mark.parametrize("text", [WATCHES_ITSELF, KERNEL, TITLED, EXECUTES], ids=["tools", "kernel", "title", "exec"])
def test_a_script_that_looks_at_itself_sees_the_same(spool: ShimSpool, text: str) -> None:
    said = assert_same(spool, text)
    assert b"Traceback" not in said
    assert text != TITLED or b"True" in said
