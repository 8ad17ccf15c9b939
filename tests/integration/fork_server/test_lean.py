"""The lean interpreters start the same workers as the whole torch: both run, what workers and users see is compared."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.shared.run.event_schema import event_json
from tests.integration.cli import WAIT
from tests.integration.rendezvous.test_plugin import DIES_ONCE, hosts, launched, plan_for
from tests.integration.shim_spool import PROBES, ShimSpool, make_spool, without_addresses
from tests.integration.worker.test_shim_torchrun import VARYING, torchrun
from tests.lean import lean_python, training_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from clusterddp.hosts.client import Host

__all__ = ["hosts"]  # fixture
need_torch()
pytestmark = pytest.mark.torch

BOTH = ("whole", "lean")
HEAD = f"""{WAIT}
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
mine = os.environ["RANK"] == "1"
there = "the other is there " + os.environ["TORCHELASTIC_RESTART_COUNT"]
if not mine:
    open(there, "w").close()
wait_for(there)
"""
STEPS = """
import torch
weights = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.5)
weights.square().sum().backward()
optimizer.step()
print(weights.sum().item(), hasattr(torch._dynamo, "optimize"))
"""
ENDS = {  # of rank 1, once the other is there, which waits for its end: always the same fails first
    "raises": f"{HEAD}if mine: raise ValueError('loss is NaN')\nthreading.Event().wait(600)",
    "exits": f"{HEAD}if mine: sys.exit(7)\nthreading.Event().wait(600)",
    "killed": f"{HEAD}if mine: os.kill(os.getpid(), 9)\nthreading.Event().wait(600)",
    "starts again": f"{HEAD}if mine: sys.exit(first)\nif first: threading.Event().wait(600)",
}


def interpreter(which: str) -> str:
    return lean_python() if which == "lean" else sys.executable


def spool_of(folder: Path, which: str, python: str = sys.executable) -> ShimSpool:
    (folder / which).mkdir()
    return make_spool(folder / which, python=python, elastic=True)


def test_it_imports_no_tensors_and_says_the_same_of_itself() -> None:
    script = Path("clusterddp/remote/probes/scripts/torch_facts.py").read_text()
    said = [subprocess.run([interpreter(one), "-c", script, "", "1"], capture_output=True, check=True) for one in BOTH]
    assert json.loads(said[0].stdout) == json.loads(said[1].stdout)
    lacks = (
        "import sys, torch.distributed.run, torch; sys.exit(hasattr(torch, 'ones') or 'torch._tensor' in sys.modules)"
    )
    subprocess.run([lean_python(), "-c", lacks], check=True)


def test_for_training_the_agent_is_lean_and_workers_lack_what_the_compiler_needs_alone(tmp_path: Path) -> None:
    spool = spool_of(tmp_path, "training", training_python())
    (spool.cwd / "train.py").write_text(STEPS)
    ended = torchrun(spool, "train.py", nproc=2, python=training_python())
    assert ended.returncode == 0, ended.err
    assert [(spool.folder / "logs" / f"0.{rank}.out").read_text() for rank in (0, 1)] == ["0.0 False\n"] * 2
    ended = torchrun(spool, "nowhere.py", python=training_python())
    assert f"{Path(lean_python()).parents[1]}/".encode() in ended.err  # the agent's own traceback


def test_a_worker_sees_the_same(tmp_path: Path) -> None:
    reports = []
    for which in BOTH:
        spool = spool_of(tmp_path, which)
        ended = torchrun(spool, str(PROBES / "looks.py"), "report.json", nproc=1, python=interpreter(which))
        assert ended.returncode == 0, ended.err
        text = without_addresses((spool.cwd / "report.json").read_bytes()).decode()
        report = json.loads(text.replace(str(tmp_path / which), "/tmp"))
        for name in ("environ", "posix"):
            report[name] = {key: value for key, value in report[name].items() if key not in VARYING}
        reports.append(report)
    assert reports[1] == reports[0]


@pytest.mark.parametrize("end", ENDS)
def test_ends_and_what_is_said_of_them_are_the_same(tmp_path: Path, end: str) -> None:
    told = []
    for which in BOTH:
        spool = spool_of(tmp_path, which)
        (spool.cwd / "train.py").write_text(ENDS[end])
        ended = torchrun(spool, "train.py", nproc=2, restarts=1, python=interpreter(which))
        starts = sorted((event["rank"], event["restart_count"]) for event in spool.events("worker_started"))
        told.append((ended.returncode, starts, plain(ended.err)))
    assert told[1] == told[0]


VARYING_TEXT = re.compile(
    r"process \d+|PID \d+|pid: \d+|\d{4} \d\d:\d\d:\d\d\.\d+ \d+|\d{4}-\d\d-\d\d_[\d:]+"
    r"|whole/|lean/|torch/[-0-9a-f]{36}\w+"
)


# Beside the first failure torchrun lists those whom it ended itself, if it has seen their ends by then: chance.
OTHERS = re.compile(r"^Failures:\n.*?(?=^-+\nRoot Cause)", re.DOTALL | re.MULTILINE)


def plain(err: bytes) -> list[str]:
    """torchrun's own lines without pids, times and places; sorted, for of two workers either may be seen first."""
    text = OTHERS.sub("", err.decode()).replace(str(Path(lean_python()).parents[1]), sys.prefix)
    return sorted(VARYING_TEXT.sub("*", text).splitlines())


def test_two_nodes_meet_and_start_again_alike(hosts: list[Host], tmp_path: Path) -> None:
    told: list[Any] = []
    for which in BOTH:
        plan = plan_for(hosts[:2], tmp_path, DIES_ONCE, (1, 2), {}, max_restarts=1)
        plan = replace(plan, nodes=tuple(node._replace(python=interpreter(which)) for node in plan.nodes))
        with launched(hosts[:2], plan) as both:
            records = [started.ended() for started in both]
            events = [event_json(event) for started in both for event in started.spool.events()]
        for mark in (tmp_path / "work").glob("was here *"):
            mark.unlink()
        names = ("event", "rank", "local_rank", "round", "start", "restart_count", "exit_code", "signal")
        seen = sorted(json.dumps({name: event.get(name) for name in names}) for event in events)
        told.append(([(record["state"], record["survivors"]) for record in records], seen))
    assert told[1] == told[0]
