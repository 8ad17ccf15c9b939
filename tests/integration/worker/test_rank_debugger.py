"""breakpoint() in a worker: it waits for an operator, pdb runs over the socket, and nothing of it ends the script."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import textwrap
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.spool.layout import Spool
from tests.integration.fork_spool import empty_torch, fork_server
from tests.integration.shim_spool import ShimSpool, environment, make_spool, wait_for
from tests.integration.worker.stopped_worker import OPEN, Operator, connect, stop_of, stops
from tests.lab.system import PATIENCE
from tests.pythons import INTERPRETERS, interpreter

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

STEPS = """
import time
def step(number):
    doubled = number * 2
    breakpoint()
    return doubled
for number in range(2):
    print(step(number), flush=True)
"""


@pytest.fixture
def spool(tmp_path: Path) -> ShimSpool:
    return make_spool(tmp_path)


@contextlib.contextmanager
def worker(spool: ShimSpool, text: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    (spool.cwd / "script.py").write_text(textwrap.dedent(text))
    with spool.popen("-u", "script.py", env=environment(**environ)) as process:
        try:
            yield process
        finally:
            process.kill()
            while OPEN:
                OPEN.pop().close()


def ended_well(spool: ShimSpool, process: subprocess.Popen[bytes], out: str, code: int = 0) -> str:
    """Until it has ended so, with that output; what it wrote on stderr."""
    assert process.wait(PATIENCE) == code
    assert (spool.folder / "logs" / "0.0.out").read_text() == out
    return (spool.folder / "logs" / "0.0.err").read_text()


def settings(spool: ShimSpool, **changes: object) -> None:
    plan = json.loads((spool.folder / "plan.json").read_text())
    plan["settings"].update(changes)
    (spool.folder / "plan.json").write_text(json.dumps(plan))


@pytest.mark.parametrize("version", INTERPRETERS)
def test_pdb_begins_at_the_users_line_and_goes_on_where_it_is_told(tmp_path: Path, version: str) -> None:
    spool = make_spool(tmp_path, python=interpreter(version))
    with worker(spool, STEPS) as process:
        operator = Operator(stop_of(spool))
        assert "script.py(5)step()\n-> breakpoint()" in operator.said()
        assert operator.do("p doubled") == "0\n"
        assert "script.py(6)step()\n-> return doubled" in operator.do("n")
        assert "--Return--" in operator.do("s")
        assert "Breakpoint 1 at" in operator.do("b 7")
        assert "script.py(7)<module>()" in operator.do("c")
        assert "script.py(5)step()\n-> breakpoint()" in operator.do("c")  # its next one stops at once
        assert operator.do("number = 20", "!doubled = 40", "p number + doubled") == "60\n"
        assert operator.do("q") == ""
        err = ended_well(spool, process, "0\n40\n")
    waits = "clusterddp: rank 3 waits at breakpoint(), script.py:5 in step: `clusterddp debug 3` attaches a terminal; "
    assert err == f"{waits}it goes on by itself after 10 min (`run --breakpoint-timeout 1h` changes that)\n"
    assert list((spool.folder / "debug").iterdir()) == []


@pytest.mark.parametrize("way", ["Ctrl-D", "lost", "while it runs"])
def test_who_leaves_has_detached_and_the_next_breakpoint_waits_again(spool: ShimSpool, way: str) -> None:
    text = STEPS.replace("return doubled", "time.sleep(0.2)\n    return doubled")
    with worker(spool, text) as process:
        first = stop_of(spool)
        operator = Operator(first)
        operator.said()
        if way == "Ctrl-D":
            operator.send(line="EOF")
            assert operator.said() == ""
        elif way == "while it runs":
            operator.do("b 3")
            operator.send(line="c")
            operator.told_running()
        operator.detach()
        operator = Operator(stop_of(spool, first))
        operator.said()
        assert operator.do("p number", "b") == ""  # no breakpoint of the first is left
        operator.detach()
        assert ended_well(spool, process, "0\n2\n").count("waits at") == 2


RUNS = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: print("own", flush=True))
counted = 0
breakpoint()
while counted != -1:
    counted += 1
    time.sleep(0.005)
print("over")
"""


