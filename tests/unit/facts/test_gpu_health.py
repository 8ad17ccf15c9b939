"""What a host tells of its GPUs' surroundings: made trees of /sys and /proc, and the operation without any GPU."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.probes import gpu_health
from clusterddp.remote.shared.probes.gpu_records import GpuHealth
from clusterddp.remote.system import nvidia_smi
from tests.unit.operation import run_operation

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def bus(tmp_path: Path) -> Path:
    """A PCI bus with a GPU, two NVSwitches, NVIDIA's sound, and somebody's bridge."""
    kinds = {"07": ("0x10de", "0x030200"), "c1": ("0x10de", "0x068000"), "c2": ("0x10de", "0x068000")}
    kinds |= {"08": ("0x10de", "0x040300"), "00": ("0x8086", "0x068000")}
    for number, (vendor, kind) in kinds.items():
        write(tmp_path / f"0000:{number}:00.0" / "vendor", vendor + "\n")
        write(tmp_path / f"0000:{number}:00.0" / "class", kind + "\n")
    write(tmp_path / "0000:07:00.0" / "iommu_group" / "type", "DMA-FQ\n")
    return tmp_path


def test_switches_are_counted_on_the_bus(bus: Path, tmp_path: Path) -> None:
    assert gpu_health.switches(str(bus)) == 2
    assert gpu_health.switches(str(tmp_path / "none")) == 0


def test_how_the_iommu_treats_a_gpu_is_told_by_its_bus(bus: Path) -> None:
    assert gpu_health.iommu(["00000000:07:00.0"], str(bus)) == "DMA-FQ"
    assert gpu_health.iommu(["00000000:C1:00.0"], str(bus)) is None
    assert gpu_health.iommu([], str(bus)) is None


def test_adapters_that_could_reach_gpus_are_named(tmp_path: Path) -> None:
    assert gpu_health.direct_access(str(tmp_path)) == (False, False, ())
    for name, vendor in (("mlx5_0", "0x15b3"), ("efa_0", "0x1d0f")):
        write(tmp_path / "sys/class/infiniband" / name / "device/vendor", vendor)
    write(tmp_path / "sys/module/nvidia_peermem/version", "550.54.15")
    write(tmp_path / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15")
    told = gpu_health.direct_access(str(tmp_path))
    assert told == (True, True, ("mlx5_0",))


def test_a_host_without_nvidia_smi_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_smi, "find_program", lambda _env: None)
    asked = {"devices": 0, "job": {"python": sys.executable}}
    told = read_answer(GpuHealth, "here", run_operation(gpu_health.gpu_health, asked))
    assert (told.cards, told.error, told.smoke_test) == ((), "no nvidia-smi on this host", None)


def test_an_nvidia_smi_that_fails_is_told_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Unable to determine the device handle for GPU0: Unknown Error'; exit 15\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    told = read_answer(GpuHealth, "here", run_operation(gpu_health.gpu_health, {"devices": 0, "job": {}}))
    assert (
        told.error == "nvidia-smi failed with status 15: Unable to determine the device handle for GPU0: Unknown Error"
    )
    assert (told.links, told.links_error) == ({}, None)


def test_links_that_take_too_long_are_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\n[ "$1" = nvlink ] && exec sleep 600\necho "<nvidia_smi_log></nvidia_smi_log>"\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(nvidia_smi, "TIMEOUT", 5.0)
    told = read_answer(GpuHealth, "here", run_operation(gpu_health.gpu_health, {"devices": 0, "job": {}}))
    assert (told.error, told.links_error) == (None, "nvidia-smi did not answer within 5 s")
