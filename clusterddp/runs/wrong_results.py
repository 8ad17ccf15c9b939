"""Find that the ranks of a run that ended well did not agree in a collective operation, whose result was wrong.

Gloo ends an operation although ranks call it with other types, or with shapes that it does not compare. Each worker
writes down its last operations when it ends; here those of all ranks are compared. A run's end waits for it: all hosts
are asked at once, and one that is gone is not waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterddp.hosts.ask import ask_list
from clusterddp.remote.shared.collectives import hang_judge, hang_sentence, stack_judge
from clusterddp.remote.shared.collectives.trace_records import MAX_WORLD, TracesRequest, WorkerTrace
from clusterddp.runs.ask_workers import RunPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.remote.shared.collectives.hang_judge import Finding
    from clusterddp.runs.run_on_hosts import RunOnHosts

TIMEOUT = 10.0  # seconds for a host's answer
PATIENCE = 2.0  # seconds without a sign of life after which a host is given up


class WrongResult(NamedTuple):
    """An operation that ended although its ranks did not agree in it."""

    finding: Finding
    hosts: tuple[str, ...]  # of the ranks to blame
    sentence: str
    remedy: str | None


def find_wrong_result(run: RunOnHosts, silent: Sequence[str] = ()) -> WrongResult | None:
    """Return what is known of a run that ended well; None if all ranks agreed, or no host can tell.

    A run of one rank is not looked at: nobody can have disagreed. ``silent``: hosts that did not answer just now; they
    are not asked.
    """
    parts = [RunPart(name, spool) for name, spool in run.spools.items() if spool and name not in silent]
    size = run.record.world_size or 0
    if len(parts) == size == 1:
        return None

    def ask(part: RunPart) -> Sequence[WorkerTrace]:
        request = TracesRequest(spool=part.spool)
        return ask_list(run.reader(part.name), "ended_traces", request, WorkerTrace, timeout=TIMEOUT)

    outcomes = run.cluster.connections.inquiry.each(parts, ask, PATIENCE)
    hosts = {trace.rank: outcome.name for outcome in outcomes for trace in outcome.value or ()}
    traces = [trace for outcome in outcomes for trace in outcome.value or ()]
    finding = hang_judge.wrong_result(range(size) if size <= MAX_WORLD else (), traces)
    if finding is None:
        return None
    found = stack_judge.Evidence(
        finding=finding._replace(mismatch=finding),
        traces={trace.rank: trace for trace in traces},
        hosts=hosts,
        stacks={},
    )
    return WrongResult(
        finding=finding,
        hosts=tuple(dict.fromkeys(hosts[rank] for rank in finding.ranks)),
        sentence=f"run {run.id} ended well, {hang_sentence.wrong_result(found)}",
        remedy=hang_sentence.remedy(found.finding),
    )