def test_an_interrupt_stops_the_script_where_it_is_and_a_command_too(spool: ShimSpool) -> None:
    with worker(spool, RUNS) as process:
        operator = Operator(stop_of(spool))
        operator.said()
        operator.send(line="c")
        operator.told_running()
        operator.send(interrupt=True)
        assert "interrupted\n" in operator.said()
        assert operator.do("p counted >= 0") == "True\n"
        operator.send(line="while True: pass")
        operator.send(interrupt=True)
        assert "KeyboardInterrupt" in operator.said_until("KeyboardInterrupt")
        assert operator.do("counted = -2") == ""
        os.kill(spool.event("worker_started")["pid"], signal.SIGINT)  # not the operator's
        wait_for(lambda: (spool.folder / "logs" / "0.0.out").read_text() == "own\n", "the script's own handler")
        operator.detach()
        ended_well(spool, process, "own\nover\n")


def test_an_interrupt_leaves_no_message_in_half(spool: ShimSpool) -> None:
    with worker(spool, "breakpoint()"):
        operator = Operator(stop_of(spool))
        operator.said()
        for _ in range(20):
            operator.send(line="while True: print('x' * 5000)")
            operator.told_something()
            operator.send(interrupt=True)
            assert "KeyboardInterrupt" in operator.said_until("KeyboardInterrupt")
        assert operator.do("p 'still there'") == "'still there'\n"


def test_an_interrupt_ends_no_wait_of_the_script(spool: ShimSpool) -> None:
    text = "import threading\nbreakpoint()\nthreading.Event().wait()\n"
    with worker(spool, text):
        operator = Operator(stop_of(spool))
        said = operator.said()
        while "threading.py" not in said:  # it was on its way there
            operator.send(line="c")
            operator.told_running()
            operator.send(interrupt=True)
            said = operator.said()
        assert "script.py(3)<module>()" in operator.do("w")


@pytest.mark.parametrize(
    "garbage", [b"", b"hello\n", b"[1]\n", b"x" * 100_000, b"[" * 60_000 + b"\n", b'{"line": "q"}\n']
)
def test_who_says_nothing_sensible_is_sent_away_and_the_next_one_is_let_in(spool: ShimSpool, garbage: bytes) -> None:
    with worker(spool, STEPS) as process:
        stranger = connect(stop_of(spool))
        with contextlib.suppress(OSError):
            stranger.sendall(garbage)
            stranger.shutdown(1)
            assert stranger.recv(1) == b""
        operator = Operator(stop_of(spool))
        assert "-> breakpoint()" in operator.said()
        for line in (
            b"\n",
            b"\xff\xfe\n",
            b'{"line": 3}\n',
            b'{"line": null, "interrupt": 1}\n',
            b"[" * 60_000 + b"\n",
        ):
            operator.stream.sendall(line)
        assert operator.do("p number") == "0\n"
        operator.stream.sendall(b"y" * 200_000)  # too long a line: it has detached
        with contextlib.suppress(ConnectionResetError):
            assert operator.said() == ""
        Operator(stop_of(spool)).detach()
        ended_well(spool, process, "0\n2\n")


def test_a_flood_of_lines_is_a_detach(spool: ShimSpool) -> None:
    with worker(spool, "breakpoint()\nprint('on')") as process:
        operator = Operator(stop_of(spool))
        with contextlib.suppress(OSError):
            operator.stream.sendall(b'{"line": "import time; time.sleep(0.01)"}\n' * 5000)
        ended_well(spool, process, "on\n")


def test_nobody_comes_so_it_goes_on_and_does_not_stop_there_again(spool: ShimSpool) -> None:
    settings(spool, breakpoint_timeout=0.2)
    with worker(spool, STEPS) as process:
        err = ended_well(spool, process, "0\n2\n").splitlines()
    assert len(err) == 2
    assert err[0].endswith("it goes on by itself after 0 s (as it was told)")
    assert err[1] == "clusterddp: nobody came to script.py:5: it goes on, and does not stop there again"


UNCAUGHT = """
def divide(number):
    return 1 / number
divide(0)
"""


def test_an_uncaught_exception_is_examined_before_the_worker_ends(spool: ShimSpool) -> None:
    (spool.folder / "debug" / "uncaught").touch()
    with worker(spool, UNCAUGHT) as process:
        operator = Operator(stop_of(spool))
        assert "script.py(3)divide()\n-> return 1 / number" in operator.said()
        assert operator.do("p number") == "0\n"
        assert "script.py(4)<module>()" in operator.do("u")
        assert json.loads((spool.folder / "errors" / "0.0.json").read_text())["exc_type"] == "ZeroDivisionError"
        operator.send(line="c")
        err = ended_well(spool, process, "", 1)
    assert "ZeroDivisionError: division by zero\nclusterddp: rank 3 waits at ZeroDivisionError, script.py:3" in err


