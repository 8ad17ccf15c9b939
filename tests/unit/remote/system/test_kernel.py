"""Facts about processes and calls to the kernel."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusterddp.remote.system import procfs
from tests.pythons import interpreter

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux")


def in_child(code: str) -> str:
    """Run code beside proc in a process of its own: what it sets must not stay with the tests."""
    program = f"from clusterddp.remote.system import prctl, procfs\nimport os, resource\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_start_ticks_name_one_process() -> None:
    own = procfs.start_ticks(os.getpid())
    assert own == procfs.start_ticks(os.getpid())
    assert own is not None
    assert own >= (procfs.start_ticks(os.getppid()) or 0)


def test_start_ticks_of_a_process_with_an_odd_name(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([odd, "60"]) as process:
        ticks = procfs.start_ticks(process.pid)
        process.kill()
    assert ticks is not None
    assert ticks >= (procfs.start_ticks(os.getpid()) or 0)
    assert procfs.start_ticks(process.pid) is None


def test_the_boot_identity_is_the_same_for_all_processes() -> None:
    assert re.fullmatch(r"[0-9a-f-]{36}:\d+:\d+", procfs.boot_identity())
    assert in_child("print(procfs.boot_identity())") == procfs.boot_identity()


def test_oom_score_is_only_raised() -> None:
    code = "print(prctl.set_oom_score_adj(900), prctl.set_oom_score_adj(400), open('/proc/self/oom_score_adj').read())"
    assert in_child(code).split() == ["True", "True", "900"]


def test_the_kernel_takes_death_signal_and_subreaper() -> None:
    assert in_child("print(prctl.set_pdeathsig(9), prctl.set_pdeathsig(0), prctl.set_subreaper())") == "True True True"


def test_no_core_is_left_after_it_was_forbidden() -> None:
    code = "print(prctl.forbid_core_dump(), resource.getrlimit(resource.RLIMIT_CORE))"
    assert in_child(code) == "True (0, 0)"


def test_caught_signals_are_told_from_others() -> None:
    previous = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert procfs.has_handler(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, previous)
    assert not procfs.has_handler(os.getpid(), signal.SIGUSR2)
    assert not procfs.has_handler(2**22 + 1, signal.SIGUSR2)


def test_the_module_serves_the_oldest_python_too() -> None:
    root = Path(__file__).parents[4]
    program = "from clusterddp.remote.system import prctl, procfs; print(prctl.set_subreaper(), procfs.boot_identity())"
    done = subprocess.run([interpreter("3.8"), "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", procfs.boot_identity()]


def test_ports_are_told_by_the_state_of_their_sockets(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    table.write_text(
        "  sl  local_address rem_address   st tx_queue\n"
        "   0: 00000000:72D8 00000000:0000 0A 00000000:00000000\n"  # 29400
        "   1: 0100007F:72D9 0100007F:C001 01 00000000:00000000\n"  # 29401, connected
        "   2: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0:0\n"  # 22
        "   3: short\n"
    )
    tables = [str(table), str(tmp_path / "none")]
    assert procfs.tcp_ports(procfs.LISTENING, tables) == [29400, 22]
    assert procfs.tcp_ports(procfs.ESTABLISHED, tables) == [29401]
