"""The benchmark over all hosts: one run of remote/builtin/bench.py, started in the same way as a user's run.

If its all-reduces fail or are far too slow, smaller groups find the host at fault: neighbours first, then each host of
a bad group with one of a good group. A host all of whose groups are bad is named.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.checks.catalog.collectives import slow_all_reduce
from clusterddp.doctor.rehearsal import RehearsalPart, run_program
from clusterddp.errors import ClusterddpError, HostError
from clusterddp.facts.bench import Together
from clusterddp.facts.bench_results import Measured
from clusterddp.facts.bench_schedule import faulty_hosts, first_groups, second_groups, turns_of
from clusterddp.facts.gpu_assignment import assign_gpus, worker_count
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.text.counted import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterddp.checks.model import Check
    from clusterddp.doctor.rehearsal import ProgramResult
    from clusterddp.facts.bench import Bench
    from clusterddp.runs.run_on_hosts import Site

_log = logging.getLogger("clusterddp")
PROGRAM = "bench.py"
# As remote/builtin/bench.py has it.
MEASUREMENT_OF_CHECK = {"gemm": "gemm", "allreduce": "allreduce", "stragglers": "late"}
START_TIMEOUT = 60.0  # seconds until every host must have reported something
RUN_TIMEOUT = 150.0  # seconds from then on
STEP_TIMEOUT = 30.0  # seconds that a step may take
MAX_BYTES = {"nccl": 1 << 30, "gloo": 1 << 26}  # bytes of the largest all-reduce
GROUP_TIMEOUT, GROUP_STEP_TIMEOUT, GROUP_MAX_BYTES = 40.0, 10.0, 1 << 24  # the same three for the smaller groups
SLOW_SHARE = 0.3  # a group below this share of the best group's bus bandwidth is bad
_Group = tuple[str, ...]


def measurements_for(checks: Iterable[Check]) -> tuple[str, ...]:
    """The measurements that these checks need, and the matrix product, which is quick: its table shows all ranks."""
    chosen = {check.name for check in checks} | {"gemm"}
    return tuple(measurement for name, measurement in MEASUREMENT_OF_CHECK.items() if name in chosen)


def measure_together(
    cluster: Site,
    parts: Sequence[RehearsalPart],
    measured: Sequence[str],
    bench: Bench,
    progress: Callable[[str], None],
) -> Bench:
    """Run the benchmark over these hosts and add its result to ``bench``; if it is bad, find the hosts at fault."""
    progress(f"measuring on {counted(len(parts), 'host')}")
    try:
        backend, ready = _assign_workers(parts)
        together = _run_benchmark(cluster, ready, backend, measured)
    except ClusterddpError as error:
        failed = Together(
            hosts=tuple(part.host.name for part in parts),
            backend="",
            measured=Measured(),
            error=error.message,
            blamed=(error.host,) if isinstance(error, HostError) else (),
            remedy=error.remedy,
            reduced="allreduce" in measured,
        )
        return replace(bench, together=failed)
    bench = replace(bench, together=together)
    if not together.error and not slow_all_reduce(bench):
        return bench
    return replace(bench, together=replace(together, at_fault=_hosts_at_fault(cluster, ready, backend, progress)))


def _assign_workers(parts: Sequence[RehearsalPart]) -> tuple[str, list[RehearsalPart]]:
    """Choose the backend and each host's workers: NCCL with one per GPU, or gloo if a host has no usable GPU."""
    devices = assign_gpus([(part.host.entry, part.facts) for part in parts])
    ready = []
    for part in parts:
        own = devices[part.host.name]
        ready.append(replace(part, nproc=worker_count(part.host.entry, part.facts, own), devices=own))
    nccl = all(part.facts.devices and part.facts.torch and part.facts.torch.nccl_available for part in ready)
    return "nccl" if nccl else "gloo", ready


def _run_benchmark(cluster: Site, ready: Sequence[RehearsalPart], backend: str, measured: Sequence[str]) -> Together:
    options = {"backend": backend, "timeout": STEP_TIMEOUT, "parts": measured, "most": MAX_BYTES[backend]}
    result = run_program(cluster, ready, PROGRAM, options, limit=RUN_TIMEOUT, start=START_TIMEOUT)
    names = tuple(part.host.name for part in ready)
    error, blamed, remedy = _failure_of(result)
    return Together(
        hosts=names,
        backend=backend,
        measured=_measurements(result),
        error=error,
        blamed=blamed,
        remedy=remedy,
        reduced="allreduce" in measured,
    )


def _measurements(result: ProgramResult) -> Measured:
    return Measured.from_lines((item.host, item.rank, item.value) for item in result.lines)


def _failure_of(result: ProgramResult) -> tuple[str, _Group, str]:
    """Why a run did not complete, which hosts failed first, and the remedy; all empty if it completed."""
    verdict = result.verdict
    if verdict and verdict.state == RunState.SUCCEEDED:
        return "", (), ""
    lost = None if result.late else result.lost
    if lost:
        return lost.message, (lost.host,) if isinstance(lost, HostError) else (), lost.remedy
    if verdict is None or (result.late and verdict.state == RunState.STOPPED):
        return f"it did not end within {result.seconds:.0f} s", (), ""
    return verdict.line, verdict.culprits, verdict.remedy


def _hosts_at_fault(
    cluster: Site, ready: Sequence[RehearsalPart], backend: str, progress: Callable[[str], None]
) -> _Group:
    """Find hosts at fault with smaller groups: those all of whose groups are bad while others are good."""
    by_name = {part.host.name: part for part in ready}
    first = first_groups(list(by_name))
    if not first:
        return ()
    speeds: dict[_Group, float] = {}
    progress(f"telling apart: {counted(len(first), 'group')}")
    _measure_groups(cluster, by_name, backend, first, speeds)
    second = [group for group in second_groups(first, _bad_groups(speeds)) if group not in speeds]
    progress(f"telling apart: {counted(len(second), 'more group')}")
    _measure_groups(cluster, by_name, backend, second, speeds)
    return tuple(faulty_hosts(list(speeds), _bad_groups(speeds)))


def _bad_groups(speeds: Mapping[_Group, float]) -> set[_Group]:
    best = max(speeds.values(), default=0.0)
    return {group for group, speed in speeds.items() if speed <= SLOW_SHARE * best}


def _measure_groups(
    cluster: Site,
    by_name: Mapping[str, RehearsalPart],
    backend: str,
    groups: Sequence[_Group],
    speeds: dict[_Group, float],
) -> None:
    """Measure the bus bandwidth of each group, 0 if it fails; groups without a common host run at the same time."""
    options = {"backend": backend, "timeout": GROUP_STEP_TIMEOUT, "parts": ["allreduce"], "most": GROUP_MAX_BYTES}

    def reduce(group: _Group) -> float:
        try:
            result = run_program(cluster, [by_name[name] for name in group], PROGRAM, options, limit=GROUP_TIMEOUT)
        except ClusterddpError as error:
            _log.debug("%s: %s", ", ".join(group), error)
            return 0.0  # whatever failed, the group counts as bad
        why, _, _ = _failure_of(result)
        return 0.0 if why else max((reduce.busbw for reduce in _measurements(result).reduces), default=0.0)

    for batch in turns_of(groups):
        pool = ThreadPoolExecutor(len(batch))
        try:
            speeds.update(zip(batch, pool.map(reduce, batch), strict=True))
        finally:  # after Ctrl-C do not wait for hosts that may never answer
            pool.shutdown(wait=False, cancel_futures=True)
