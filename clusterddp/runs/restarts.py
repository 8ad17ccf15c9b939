"""The rounds of a run's last attempt: the hosts of each, and why it began, in words for the user. Pure.

A round is one start of the workers by torchrun, after a failure or because hosts left or joined; counted from 0. Where
torchrun does not number the rounds (c10d), each host's own count is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.remote.shared.run.event_schema import WORKER_STARTED, of_kind
from clusterddp.remote.shared.text.counted import counted
from clusterddp.runs.verdict_lines import recovered
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
    known: int  # workers that are known to have started
    ranks: int  # WORLD_SIZE
    nodes: int
    began_ns: int  # by the operator's clock

    @property
    def complete(self) -> bool:
        """Whether all workers of the round are known."""
        return self.known >= self.ranks


def rounds_of(nodes: Sequence[NodeReport]) -> dict[int, Round]:
    """Return every round by its number, from the nodes of one attempt."""
    starts: dict[int, list[tuple[str, NodeEvent, int]]] = {}
    for node in nodes:
        for event in _starts(node):
            began_ns = event.time - node.clock_offset_ns
            starts.setdefault(_number(event), []).append((node.host, event, began_ns))
    return {number: _round(number, starts_of_it) for number, starts_of_it in sorted(starts.items())}


def _round(number: int, starts: Sequence[tuple[str, NodeEvent, int]]) -> Round:
    """Sum up one round from its workers' starts: the host, the event, and its time by the operator's clock (ns)."""
    starts = sorted(starts, key=lambda one: one[1].rank)
    hosts = tuple(dict.fromkeys(host for host, _, _ in starts))
    ranks = {event.rank for _, event, _ in starts}
    return Round(
        number=number,
        hosts=hosts,
        known=len(ranks),
        ranks=max(len(ranks), *(event.world_size or 0 for _, event, _ in starts)),
        nodes=max(len(hosts), *(event.group_world_size or 0 for _, event, _ in starts)),
        began_ns=min(began_ns for _, _, began_ns in starts),
    )


def why_it_began(nodes: Sequence[NodeReport], number: int) -> list[str]:
    """Return one or two lines on why a later round began: after which failure, and on which hosts if they changed."""
    found, record = rounds_of(nodes), nodes[0].record
    this, before = found[number], found.get(number - 1)
    failures = _failures(nodes)
    lines = []
    if number - 1 in failures:
        count, most = sum(ended < number for ended in failures), record.max_restarts
        of = f" of {most}" if count <= most else ""
        lines.append(f"restart {count}{of}: {_cause(failures[number - 1])}")
    hosts_before = set(before.hosts) if before else set()
    if before is None or len(before.hosts) < before.nodes:  # hosts that do not answer now took part as planned
        hosts_before |= set(record.hosts)
    unknown = this.nodes - len(this.hosts)
    left = [] if unknown else sorted(hosts_before - set(this.hosts))
    joined = [host for host in this.hosts if host not in hosts_before]
    if left or joined or not lines:
        changes = [f"{folded_names(hosts)} {verb}" for hosts, verb in ((left, "left"), (joined, "joined")) if hosts]
        where = folded_names(this.hosts) + (f" and {unknown} more" if unknown else "")
        ranks = counted(this.ranks, "rank")
        lines.append(f"round {number}: {ranks} on {where}" + (f" ({'; '.join(changes)})" if changes else ""))
    return lines


def _failures(nodes: Sequence[NodeReport]) -> dict[int, Failure]:
    """Return, for each round that was followed by another, the failure that ended it."""
    numbers = {(node.host, e.start): _number(e) for node in nodes for e in _starts(node)}
    found: dict[int, Failure] = {}
    for failure in sorted(recovered(nodes), key=lambda failure: (failure.kind, failure.time_ns)):
        found.setdefault(numbers[failure.host, failure.worker.start], failure)
    return found


def _cause(failure: Failure) -> str:
    worker = failure.worker
    verb = "was" if worker.text.startswith("killed by ") else "failed with"
    return f"rank {worker.rank} {verb} {worker.text}"


def _starts(node: NodeReport) -> list[NodeEvent]:
    return of_kind(node.events, WORKER_STARTED)


def _number(event: NodeEvent) -> int:
    return event.start if event.round is None else event.round
