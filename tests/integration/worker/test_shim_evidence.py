"""What the shim records of a worker's end beyond its status: who told it to end, and whether memory ran out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.shared.verdict.failures import ENDED, OUT_OF_MEMORY, OWN, SIGNAL, FailedWorker, worker_failures
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.spool.worker_traces import evidence
from tests.integration.memory_group import little_memory
from tests.integration.shim_spool import ShimSpool, environment, make_spool, shim_environment, wait_for

if TYPE_CHECKING:
    from pathlib import Path

SLEEP = "print('ready'); import threading; threading.Event().wait(600)"
HOARD = "hoard = []\nwhile True:\n    hoard.append(bytearray(1 << 20))\n"


@pytest.fixture
def spool(tmp_path: Path) -> ShimSpool:
    return make_spool(tmp_path)


def started(spool: ShimSpool, text: str = SLEEP) -> subprocess.Popen[bytes]:
    (spool.cwd / "script.py").write_text(text)
    process = spool.popen("-u", "script.py")
    out = spool.folder / "logs" / "0.0.out"
    wait_for(lambda: spool.events("worker_started") and out.exists() and out.read_text(), "the script")
    return process


def failed(spool: ShimSpool) -> tuple[dict[str, Any], FailedWorker]:
    """The event of the worker's end, and what is made of it."""
    event = spool.event("worker_exited")  # waited for
    (failure,) = worker_failures(evidence(Spool(str(spool.folder))))
    return event, failure


def test_a_worker_that_the_agent_ends_was_told_so(spool: ShimSpool) -> None:
    before = time.time_ns()
    process = started(spool)
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(10)
    event, failure = failed(spool)
    ((number, at),) = event["signals_received"]
    assert number == signal.SIGTERM
    assert before < at <= event["time"]
    assert failure.kind == ENDED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_somebody_else_ends_was_not(spool: ShimSpool, number: int) -> None:
    process = started(spool)
    os.kill(spool.event("worker_started")["pid"], number)
    process.wait(10)
    event, failure = failed(spool)
    assert event["signals_received"] == []
    assert (failure.kind, failure.cause, failure.curable) == (OWN, SIGNAL, True)


def test_a_worker_that_goes_with_its_agent_was_told_to(spool: ShimSpool) -> None:
    (spool.cwd / "script.py").write_text(SLEEP)
    code = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True).wait()"
    command = ["python3", "-c", code, spool.worker, "-u", "script.py"]
    with subprocess.Popen(command, cwd=spool.cwd, env=shim_environment(environment())) as agent:
        spool.event("worker_started")
        agent.kill()
    event, failure = failed(spool)
    assert [number for number, _ in event["signals_received"]] == [signal.SIGKILL]
    assert failure.kind == ENDED


def test_a_term_after_the_workers_own_end_is_not_evidence(spool: ShimSpool) -> None:
    process = started(spool)
    process.send_signal(signal.SIGSTOP)  # the shim learns late that its worker has ended
    worker = spool.event("worker_started")["pid"]
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: _state(worker) == "Z", "the worker's end")
    process.terminate()
    process.send_signal(signal.SIGCONT)
    process.wait(10)
    event, failure = failed(spool)
    assert (event["signals_received"], event["signal"]) == ([], signal.SIGKILL)
    assert failure.kind == OWN


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0]


def test_a_crash_in_c_has_the_users_own_line_where_faulthandler_is_on(spool: ShimSpool) -> None:
    (spool.cwd / "train.py").write_text("import ctypes\ndef step():\n    ctypes.string_at(0)\nstep()\n")
    spool.run("-u", "-X", "faulthandler", "train.py")
    _, failure = failed(spool)
    assert failure.text == "killed by SIGSEGV: Segmentation fault (train.py:3)"
    assert (failure.kind, failure.curable) == (OWN, False)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"message": {"message": "ValueError: caught", "extraInfo": {"timestamp": "1"}}}, "ValueError: caught"),
        ({"message": "CustomError: plain"}, "CustomError: plain"),
        ({"message": {}}, "exit code 4: the last word"),
        ([], "exit code 4: the last word"),
    ],
)
def test_torchs_own_record_of_an_exception_is_understood(spool: ShimSpool, record: object, text: str) -> None:
    script = "import os, sys\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write(sys.argv[1])\n"
    (spool.cwd / "train.py").write_text(script + "print('the last word', file=sys.stderr)\nos._exit(4)\n")
    env = environment(TORCHELASTIC_ERROR_FILE=str(spool.cwd / "error.json"))
    spool.run("-u", "train.py", json.dumps(record), env=env)
    assert failed(spool)[1].text == text


def test_the_kernels_kill_for_want_of_memory_is_on_record(spool: ShimSpool) -> None:
    (spool.cwd / "script.py").write_text(HOARD)
    with little_memory(96 << 20) as prefix:
        argv = [*prefix, spool.worker, "-u", "script.py"]
        done = subprocess.run(argv, cwd=spool.cwd, env=shim_environment(environment()), check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    event, failure = failed(spool)
    assert event["oom_kills"] == 1
    assert (failure.cause, failure.curable) == (OUT_OF_MEMORY, False)


def test_another_ones_kill_for_want_of_memory_is_not_ours(spool: ShimSpool) -> None:
    process = started(spool)
    with little_memory(32 << 20) as prefix:
        assert subprocess.run([*prefix, "python3", "-c", HOARD], check=False).returncode == -signal.SIGKILL
        os.kill(spool.event("worker_started")["pid"], signal.SIGKILL)
        process.wait(10)
    event, failure = failed(spool)
    assert event["oom_kills"] == 0
    assert failure.text == "killed by SIGKILL"
