"""The doctor and a job on this machine's own NVIDIA GPUs; skipped, by name, where there are none.

What the doctor makes of sick GPUs is tested with made output (tests/integration/doctor/test_doctor_gpus.py): here it
is real, and well. `tests/gpu/record.sh` records it.
"""

from __future__ import annotations

import functools
import re
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
from tests.lab.system import wait_until
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
# Two ranks share the GPU: NCCL refuses that only to ranks that name the same host.
TWO = """
import os, sys
os.environ["NCCL_HOSTID"] = os.environ["RANK"]
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank, tensor = dist.get_rank(), torch.ones(4, device="cuda:0")
for step in range(3):
    dist.all_reduce(tensor)
torch.cuda.synchronize()
print("together", flush=True)
"""
MISSING = (
    TWO
    + """
import threading
if rank == 1:
    threading.Event().wait(600)
dist.all_reduce(tensor)
torch.cuda.synchronize()
"""
)
ENDS = (
    TWO
    + """
if rank == 1:
    sys.exit()
dist.all_reduce(tensor)
torch.cuda.synchronize()
"""
)
OTHER_TYPE = (
    TWO
    + """
dist.all_reduce(torch.ones(4, device="cuda:0", dtype=torch.int32 if rank == 1 else torch.float32))
torch.cuda.synchronize()
dist.destroy_process_group()
"""
)
COMPUTES = """
import os, torch
tensor = torch.ones(1 << 28, device="cuda:0")
torch.cuda._sleep(1 << 41)  # some 20 minutes
print("busy", os.getpid(), flush=True)
torch.cuda.synchronize()
"""
SHARED = ("-i", "here.yaml", "--nproc-per-node", "2", "--share-gpus")


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


@pytest.mark.parametrize(
    ("script", "doing"),
    [
        (MISSING, "it is at two.py:14, waiting for a lock or a thread; rank 0 waits at two.py:16"),
        (ENDS, "it has ended; rank 0 waits at two.py:15"),
    ],
)
def test_why_names_the_rank_that_nccl_waits_for(user: User, script: str, doing: str) -> None:
    user.write("two.py", script)
    with user.start("run", *SHARED, "two.py") as live:
        live.wait_for("together", times=2)
        wait_until("it hangs", lambda: user.run("why", "-i", "here.yaml", "--json").json["state"] == "hung")
        value = user.run("why", "-i", "here.yaml", "--json").json
        user.run("stop", "-i", "here.yaml", "--grace", "0")
        live.end()
    assert (value["class"], value["ranks"], value["sequence"]) == ("missing", [1], 4)
    assert doing in value["sentence"]


def test_a_wrong_result_of_nccl_is_told_at_the_end(user: User) -> None:
    user.write("two.py", OTHER_TYPE)
    done = user.run("run", *SHARED, "two.py")
    assert done.code == 0
    assert "ended well, but with a wrong result" in done.err


def test_stop_proves_that_a_gpu_at_work_is_free(user: User) -> None:
    user.write("computes.py", COMPUTES)
    with user.start("run", "-i", "here.yaml", "computes.py") as live:
        live.wait_for("busy")
        (pid,) = re.findall(r"busy (\d+)", live.text("out"))
        assert pid in compute_pids()
        busy = user.run("doctor", "-i", "here.yaml", "--json", "--only", "GPUs").json
        stopped = user.run("stop", "-i", "here.yaml", "--grace", "1")
        assert pid not in compute_pids()
        live.end()
    assert stopped.code == 0, stopped.err
    assert "GPU" in stopped.err
    assert "warn" in {one["verdict"] for one in busy["checks"]}


def compute_pids() -> list[str]:
    """The processes on the GPU as the driver knows them."""
    asked = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()


def test_what_is_recorded_here_is_understood(tmp_path: Path) -> None:
    done = subprocess.run([str(RECORD), str(tmp_path)], capture_output=True, text=True, check=True)
    (base,) = {path.removesuffix(".xml") for path in done.stdout.split() if path.endswith(".xml")}
    cards = nvidia_smi_xml.parse_cards(Path(base + ".xml").read_text())
    listed = nvidia_smi.parse_gpus(Path(base + ".csv").read_text())
    assert [gpu.uuid for gpu in listed] == [card.uuid for card in cards]
    nvidia_smi_xml.parse_links(Path(base + ".nvlink.txt").read_text())
