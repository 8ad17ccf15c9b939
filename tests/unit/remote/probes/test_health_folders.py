"""What a host tells of its folders, its login and its control groups: read from this machine, and from text."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from clusterddp.remote.probes import filesystems
from clusterddp.remote.probes.login_shell import LoginShell, identity
from clusterddp.remote.shared.probes.health_records import LoginPython
from clusterddp.remote.system import cgroups


def shell(tmp_path: Path, text: str) -> LoginShell:
    """A login shell that does what the text says with its words."""
    program = tmp_path / "bash"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return LoginShell(str(program))


def test_a_small_file_is_written_and_gone(tmp_path: Path) -> None:
    found = filesystems.try_write(str(tmp_path / "not" / "yet"))
    assert found.error is None
    assert found.ms is not None
    assert 0 <= found.ms < 60_000
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_says_why() -> None:
    found = filesystems.try_write("/proc/self")
    assert found.ms is None
    assert found.error


def test_locks_of_extensions_have_an_age(tmp_path: Path) -> None:
    lock = tmp_path / "py311_cu128" / "fused" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (1, 1))
    ((path, age),) = filesystems.extension_locks(str(tmp_path)).items()
    assert path == str(lock)
    assert age > 1_000_000_000
    assert filesystems.extension_locks(str(tmp_path / "none")) == {}


def test_what_profiles_print_is_not_taken_for_an_answer(tmp_path: Path) -> None:
    noisy = 'echo /welcome; shift 2; PATH=/opt/bin; command() { echo "/opt/$2"; }; eval "$1"; echo /more'
    assert shell(tmp_path, noisy).answer("/usr/bin/python3") == LoginPython(python="/opt/python")


def test_a_login_that_does_not_come_to_its_prompt_is_an_error(tmp_path: Path) -> None:
    assert "did not come" in (shell(tmp_path, "exit 3").answer(None).error or "")
    assert "is not known" in (LoginShell("/bin/csh").answer(None).error or "")
    assert "does not start" in (LoginShell(str(tmp_path / "none" / "bash")).answer(None).error or "")


def test_this_machines_login_finds_some_python() -> None:
    found = LoginShell("/bin/sh").answer(sys.executable)
    assert found.error is None
    assert found.python is None or found.same == (identity(found.python) == identity(sys.executable))


def test_a_virtual_environment_is_not_its_base(tmp_path: Path) -> None:
    base = Path(os.path.realpath(sys.executable))
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    inside, plain = tmp_path / "venv" / "bin" / "python", tmp_path / "python"
    inside.symlink_to(base)
    plain.symlink_to(base)
    assert identity(str(plain)) == identity(str(base))
    assert identity(str(inside)) != identity(str(base))


def groups(folder: Path, membership: str, files: dict[str, str]) -> cgroups.CgroupLimits:
    (folder / "membership").write_text(membership)
    for name, text in files.items():
        path = folder / "cg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cgroups.limits(str(folder / "membership"), str(folder / "cg"))


def test_limits_of_version_2_are_the_tightest_of_all_above(tmp_path: Path) -> None:
    files = {
        "slice/memory.max": "5000\n",
        "slice/memory.current": "4500\n",
        "slice/memory.stat": "anon 100\ninactive_file 300\nactive_file 700\n",
        "slice/cpu.max": "max 100000\n",
        "slice/job/memory.max": "max\n",
        "slice/job/cpu.max": "150000 100000\n",
    }
    found = groups(tmp_path, "0::/slice/job\n", files)
    assert found == (5000, 1500, 1500)


def test_limits_of_version_1_too(tmp_path: Path) -> None:
    files = {
        "memory/job/memory.limit_in_bytes": "4096\n",
        "memory/job/memory.usage_in_bytes": "5000\n",
        "memory/job/memory.stat": "total_inactive_file 1000\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "cpu/other/cpu.cfs_quota_us": "50000\n",
        "cpu/other/cpu.cfs_period_us": "100000\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
    }
    found = groups(tmp_path, "4:cpu,cpuacct:/other\n3:memory:/job\n", files)
    assert found == (4096, 96, 500)


@pytest.mark.parametrize("membership", ["", "nonsense\n", "0::/\n", "3:memory:/\n"])
def test_without_limits_there_is_none(tmp_path: Path, membership: str) -> None:
    assert groups(tmp_path, membership, {"cpu.max": "nonsense"}) == (None, None, None)
