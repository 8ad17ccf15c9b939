"""The rounds of a run's last attempt: the hosts of each, and why it began, in words for the user. Pure.

A round is one start of the workers by torchrun, after a failure or because hosts left or joined; counted from 0. Where
torchrun does not number the rounds (c10d), each host's own count is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.remote.shared.run.event_schema import WORKER_STARTED, of_kind
from clusterddp.remote.shared.text.counted import counted
from clusterddp.runs.view.verdict_lines import all_recovered
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.remote.shared.run.event_schema import NodeEvent
    from clusterddp.remote.shared.verdict.judge import Failure
    from clusterddp.remote.shared.verdict.node_report import NodeReport


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One start of the workers on all hosts, as far as the hosts have reported it."""

    number: int
    hosts: tuple[str, ...]  # in order of their ranks
    started: int  # workers that are known to have started
    ranks: int  # WORLD_SIZE
    nodes: int
    began_ns: int  # by the operator's clock

    @property
    def complete(self) -> bool:
        """Whether all workers of the round are known to have started."""
        return self.started >= self.ranks


def rounds_of(nodes: Sequence[NodeReport]) -> dict[int, Round]:
    """Return every round by its number, from the nodes of one attempt."""
    starts: dict[int, list[tuple[str, NodeEvent, int]]] = {}
    for node in nodes:
        for event in _worker_starts(node):
            began_ns = event.time - node.clock_offset_ns
            starts.setdefault(_round_number(event), []).append((node.host, event, began_ns))
    return {number: _build_round(number, starts_of_it) for number, starts_of_it in sorted(starts.items())}


def _build_round(number: int, starts: Sequence[tuple[str, NodeEvent, int]]) -> Round:
    """Sum up one round from its workers' starts: the host, the event, and its time by the operator's clock (ns)."""
    starts = sorted(starts, key=lambda start: start[1].rank)
    hosts = tuple(dict.fromkeys(host for host, _, _ in starts))
    ranks = {event.rank for _, event, _ in starts}
    return Round(
        number=number,
        hosts=hosts,
        started=len(ranks),
        ranks=max(len(ranks), *(event.world_size or 0 for _, event, _ in starts)),
        nodes=max(len(hosts), *(event.group_world_size or 0 for _, event, _ in starts)),
        began_ns=min(began_ns for _, _, began_ns in starts),
    )


def explain_round(nodes: Sequence[NodeReport], number: int) -> list[str]:
    """Return one or two lines on why a later round began: after which failure, and on which hosts if they changed."""
    rounds, record = rounds_of(nodes), nodes[0].record
    current, previous = rounds[number], rounds.get(number - 1)
    failures = _failures(nodes)
    lines = []
    if number - 1 in failures:
        count, max_restarts = sum(ended < number for ended in failures), record.max_restarts
        of = f" of {max_restarts}" if count <= max_restarts else ""
        lines.append(f"restart {count}{of}: {_failure_text(failures[number - 1])}")
    hosts_before = set(previous.hosts) if previous else set()
    if previous is None or len(previous.hosts) < previous.nodes:  # hosts that do not answer now took part as planned
        hosts_before |= set(record.hosts[: record.nnodes])
    unreported = current.nodes - len(current.hosts)
    left = [] if unreported else sorted(hosts_before - set(current.hosts))
    joined = [host for host in current.hosts if host not in hosts_before]
    if left or joined or not lines:
        changes = [f"{folded_names(hosts)} {verb}" for hosts, verb in ((left, "left"), (joined, "joined")) if hosts]
        where = folded_names(current.hosts) + (f" and {unreported} more" if unreported else "")
        ranks = counted(current.ranks, "rank")
        lines.append(f"round {number}: {ranks} on {where}" + (f" ({'; '.join(changes)})" if changes else ""))
    return lines


def _failures(nodes: Sequence[NodeReport]) -> dict[int, Failure]:
    """Return, for each round that was followed by another, the failure that ended it."""
    numbers = {(node.host, e.start): _round_number(e) for node in nodes for e in _worker_starts(node)}
    first: dict[int, Failure] = {}
    for failure in sorted(all_recovered(nodes), key=lambda failure: (failure.kind, failure.time_ns)):
        start = failure.worker.start  # whose event a full disk may have cut
        first.setdefault(numbers.get((failure.host, start), start), failure)
    return first


def _failure_text(failure: Failure) -> str:
    """Return how a worker ended: ``rank 3 failed with exit code 1``."""
    worker = failure.worker
    verb = "was" if worker.text.startswith("killed by ") else "failed with"
    return f"rank {worker.rank} {verb} {worker.text}"


def _worker_starts(node: NodeReport) -> list[NodeEvent]:
    return of_kind(node.events, WORKER_STARTED)


def _round_number(event: NodeEvent) -> int:
    """Return the number of the round that a worker's start belongs to: torchrun's, or else the host's own count."""
    return event.start if event.round is None else event.round
