"""`clusterddp debug` of a worker that is at no breakpoint: stopped where its Python allows it, else refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.processes import break_in
from clusterddp.remote.system.bootstrap import Refused
from tests.integration.shim_spool import ShimSpool, make_spool, wait_for
from tests.integration.worker.stopped_worker import Operator, stops
from tests.integration.worker.test_rank_debugger import ended_well, worker
from tests.pythons import OWN, interpreter
from tests.unit.operation import run_operation

if TYPE_CHECKING:
    from pathlib import Path

NEWEST = "3.14"  # the first that can be stopped
LOOP = """
import threading
print("begun", flush=True)
def step(number):
    threading.Event().wait(0.01)
    return number + 1
number, going = 0, True
while going:
    number = step(number)
print("over")
"""
SLEEPS = """
import time
print("begun", flush=True)
time.sleep(20)
"""
LOCKED = """
import os, threading
lock = threading.Lock()
lock.acquire()
threading.Thread(target=lambda: (os.read(0, 1), lock.release())).start()
print("begun", flush=True)
lock.acquire()
print("over")
"""


@pytest.fixture
def newest(tmp_path: Path) -> ShimSpool:
    return make_spool(tmp_path, python=interpreter(NEWEST))


def begun(spool: ShimSpool) -> None:
    out = spool.folder / "logs" / "0.0.out"
    wait_for(lambda: out.exists() and out.read_text() == "begun\n", "the worker")


def stopped(spool: ShimSpool, rank: int = 3) -> list[Path]:
    """Stop the worker; the sockets at which it waits then, as the operation tells them."""
    found = run_operation(break_in.break_in, {"spool": str(spool.folder), "rank": rank})
    assert {stop["cause"] for stop in found} <= {"clusterddp debug"}
    return [spool.folder / "debug" / stop["name"] for stop in found]


def test_a_running_worker_is_stopped_where_it_is_and_goes_on(newest: ShimSpool) -> None:
    with worker(newest, LOOP) as process:
        begun(newest)
        assert stopped(newest, rank=2) == []
        (path,) = stopped(newest)
        operator = Operator(path)
        operator.said()
        assert "script.py(9)<module>()" in operator.do("w")
        assert operator.do("import __main__", "p __main__.number >= 0") == "True\n"
        operator.detach()
        (path,) = stopped(newest)  # again
        operator = Operator(path)
        operator.said()
        assert operator.do("import __main__; __main__.going = False") == ""
        operator.detach()
        err = ended_well(newest, process, "begun\nover\n")
    assert err.count("clusterddp: rank 3 is stopped by clusterddp debug at ") == 2
    assert list((newest.folder / "debug").iterdir()) == []


def test_a_wait_of_python_is_ended_by_the_stack_signal(newest: ShimSpool) -> None:
    with worker(newest, SLEEPS):
        begun(newest)
        (path,) = stopped(newest)
        assert "script.py(4)<module>()\n-> time.sleep(20)" in Operator(path).said()


def test_who_does_not_come_back_in_time_is_left_alone_then_too(newest: ShimSpool) -> None:
    reading, writing = os.pipe()
    (newest.cwd / "script.py").write_text(LOCKED)
    with newest.popen("-u", "script.py", stdin=reading) as process:
        begun(newest)
        with pytest.raises(Refused, match="does not come back to its Python code"):
            stopped(newest)
        os.write(writing, b"x")
        ended_well(newest, process, "begun\nover\n")
    assert stops(newest) == []
    os.close(reading)
    os.close(writing)


def test_an_older_python_lets_nobody_in_and_its_version_is_told(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    with worker(spool, LOOP):
        begun(spool)
        with pytest.raises(Refused, match=f"^Python {OWN} lets no debugger in, 3.14 and newer do$"):
            stopped(spool)
    assert list((spool.folder / "debug").iterdir()) == []
