"""Whether the driver still lists processes of a stopped run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.processes import gpu_holders
from clusterddp.remote.system import procfs

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDED = Path(__file__).parents[3] / "data" / "nvidia-smi" / "four-a100.csv"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"


@pytest.fixture
def devices(tmp_path: Path) -> str:
    """A folder of device files as a host with two GPUs has it."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return str(tmp_path)


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """An nvidia-smi that prints recorded GPUs, and one process on the first."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gpu_holders, "RELEASE_TIMEOUT", 0.0)
    gpus = RECORDED.read_text()
    uuid = gpus.splitlines()[0].split(",")[1].strip()

    def make(pid: int) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f'#!/bin/sh\ncase "$1" in --query-gpu*) cat {RECORDED};; *) echo {uuid}, {pid}, 9;; esac\n')
        program.chmod(0o700)

    return make


def test_without_a_device_nothing_is_claimed(tmp_path: Path) -> None:
    assert gpu_holders.find_gpu_holders([(os.getpid(), 1)], str(tmp_path)) == (None, [], "")


def test_a_process_that_the_driver_lists_is_a_survivor(devices: str, listing: Callable[[int], None]) -> None:
    listing(os.getpid())
    known = (os.getpid(), procfs.start_ticks(os.getpid()) or 0)
    count, held, error = gpu_holders.find_gpu_holders([known], devices)
    assert (count, [process.identity for process in held], error) == (2, [known], "")


def test_a_number_that_is_another_process_by_now_is_none(devices: str, listing: Callable[[int], None]) -> None:
    listing(os.getpid())
    assert gpu_holders.find_gpu_holders([(os.getpid(), 1)], devices) == (2, [], "")


def test_what_the_driver_cannot_tell_is_not_claimed(
    devices: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{MISMATCH}'; exit 18\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    count, held, error = gpu_holders.find_gpu_holders([], devices)
    assert (count, held) == (2, [])
    assert error == f"its GPUs: nvidia-smi failed with status 18: {MISMATCH}"