def test_without_the_option_and_at_an_exit_it_ends_at_once(spool: ShimSpool) -> None:
    with worker(spool, UNCAUGHT) as process:
        assert "waits" not in ended_well(spool, process, "", 1)
    (spool.folder / "debug" / "uncaught").touch()
    (spool.cwd / "script.py").write_text("raise SystemExit(3)")
    assert spool.run("-u", "script.py").returncode == 3


def test_pythonbreakpoint_of_the_user_wins(spool: ShimSpool) -> None:
    (spool.cwd / "own.py").write_text("def stop(): print('own')")
    with worker(spool, STEPS, PYTHONBREAKPOINT="own.stop") as process:
        assert ended_well(spool, process, "own\n0\nown\n2\n") == ""


FORKS = """
import os, sys
breakpoint()
pid = os.fork()
if not pid:
    word = "child"
    breakpoint()
    print(word, flush=True)
    os._exit(0)
print("parent", os.waitpid(pid, 0)[1])
"""


def test_a_forked_child_stops_by_itself_and_leaves_the_workers_operator_alone(spool: ShimSpool) -> None:
    with worker(spool, FORKS) as process:
        own = stop_of(spool)
        operator = Operator(own)
        operator.said()
        assert "-> pid = os.fork()" in operator.do("n")
        operator.send(line="c")
        wait_for(lambda: len(stops(spool)) == 2, "the child's stop")
        (childs,) = [path for path in stops(spool) if path != own]
        assert childs.name.startswith("0.0.")
        other = Operator(childs)
        other.said()
        assert other.do("p word", "word = 'done'") == ""
        other.detach()
        ended_well(spool, process, "done\nparent 0\n")
        assert operator.said() == ""  # it has ended, and its child has kept nothing open


def test_a_spool_with_a_path_longer_than_a_sockets_address(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    spool = make_spool(folder)
    with worker(spool, "breakpoint()") as process:
        path = stop_of(spool)
        assert path.stat().st_mode & 0o777 == path.with_name(path.name + ".json").stat().st_mode & 0o777 == 0o600
        Operator(path).detach()
        ended_well(spool, process, "")


@pytest.mark.parametrize("obstacle", ["link", "missing", "no file of ours"])
def test_where_it_cannot_listen_the_script_goes_on(spool: ShimSpool, tmp_path: Path, obstacle: str) -> None:
    folder = spool.folder / "debug"
    if obstacle == "no file of ours":
        (spool.folder / "hook" / "rank_debugger.py").unlink()
    else:
        shutil.rmtree(folder)
    if obstacle == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    with worker(spool, "breakpoint()\nprint('on')") as process:
        assert "is passed over" in ended_well(spool, process, "on\n")
    assert obstacle != "link" or not list((tmp_path / "elsewhere").iterdir())


def test_the_end_of_the_spool_removes_the_folder_and_follows_no_link(spool: ShimSpool, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine").touch()
    (spool.folder / "debug" / "0.0.1.1").touch()
    (spool.folder / "traces").rmdir()
    (spool.folder / "traces").symlink_to(other)
    Spool(str(spool.folder)).write_exit("succeeded", 0, "all workers ended")
    assert not (spool.folder / "debug").exists()
    assert (other / "mine").exists()


def test_threads_stop_one_after_the_other(spool: ShimSpool) -> None:
    text = """
    import threading
    def work():
        breakpoint()
    threads = [threading.Thread(target=work) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print("over")
    """
    with worker(spool, text) as process:
        path = None
        for _ in range(2):
            path = stop_of(spool, path)
            operator = Operator(path)
            assert "work()" in operator.said()
            operator.send(interrupt=True)  # of no use: it is no main thread
            assert operator.do("p 1") == "1\n"
            operator.detach()
        ended_well(spool, process, "over\n")


def test_a_forked_worker_stops_as_a_plain_one(spool: ShimSpool, tmp_path: Path) -> None:
    environ = {"PYTHONPATH": empty_torch(tmp_path)}
    (spool.cwd / "script.py").write_text(STEPS)
    with (
        fork_server(spool, "-u", "script.py", env=environment(**environ)) as said,
        worker(spool, STEPS, **environ) as process,
    ):
        assert said.endswith("ready\n"), said
        first = stop_of(spool)
        operator = Operator(first)
        assert operator.said().startswith(f"> {spool.cwd}/script.py(5)step()\n")
        assert operator.do("w").startswith(f"  {spool.cwd}/script.py(8)<module>()\n")  # nothing of ours is below
        operator.detach()
        Operator(stop_of(spool, first)).detach()
        ended_well(spool, process, "0\n2\n")
        assert spool.event("worker_started")["forked"]
