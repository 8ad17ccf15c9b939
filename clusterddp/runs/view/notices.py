"""Build the notices beside a run's verdict: missing output, why no other attempt follows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.remote.shared.run.event_schema import STALLED_EVENT, of_kind
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clusterddp.remote.shared.run.event_schema import NodeEvent
    from clusterddp.remote.shared.verdict.judge import VerdictRecord
    from clusterddp.remote.shared.verdict.node_report import NodeReport

_STATE_PHRASES = {
    RunState.LOST: "ended without a record",
    RunState.SUCCEEDED: "ended well",
    RunState.FAILED: "failed",
    RunState.STOPPED: "was stopped",
}
_NEXT_ATTEMPT = "attempt "  # how an exit record's ``final`` begins if another attempt followed


def following_notices(nodes: Sequence[NodeReport], *, live: bool) -> list[str]:
    """Return why no other attempt follows or, with ``live``, that no majority of hosts can decide on one."""
    peer_views = [node.peers for node in nodes if node.peers]
    if live and peer_views and not any(peers.leader for peers in peer_views):
        return ["no majority of its hosts reach each other: they wait for it, or for an operator"]
    finals = {node.exit.final for node in nodes if node.exit and node.exit.final}
    reasons = [] if live else [final for final in sorted(finals) if not final.startswith(_NEXT_ATTEMPT)]
    return [f"not started again: {reason}" for reason in reasons]


def late_notices(run: str, kept: VerdictRecord, nodes: Iterable[NodeReport], silent: Sequence[str]) -> list[str]:
    """Return what is known now beyond the saved verdict ``kept``; it changes neither state nor exit code.

    ``nodes`` are those whose hosts answer; ``silent``, the run's hosts that do not.
    """
    returned = [node for node in nodes if node.host in kept.missing]
    lines = []
    for node in returned:
        part = _STATE_PHRASES.get(node.state)
        unproved = f"is {node.state}, and nothing proves that its processes ended: `clusterddp stop {run}` ends them"
        lines.append(f"{node.host} answers again: its part {part or unproved}")
    unheard = [name for name in kept.missing if name in silent]
    if unheard and not kept.by_majority:
        lines.append(f"this verdict is {kept.writer}'s, which had not heard from {folded_names(unheard)}")
    return lines


def output_notices(nodes: Iterable[NodeReport]) -> Iterator[str]:
    """Return what is missing from the nodes' output because of a full disk or the log limit."""
    for node in nodes:
        yield from _output_notices_of_node(node)


def preload_notices(nodes: Iterable[NodeReport]) -> list[str]:
    """Return which packages of clusterddp_preload were skipped, and why; hosts with the same reason share a line."""
    hosts: dict[str, list[str]] = {}
    for node in nodes:
        for reason in dict.fromkeys(event.reason for event in of_kind(node.events, "not_preloaded")):
            hosts.setdefault(reason, []).append(node.host)
    return [f"{folded_names(names)}: clusterddp_preload leaves out {reason}" for reason, names in hosts.items()]


def replication_notices(nodes: Iterable[NodeReport]) -> Iterator[str]:
    """Return the outcome of replicating clusterddp_carry paths to nodes that were new to an attempt."""
    for node in nodes:
        for event in of_kind(node.events, "carried"):
            yield f"{node.host}: {event.reason}"


def stalls_found(nodes: Iterable[NodeReport], since_ns: int = 0) -> list[tuple[int, str]]:
    """Return each stall that the stall guard has found, oldest first, since a time by the operator's clock.

    A stall is (number of the workers' start, line): workers that were started again may hang with the same line.
    """
    found: dict[tuple[int, str], int] = {}
    for node in nodes:
        for event in of_kind(node.events, STALLED_EVENT):
            at = event.time - node.clock_offset_ns
            stall = event.start, event.reason
            found[stall] = min(at, found.get(stall, at))
    return [stall for stall, at in sorted(found.items(), key=lambda item: item[1]) if at >= since_ns]


def _output_notices_of_node(node: NodeReport) -> Iterator[str]:
    """Return what is missing from one node's output, and why."""
    events: dict[str, list[NodeEvent]] = {}
    for event in node.events:
        events.setdefault(event.kind, []).append(event)
    lost = sum(event.bytes for event in events.get("output_lost", ()))
    if lost:
        yield f"{node.host}: {counted(lost, 'byte')} of output were lost: disk full"
    elif "disk_full" in events:
        yield f"{node.host}: its disk was full, so output may be missing"
    for event in events.get("log_dropped", ())[-1:]:
        gone = counted(event.bytes, "byte")
        yield f"{node.host}: the oldest {gone} of output are gone: --log-limit {event.limit}"
    for event in events.get("log_limit_failed", ()):
        limit = f"--log-limit {event.limit}"
        yield f"{node.host}: {limit} cannot be kept on its file system ({event.error}); its output grows on"
