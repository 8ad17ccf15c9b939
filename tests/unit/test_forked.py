"""A forked command (`tests/forked/`) is to all who look what a started one is."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests import forked
from tests.forked import ForkedPopen, popen

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(forked.CLONE is None, reason="forked: Linux on x86-64 or ARM64")

STARTED: Any = subprocess.Popen
BOTH = pytest.mark.parametrize("how", [STARTED, ForkedPopen], ids=["started", "forked"])
LOOKS = """
import gc, json, os, resource, signal, stat, sys, threading, time
TOLD = {"SigPnd:", "SigBlk:", "SigIgn:", "SigCgt:", "Threads:", "NoNewPrivs:"}
mask = os.umask(0)
streams = [sys.stdin, sys.stdout, sys.stderr]
told = {
    "argv": sys.argv, "path": sys.path, "main": [__name__, __file__, __builtins__.__name__],
    "executable": sys.executable, "module": sys.modules["__main__"].__dict__ is globals(), "flags": str(sys.flags),
    "gc": gc.isenabled(),
    "environ": {name: value for name, value in os.environ.items() if name != "_"},
    "cwd": os.getcwd(), "zone": time.tzname,
    "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), os.getppid()], "umask": mask,
    "files": [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")],
    "kinds": [stat.S_IFMT(os.fstat(number).st_mode) for number in range(3)],
    "signals": [line for line in open("/proc/self/status") if line.split("\t")[0] in TOLD],
    "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)],
    "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
    "nice": os.nice(0), "threads": [each.name for each in threading.enumerate()],
    "streams": [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.newlines, s.fileno(), s.buffer.raw.closefd,
                 s is getattr(sys, f"__{s.name[1:-1]}__"), type(s.buffer).__name__] for s in streams],
}
json.dump(told, open(sys.argv[1], "w"))
"""
ENDS = {
    "falls off": "print('out'); print('err', file=sys.stderr)",
    "exits": "sys.stdout.write('kept until the end'); sys.exit(7)",
    "exits above 255": "sys.exit(0x107)",
    "exits with a text": "sys.exit('nothing to do')",
    "exits with true": "sys.exit(True)",
    "runs what was left for the end": "atexit.register(print, 'last'); print('first'); sys.exit(3)",
    "waits for its threads": "threading.Timer(0.2, print, ['late']).start(); sys.exit(4)",
    "leaves a thread": "threading.Thread(target=threading.Event().wait, daemon=True).start(); sys.exit(5)",
    "raises": "raise ValueError('told')",
    "is interrupted": "os.kill(os.getpid(), signal.SIGINT); threading.Event().wait(60)",
    "is interrupted by a thread": "me = threading.get_ident(); "
    "one = threading.Thread(target=signal.pthread_kill, args=(me, signal.SIGINT)); one.start(); one.join()",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "leaves at once": "print('never seen'); os._exit(6)",
    "has lost its output": "os.close(1); print('lost'); sys.exit(0)",
}
PIPES: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A program of Python, still to be written."""
    path = tmp_path / "bin" / "program"
    path.parent.mkdir()
    path.touch(mode=0o755)
    return path


def told(how: Any, script: Path, folder: Path, **given: Any) -> Any:
    """What a program says that looks at itself."""
    script.write_text(f"#!{forked.interpreter()}\n{LOOKS}")
    env = {"HOME": str(folder), "LANG": "C.UTF-8", "PATH": os.environ["PATH"], "TZ": "Asia/Kathmandu", "A": "\udcff"}
    answer = folder / "answer"
    argv = [str(script), str(answer), "", "a b", "\udcff"]
    session = {"start_new_session": True} if how is STARTED and not given.get("terminal") else {}
    with how(argv, cwd=folder, env=env, **session, **given) as process:
        assert process.wait() == 0
    return {**json.loads(answer.read_text()), "pid": process.pid}


