"""`doctor --bench` on real hosts: nothing is said of equal ones, the one with a fault is named alone."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration import doctor_cli
from tests.integration.cli import User, nothing_left
from tests.lean import training_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.doctor_cli import Named
    from tests.lab import Lab
    from tests.lab.host import LabHost

pytestmark = pytest.mark.lab
SICK = "gpu01"


@pytest.fixture(scope="module")
def lab_variants() -> dict[str, Any]:
    return {"variables": {"clusterddp_python": training_python()}}


def named(user: User, only: str, *words: str) -> list[Named]:
    """What is wrong."""
    return doctor_cli.named(user, "--bench", "--only", only, *words)[1]


@pytest.mark.alone
def test_a_slow_host_is_named_alone_by_the_bandwidth_of_its_pairs(three: Lab, user: User) -> None:
    three.host(SICK).rate("100mbit")
    ((name, verdict, hosts, message),) = named(user, "bandwidth")
    three.host(SICK).heal()
    assert (name, verdict, hosts) == ("bandwidth", "warn", (SICK,))
    assert message.startswith("sends and receives 9")
    assert named(user, "bandwidth") == []


def test_the_table_shows_every_pair(three: Lab, user: User) -> None:
    done = user.run("doctor", "--bench", "--only", "bandwidth")
    assert done.code == 0
    head, *rows = [line.split() for line in done.lines[-2 - len(three.hosts) : -1]]  # the summary is the last
    assert head[-len(three.hosts) :] == [host.name for host in three.hosts]
    for place, (host, row) in enumerate(zip(three.hosts, rows, strict=True)):
        assert row[0] == host.name
        assert row[1 + place] == "X"
        assert all(float(cell) > 0 for cell in row[1:] if cell != "X")


def test_it_refuses_beside_a_live_run(three: Lab, user: User) -> None:
    user.write("sleeper.py", "import threading\nthreading.Event().wait(600)\n")
    run = user.run("run", "--detach", "--nproc-per-node", "1", "sleeper.py").out.strip()
    done = user.run("doctor", "--bench", "--only", "bandwidth", "--json")
    assert user.run("stop", run).code == 0
    assert done.code == 1
    told = {one["name"]: one for one in done.json["checks"] if one["verdict"] in ("fail", "skipped")}
    assert f"run {run} of " in told["idle"]["message"]
    assert told["bandwidth"]["message"] == "because of idle"
    assert len(told["idle"]["hosts"]) == len(three.hosts)
    assert done.json["bench"]["pairs"] == []


def workers(host: LabHost) -> list[int]:
    """The pids of the bench's workers on a host: not its agent, whose command line names them too."""
    seen = [one for one in host.processes() if any(word.endswith("bench.py") for word in one.cmdline)]
    return [one.pid for one in seen if not {"torch.distributed.run", "shim"} & set(one.cmdline)]


@contextlib.contextmanager
def stopped_now_and_then(host: LabHost) -> Iterator[None]:
    """Two thirds of the time, while a worker is there."""
    done = threading.Event()

    def stop_and_go() -> None:
        while not done.wait(0.2):
            pids = workers(host)
            for _ in range(10):  # the list of processes costs more than the signals
                signalled(pids, signal.SIGSTOP)
                done.wait(0.1)
                signalled(pids, signal.SIGCONT)
                done.wait(0.05)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def signalled(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(pid, number)


@pytest.mark.alone
def test_a_rank_that_is_held_up_is_named_alone(three: Lab, user: User) -> None:
    assert named(user, "stragglers", "--skip", "rehearsal") == []
    with stopped_now_and_then(three.host(SICK)):
        ((name, verdict, hosts, message),) = named(user, "stragglers", "--skip", "rehearsal")
    assert (name, verdict, hosts) == ("stragglers", "warn", (SICK,))
    assert message.startswith("rank 1 needs ")


def test_the_columns_are_those_of_nccl_tests_and_nothing_is_left(three: Lab, user: User) -> None:
    with nothing_left(three):
        done = user.run("doctor", "--bench", "--only", "allreduce,gemm", "--skip", "rehearsal")
    assert done.code == 0, done.out
    place = next(at for at, line in enumerate(done.lines) if line.startswith("size_(B)"))
    words = "size_(B) count type redop time_(us) p95_(us) algbw_(GB/s) busbw_(GB/s) #wrong"
    assert " ".join(done.lines[place].split()) == words
    sizes = [
        int(line.split()[0]) for line in done.lines[place + 1 :] if line.strip()[:1].isdigit() and "float " in line
    ]
    assert sizes[:2] == [8, 1 << 16]
    assert all(line.split()[-1] == "0" for line in done.lines[place + 1 : place + 1 + len(sizes)])
    ranks = [line.split()[:2] for line in done.lines if "512_float32" in line]
    assert ranks == [[str(rank), host.name] for rank, host in enumerate(three.hosts)]
