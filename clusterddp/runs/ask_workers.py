"""Ask the hosts of a live run about its workers there, many hosts at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterddp.errors import UnreachableError
from clusterddp.hosts.ask import reading_answer
from clusterddp.hosts.fanout import Outcome, each
from clusterddp.remote.shared.processes.process_records import StacksRequest
from clusterddp.remote.shared.processes.worker_stacks import parse_stacks
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.verdict.node_report import NodeReport
from clusterddp.runs.run_on_hosts import BRIEF, gather

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import T
    from clusterddp.remote.shared.processes.worker_stacks import WorkerStack
    from clusterddp.runs.run_on_hosts import RunOnHosts

STACKS_TIMEOUT = 15.0  # seconds for a host's stacks: it waits 3 s for py-spy and as long for the workers


class RunPart(NamedTuple):
    """A run's part on one host."""

    name: str
    spool: str


def find_spool(run: RunOnHosts, host: str) -> str:
    """Return the folder of the run's attempt on a host, which is asked where it is not known; empty if it has none.

    Raises:
        UnreachableError: The host does not answer.
        HostError, HostsError: The same, of a run of which the project knows nothing.
    """
    if spool := run.spools.get(host):
        return spool
    reports, silent = gather(run.cluster, run.id, {host}, BRIEF)
    nodes = [report for report in reports if isinstance(report, NodeReport) and report.host == host]
    if silent and not nodes:
        raise UnreachableError(host, "no answer")
    return next((node.spool for node in nodes if node.attempt == run.attempt), "")


def each_spool(run: RunOnHosts, work: Callable[[Host, str], T], *, unheard: bool = False) -> list[Outcome[T]]:
    """Call ``work`` for every host of the run's attempt, connected where its workers are, and its spool there.

    ``unheard``: also for hosts that did not answer when a live run was looked up; one that still does not is an error.
    """

    def at(part: RunPart) -> list[T]:
        spool = find_spool(run, part.name)
        if not spool:  # it answers, and has not begun its part
            return []
        host = run.cluster.launcher_of(run.record).host(run.cluster, run.id, part.name)
        return [work(host, spool)]

    every = unheard and run.live
    outcomes = each([RunPart(name, spool) for name, spool in run.spools.items() if spool or every], at)
    return [
        Outcome(name=outcome.name, value=outcome.value[0] if outcome.value else None, error=outcome.error)
        for outcome in outcomes
        if outcome.error or outcome.value
    ]


def take_stacks(run: RunOnHosts, ranks: Collection[int] | None = None) -> list[WorkerStack]:
    """Return the stacks of the workers with these ranks, or of all, by rank; the error of a host is shown."""
    outcomes = ask_stacks(run, ranks)
    for outcome in outcomes:
        if outcome.error:
            run.cluster.notify(f"no stacks: {outcome.error}")
    return sorted((stack for outcome in outcomes for stack in outcome.value or ()), key=lambda stack: stack.rank)


def ask_stacks(
    run: RunOnHosts, ranks: Collection[int] | None = None, timeout: float = STACKS_TIMEOUT
) -> list[Outcome[list[WorkerStack]]]:
    """Return each host's stacks of its workers with these ranks, or of all, or its error."""
    wanted = None if ranks is None else tuple(sorted(ranks))

    def ask(host: Host, spool: str) -> list[WorkerStack]:
        answer = host.call("stacks", to_fields(StacksRequest(spool=spool, ranks=wanted)), timeout=timeout)
        with reading_answer(host.name):
            return parse_stacks(host.name, answer)

    return each_spool(run, ask)
