"""Workers of a torchrun by hand, found by their environments among real processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

from clusterddp.remote.probes.stray_ranks import stray_ranks
from tests.unit.operation import run_operation

if TYPE_CHECKING:
    from collections.abc import Iterator

RANK = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
PARENT = """
import subprocess, sys
with subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]):
    pass
"""


@contextlib.contextmanager
def process(**env: str) -> Iterator[int]:
    """A process of this environment, with a child: what a DataLoader starts is no rank of its own."""
    argv = [sys.executable, "-I", "-c", PARENT]
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == b"up\n"
        yield parent.pid
        parent.communicate()


def found() -> dict[int, dict[str, int]]:
    """What is told, by pid: other tests on this machine may have workers too."""
    return {one["pid"]: one for one in run_operation(stray_ranks, {})["ranks"]}


def test_a_worker_is_told_once_with_its_rank() -> None:
    with process(**RANK) as pid:
        told = found()
        assert told[pid] == {"pid": pid, "rank": 3, "world_size": 8}
        children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True).stdout.split()
        assert children
        assert not set(map(int, children)) & set(told)


def test_workers_of_our_runs_and_what_is_no_worker_are_not_told() -> None:
    ours = process(**RANK, CLUSTERDDP_RUN_ID="abc")
    others = [process(), process(RANK="3", WORLD_SIZE="8"), process(**{**RANK, "RANK": "x"})]
    with contextlib.ExitStack() as stack:
        pids = {stack.enter_context(one) for one in (ours, *others)}
        assert not pids & set(found())
