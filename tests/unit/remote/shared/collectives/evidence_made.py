"""Traces, stacks and findings of a run of four ranks on two hosts, for tests of what `why` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.collectives import stack_judge
from clusterddp.remote.shared.collectives.hang_judge import HUNG, MISSING, Finding
from clusterddp.remote.shared.collectives.stack_judge import Evidence
from clusterddp.remote.shared.collectives.trace_records import CREATED, DONE, GroupTrace, Operation, WorkerTrace
from clusterddp.remote.shared.processes.worker_stacks import StackFrame, WorkerStack

if TYPE_CHECKING:
    from collections.abc import Iterable

WORKDIR = "/home/alice/clusterddp/train-1"
TORCH = "/opt/train/lib/python3.11/site-packages/torch"
PYTHON = "/usr/lib/python3.11"
REDUCE = Operation(name="all_reduce", shape="float32 [4]", key="all_reduce float32 [4]")
BARRIER = Operation(name="barrier", shape="", key="barrier")
INIT = Operation(name="init_process_group", shape="", key="init_process_group")
BROADCAST = Operation(name="broadcast", shape="float32 [4]", key="broadcast float32 [4]")
FOUR: dict[str, Any] = {"group": "default", "sequence": 4, "operation": REDUCE, "since_us": 14 * 60 * 10**6}
FOURTH = "all_reduce #4 of group default (float32 [4])"
HOSTS = {0: "gpu00", 1: "gpu00", 2: "gpu01", 3: "gpu01"}


def trace(rank: int, **more: Any) -> WorkerTrace:
    known: dict[str, Any] = {"state": "S", "wchan": "0", "cpu_ms": 0, "io_bytes": 0, "children": ()}
    return WorkerTrace(rank=rank, local_rank=rank % 2, start=0, pid=100 + rank, **{**known, **more})


def in_operation(rank: int, operation: Operation = REDUCE, sequence: int = 4, group: str = "default_pg") -> WorkerTrace:
    rows = [[sequence - 1, 0, DONE, 10**9], [sequence, 0, CREATED, 10**6]]
    return trace(
        rank, groups=(GroupTrace(name="0", description=group, ident=0, operations=(operation,), entries=rows),)
    )


def stack(rank: int, *frames: tuple[str, int, str], source: str = "py-spy", why: str = "") -> WorkerStack:
    calls = [("<frozen runpy>", 88, "_run_code"), (f"{WORKDIR}/train.py", 20, "<module>"), *frames]
    return WorkerStack(
        rank=rank,
        host=HOSTS[rank],
        local_rank=rank % 2,
        pid=100 + rank,
        state="S",
        wchan="0",
        source=source,
        why=why,
        frames=tuple(StackFrame(file=file, line=line, function=name) for file, line, name in calls) if not why else (),
        threads=(),
    )


STEP = ((f"{WORKDIR}/train.py", 10, "step"), (f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce"))
VALIDATE = (f"{WORKDIR}/train.py", 7, "validate")
LOADER = (f"{TORCH}/utils/data/dataloader.py", 733, "__next__")
SLEEP = (f"{WORKDIR}/data/read.py", 3, "read")


def evidence(
    finding: Finding, stacks: Iterable[WorkerStack] = (), traces: Iterable[WorkerTrace] | None = None, **more: Any
) -> Evidence:
    looked = [trace(rank) for rank in HOSTS] if traces is None else list(traces)
    hosts = {one.rank: HOSTS[one.rank] for one in looked}
    found = {one.rank: one for one in stacks}
    known = Evidence(finding, {one.rank: one for one in looked}, hosts, found, **more)
    known = known._replace(workdirs=dict.fromkeys(HOSTS.values(), WORKDIR))
    return known._replace(finding=stack_judge.refine(known))


def missing(*ranks: int, **more: Any) -> Finding:
    waiting = tuple(rank for rank in HOSTS if rank not in ranks)
    return Finding(HUNG, MISSING, ranks, waiting, **{**FOUR, **more})


def others(*called: tuple[int, str]) -> dict[str, Any]:
    return {"ranks": tuple(rank for rank, _ in called), "others": called}
