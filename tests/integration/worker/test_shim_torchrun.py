"""The shim under real torchrun: it notices nothing, and we learn what it does not say."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.shim_spool import PROBES, Ended, ShimSpool, environment, make_spool, without_addresses
from tests.lean import training_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

need_torch()
pytestmark = pytest.mark.torch

VARYING = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")


@pytest.fixture
def spool(tmp_path: Path) -> ShimSpool:
    """A spool whose workers run where torch is."""
    return make_spool(tmp_path, elastic=True)


def torchrun(
    spool: ShimSpool, *args: str, shim: bool = True, nproc: int = 1, restarts: int = 0, python: str = ""
) -> Ended:
    """Run a script under a single-node torchrun."""
    worker = environment()
    env = {name: worker[name] for name in ("PATH", "HOME", "LANG") if name in worker} | {"OMP_NUM_THREADS": "1"}
    ours = {"PET_NPROC_PER_NODE": str(nproc), "PET_MAX_RESTARTS": str(restarts)}
    ours |= {"PET_LOG_DIR": str(spool.folder / "torch"), "CLUSTERDDP_RUN_ID": "r1"}
    if shim:
        ours["PYTHON_EXEC"] = spool.worker
    done = subprocess.run(
        [python or training_python(), "-m", "torch.distributed.run", "--standalone", *args],
        cwd=spool.cwd,
        env=env | ours,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    return Ended(returncode=done.returncode, out=done.stdout, err=done.stderr)


def test_a_worker_of_torchrun_sees_what_it_sees_without_us(spool: ShimSpool) -> None:
    reports = []
    for shim in (False, True):
        ended = torchrun(spool, str(PROBES / "looks.py"), "report.json", shim=shim, python=sys.executable)
        assert ended.returncode == 0
        report = json.loads(without_addresses((spool.cwd / "report.json").read_bytes()))
        for name in ("environ", "posix"):
            found = report[name]
            report[name] = {n: v for n, v in found.items() if n not in VARYING and not n.startswith("PET_")}
            assert not shim or not [n for n in found if n.startswith("PET_") or n == "PYTHON_EXEC"]
        for name in ("environ_order", "stdout", "stderr"):  # files rather than the agent's pipes, and no PET_*
            del report[name]
        reports.append(report)
    assert reports[1] == reports[0]


FAILS = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record
{decorator}
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("loss is NaN")
    import threading; threading.Event().wait(600)
main()
"""


@pytest.mark.parametrize("decorator", ["", "@record"])
def test_torchrun_reports_a_failure_and_so_do_we(spool: ShimSpool, decorator: str) -> None:
    (spool.cwd / "train.py").write_text(FAILS.format(decorator=decorator))
    ended = torchrun(spool, "train.py", nproc=2)
    assert ended.returncode == 1
    assert b"ValueError: loss is NaN" in ended.err  # torchrun's own summary reads its own error file
    exits = {event["rank"]: event for event in spool.events("worker_exited")}
    assert exits[1]["exit_code"] == 1
    assert exits[0]["signal"] == 15
    record = json.loads((spool.folder / "errors" / f"0.{exits[1]['local_rank']}.json").read_text())
    assert (record["exc_type"], record["line"]) == ("ValueError", 7)
    assert not (spool.folder / "errors" / "0.0.json").exists()


def test_every_restart_is_a_start_of_its_own(spool: ShimSpool) -> None:
    text = "import os\nnumber = os.environ['TORCHELASTIC_RESTART_COUNT']\nprint(number)\nassert number == '1'"
    (spool.cwd / "train.py").write_text(text)
    assert torchrun(spool, "train.py", restarts=1).returncode == 0
    started = [(event["start"], event["restart_count"]) for event in spool.events("worker_started")]
    assert started == [(0, 0), (1, 1)]
    assert [event["exit_code"] for event in spool.events("worker_exited")] == [1, 0]
    assert [(spool.folder / "logs" / f"{start}.0.out").read_text() for start in (0, 1)] == ["0\n", "1\n"]


LOADS = """
import os, torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 8
    def __getitem__(self, at):
        return at, len([n for n in os.environ if n.startswith(("PET_", "PYTHON_EXEC", "CLUSTERDDP_HOOK"))])

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    total = torch.zeros(1)
    for context in ("fork", "spawn", "forkserver"):
        for batch, ours in DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=context):
            total += batch.sum() + 1000 * ours.sum()
    torch.distributed.all_reduce(total)
    print(total.item())
    torch.distributed.destroy_process_group()
"""


def test_ddp_with_loader_workers_of_every_kind_trains(spool: ShimSpool) -> None:
    (spool.cwd / "train.py").write_text(LOADS)
    assert torchrun(spool, "train.py", nproc=2).returncode == 0, (spool.folder / "logs" / "0.0.err").read_text()
    assert [(spool.folder / "logs" / f"0.{rank}.out").read_text() for rank in (0, 1)] == ["168.0\n", "168.0\n"]
