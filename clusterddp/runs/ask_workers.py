"""Ask the hosts of a live run about its workers there, many hosts at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterddp.hosts.ask import reading_answer
from clusterddp.hosts.fanout import each
from clusterddp.remote.shared.processes.process_records import StacksRequest
from clusterddp.remote.shared.processes.worker_stacks import parse_stacks
from clusterddp.remote.shared.schema.record import to_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome, T
    from clusterddp.remote.shared.processes.worker_stacks import WorkerStack
    from clusterddp.runs.run_on_hosts import RunOnHosts

STACKS_TIMEOUT = 15.0  # seconds for a host's stacks: it waits 3 s for py-spy and as long for the workers


class RunPart(NamedTuple):
    """A run's part on one host."""

    name: str
    spool: str


def each_spool(run: RunOnHosts, work: Callable[[Host, str], T]) -> list[Outcome[T]]:
    """Call ``work`` for every host of the run's attempt, connected where its workers are, and its spool there."""

    def at(part: RunPart) -> T:
        host = run.cluster.launcher_of(run.record).host(run.cluster, run.id, part.name)
        return work(host, part.spool)

    return each([RunPart(name, spool) for name, spool in run.spools.items() if spool], at)


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