def test_it_sees_what_a_started_one_sees(script: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {**PIPES, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started, seen = (told(how, script, tmp_path, **given) for how in (STARTED, ForkedPopen))
    assert started.pop("pid") != seen.pop("pid")
    assert seen == started
    assert seen["session"] == [True, True, os.getpid()]


def test_a_terminal_is_its_own(script: Path, tmp_path: Path) -> None:
    looks = (
        f"#!{forked.interpreter()}\nimport os, sys; print(os.tcgetpgrp(0) == os.getpid(), sys.stdout.line_buffering)"
    )
    script.write_text(looks)
    outer, inner = pty.openpty()
    with ForkedPopen([str(script)], cwd=tmp_path, env={"LANG": "C.UTF-8"}, terminal=True, stdin=inner, stdout=inner):
        os.close(inner)
        said = os.read(outer, 100)
    os.close(outer)
    assert said == b"True True\r\n"


@pytest.mark.parametrize("body", ENDS.values(), ids=ENDS)
def test_it_ends_as_a_started_one_ends(script: Path, tmp_path: Path, body: str) -> None:
    script.write_text(f"#!{forked.interpreter()}\nimport atexit, os, signal, sys, threading, time\n{body}\n")
    ends = []
    for how in (STARTED, ForkedPopen):
        with how([str(script)], cwd=tmp_path, env={"LANG": "C.UTF-8"}, **PIPES) as process:
            out, err = process.communicate()
        ends.append((process.returncode, out, err.splitlines()[-1:]))
    assert ends[1] == ends[0]


@BOTH
def test_it_is_waited_for_and_signalled_like_any_child(script: Path, tmp_path: Path, how: Any) -> None:
    script.write_text(
        f"#!{forked.interpreter()}\nimport signal, sys\nprint(sys.stdin.readline(), flush=True)\nsignal.pause()\n"
    )
    pipes = {**PIPES, "stdin": subprocess.PIPE}
    with how([str(script)], cwd=tmp_path, env={"LANG": "C.UTF-8"}, **pipes) as process:
        process.stdin.write(b"heard\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"heard\n"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_two_forks_have_chances_of_their_own(script: Path, tmp_path: Path) -> None:
    script.write_text(
        f"#!{forked.interpreter()}\nimport random, secrets\nprint(random.random(), secrets.token_hex(8))\n"
    )
    said = set()
    for _ in range(2):
        with ForkedPopen([str(script)], cwd=tmp_path, env={"LANG": "C.UTF-8"}, **PIPES) as process:
            said.update(process.communicate()[0].split())
    assert len(said) == 4


def test_our_command_says_the_same_both_ways(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "LANG": "C.UTF-8", "PATH": os.environ["PATH"]}
    for words in (["hosts"], ["nosuch"], ["run", "--help"]):
        with popen([forked.SCRIPT, *words], tmp_path, env, **PIPES) as one:
            fork = (*one.communicate(), one.returncode)
        cold = subprocess.run([forked.SCRIPT, *words], cwd=tmp_path, env=env, capture_output=True, check=False)
        assert type(one) is ForkedPopen
        assert fork == (cold.stdout, cold.stderr, cold.returncode)


@pytest.mark.parametrize(
    ("argv", "more"),
    [
        (["nice", forked.SCRIPT], {}),
        ([forked.SCRIPT], {"PYTHONUTF8": "0"}),
        ([forked.SCRIPT], {"LC_ALL": "C"}),
        ([forked.SCRIPT], {"COVERAGE_PROCESS_START": "x"}),
    ],
)
def test_where_the_start_is_another_the_program_is_started(tmp_path: Path, argv: list[str], more: Any) -> None:
    env = {"HOME": str(tmp_path), "LANG": "C.UTF-8", "PATH": os.environ["PATH"], **more}
    with popen([*argv, "--version"], tmp_path, env, **PIPES) as process:
        assert process.communicate()[0].startswith(b"clusterddp")
    assert type(process) is STARTED
