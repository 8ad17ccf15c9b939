"""The doctor and a job on this machine's own NVIDIA GPUs; skipped, by name, where there are none.

What the doctor makes of sick GPUs is tested with made output (tests/integration/doctor/test_doctor_gpus.py): here it
is real, and well. `tests/gpu/record.sh` records it.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.probes import gpu_health, nvidia_smi_xml
from clusterddp.remote.shared.probes.gpu_records import GpuHealth
from clusterddp.remote.system import nvidia_smi
from tests.integration.cli import User
from tests.unit.operation import run_operation
from tests.with_torch import need_torch

RECORD = Path(__file__).with_name("record.sh")
TRAIN = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
value = torch.full((1 << 20,), 3.0, device="cuda:0")
dist.all_reduce(value)
print("all-reduce", dist.get_world_size(), float(value.sum()) / (1 << 20))
dist.destroy_process_group()
"""


@functools.cache
def why_not() -> str:
    """Why these tests cannot run here; empty if they can."""
    if not shutil.which("nvidia-smi"):
        return "no nvidia-smi here"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60)
    if listed.returncode or "GPU 0" not in listed.stdout:
        return "nvidia-smi lists no GPU"
    asked = "import torch; raise SystemExit(not torch.cuda.is_available())"
    found = subprocess.run([sys.executable, "-c", asked], check=False, timeout=120, capture_output=True)
    return "torch finds no GPU" if found.returncode else ""


@pytest.fixture(autouse=True)
def a_gpu() -> None:
    reason = why_not()
    if reason:
        pytest.skip(f"gpu: {reason}")


@pytest.fixture
def user(tmp_path: Path) -> User:
    made = User(tmp_path)
    made.write("here.yaml", "all:\n  hosts:\n    here:\n      ansible_connection: local\n")
    return made


def test_the_machine_tells_of_every_gpu_and_tries_it() -> None:
    need_torch()
    args = {"devices": 1, "job": {"python": sys.executable}}
    told = read_answer(GpuHealth, "here", run_operation(gpu_health.gpu_health, args))
    assert told.error is None
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    assert [card.uuid for card in told.cards] == [line.split("UUID: ")[1].rstrip(")") for line in listed.splitlines()]
    assert told.smoke_test
    assert not told.smoke_test.starts[0].error
    assert told.smoke_test.starts[0].capability


def test_the_doctor_finds_healthy_gpus(user: User) -> None:
    done = user.run("doctor", "-i", "here.yaml", "--json", "--only", "GPUs")
    verdicts: dict[str, list[Any]] = {}
    for one in done.json["checks"]:
        verdicts.setdefault(one["name"], []).append((one["verdict"], one["message"]))
    for name in ("gpus", "driver", "nvidia-smi", "architecture", "gpu-start"):
        assert {verdict for verdict, _ in verdicts[name]} <= {"pass", "skipped"}, verdicts[name]


def test_one_gpu_reduces_by_nccl(user: User) -> None:
    user.write("train.py", TRAIN)
    done = user.run("run", "-i", "here.yaml", "--nproc-per-node", "1", "train.py")
    assert done.code == 0, done.err
    assert "all-reduce 1 3.0" in [line.text for line in done.workers]


def test_what_is_recorded_here_is_understood(tmp_path: Path) -> None:
    done = subprocess.run([str(RECORD), str(tmp_path)], capture_output=True, text=True, check=True)
    (base,) = {path.removesuffix(".xml") for path in done.stdout.split() if path.endswith(".xml")}
    cards = nvidia_smi_xml.parse_cards(Path(base + ".xml").read_text())
    listed = nvidia_smi.parse_gpus(Path(base + ".csv").read_text())
    assert [gpu.uuid for gpu in listed] == [card.uuid for card in cards]
    nvidia_smi_xml.parse_links(Path(base + ".nvlink.txt").read_text())
