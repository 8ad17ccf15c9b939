"""What a host says of its use: the kernel's counters, and nvidia-smi's answer, its lack or its failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterddp.remote.probes import usage
from clusterddp.remote.probes.nvidia_smi_xml import parse_usage
from clusterddp.remote.shared.probes.usage_records import HostUsage, NicCounters
from clusterddp.remote.shared.schema.record import read_record
from clusterddp.remote.system import nvidia_smi
from tests.unit.operation import run_operation

DATA = Path(__file__).parents[3] / "data" / "nvidia-smi"
BUSY = DATA / "busy-h100-550.54.15.xml"


def asked(state: Path, monkeypatch: pytest.MonkeyPatch, script: str = "", *, devices: int = 0) -> HostUsage:
    """The answer on a host whose nvidia-smi is ``script`` (empty: it has none)."""
    folder = state / "bin"
    folder.mkdir()
    if script:
        program = folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(nvidia_smi, "_DEFAULT_PATHS", ())
    monkeypatch.setattr(nvidia_smi, "pci_gpus", lambda: {"nvidia": devices, "amd": 0})
    return read_record(HostUsage, run_operation(usage.usage, {"xids": True, "state": str(state)}), "usage")


def test_each_gpus_use_and_the_processes_that_compute_on_it() -> None:
    busy, idle, silent = parse_usage(BUSY.read_text())
    assert (busy.number, busy.busy_percent, busy.used_mib, busy.memory_mib) == (0, 97, 61234, 81559)
    assert (busy.watts, busy.celsius, busy.bus) == (612, 64, "00000000:19:00.0")
    assert [(one.pid, one.command, one.memory_mib) for one in busy.processes] == [
        (4242, "/opt/train/bin/python", 61200)
    ]
    assert (idle.watts, idle.bus, [(one.pid, one.memory_mib) for one in idle.processes]) == (
        68, "00000000:2A:00.0", [(77, None)],
    )  # fmt: skip
    assert silent[4:10] == (None, None, None, None, None, ())


@pytest.mark.parametrize("path", sorted(DATA.glob("*.xml")), ids=lambda path: path.stem)
def test_every_drivers_answer_is_read(path: Path) -> None:
    assert parse_usage(path.read_text())


def test_a_host_without_gpus_tells_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(tmp_path, monkeypatch)
    assert (found.gpus, found.gpu_error, found.xids, found.xids_error) == ((), None, (), None)
    assert found.cores >= 1
    assert 0 < found.cpu_busy < found.cpu_total
    assert 0 < (found.memory_free or 0) < (found.memory or 0)
    assert 0 < (found.disk_free or 0) < (found.disk or 0)


def test_our_own_process_on_a_gpu_has_its_user_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = tmp_path / "answer.xml"
    answer.write_text(BUSY.read_text().replace("4242", str(os.getpid())))
    busy, *_ = asked(tmp_path, monkeypatch, f"exec cat {answer}").gpus
    (process,) = busy.processes
    assert process.user
    assert "python" in process.command
    assert process.memory_mib == 61200


@pytest.mark.parametrize(
    ("script", "devices", "reason"),
    [
        ("", 8, "8 NVIDIA devices, but no nvidia-smi"),
        ("echo Unable to determine the device handle; exit 15", 8, "with status 15: Unable to determine the device"),
        ("echo no XML", 8, "prints no XML"),
        ("exec sleep 60", 8, "did not answer within 0 s"),
    ],
)
def test_why_its_gpus_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, devices: int, reason: str
) -> None:
    monkeypatch.setattr(usage, "SMI_TIMEOUT", 0.2 if "sleep" in script else 8.0)
    found = asked(tmp_path, monkeypatch, script, devices=devices)
    assert found.gpus == ()
    assert reason in (found.gpu_error or "")
    assert found.cpu_total


def test_the_kernels_counters(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  10 1 20 300 9 2 3 4 10 1\ncpu0 1\n")
    assert usage.cpu_ticks(str(tmp_path / "stat")) == (40, 349)
    (tmp_path / "pressure").write_text("some avg10=4.25 avg60=1.00 avg300=0.00 total=9\nfull avg10=0.00\n")
    assert usage.cpu_pressure(str(tmp_path / "pressure")) == 4.25
    (tmp_path / "diskstats").write_text(
        "8 0 sda 1 0 100 0 1 0 200 0 0 0 0\n8 1 sda1 1 0 100 0 1 0 200 0 0 0 0\n253 0 dm-0 1 0 7 0 1 0 7 0 0 0 0\n"
    )
    for name in ("sda", "dm-0"):
        (tmp_path / "block" / name).mkdir(parents=True)
    assert usage.disk_bytes(str(tmp_path / "diskstats"), str(tmp_path / "block")) == (51_200, 102_400)
    (tmp_path / "dev").write_text(
        "Inter-|   Receive\n face |bytes packets\n    lo: 5 1 0 0 0 0 0 0 5 1\n  eth0:7 1 0 0 0 0 0 0 9 1 0 0\n"
    )
    assert usage.nic_bytes(str(tmp_path / "dev")) == [NicCounters("eth0", 7, 9)]
    counters = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1" / "counters"
    counters.mkdir(parents=True)
    (counters / "port_rcv_data").write_text("25\n")
    (counters / "port_xmit_data").write_text("50\n")
    assert usage.infiniband_bytes(str(tmp_path / "infiniband")) == [NicCounters("mlx5_0:1", 100, 200)]


def test_files_that_are_missing_or_cut_are_no_failure(tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    cut.write_text("cpu  1 x\n eth0: 1\nsome avg10=")
    for path in (str(cut), str(tmp_path / "missing")):
        assert usage.cpu_ticks(path) == (0, 0)
        assert usage.cpu_pressure(path) is None
        assert usage.disk_bytes(path) == (0, 0)
        assert usage.nic_bytes(path) == []
    assert usage.infiniband_bytes(str(tmp_path / "missing")) == []
    assert usage.disk_space(str(tmp_path / "missing")) == (None, None)
