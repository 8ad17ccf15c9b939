"""Which worker failed first, and how a run ended, from the nodes' records. Pure.

Class first, time within a class: (1) a failure of its own, (2) a lost peer, (3) ended by us or by the agent.
A killed rank's victims raise before anybody sees the death, so time alone would blame them.

Not here: gathering (runs/run.py asks every host's ``runs`` operation with ``detail``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clusterddp.errors import EXIT_NOT_THE_SCRIPT, EXIT_STOPPED, EXIT_TIME_LIMIT
from clusterddp.remote.shared.failures import (
    ENDED,
    FAIL_FAST_REASON,
    LEASE,
    LOST_PEER,
    OWN,
    TIME_LIMIT,
    WORKER_FAILED,
    FailedWorker,
    agent_said,
    last_error_line,
    recovered_failures,
    signal_name,
    worker_failures,
)
from clusterddp.runs import known_messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CONSEQUENCES = {FAIL_FAST_REASON}  # reasons to stop a node that are no cause: what failed first is looked for elsewhere
# Why a node ended its part when it missed another (remote/supervisor/stop_conditions.py); who was lost, and how, is
# told by evidence.
_MISSED = re.compile(r" (was|were) lost$| lost contact with ")
_WATCHDOG = re.compile(r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+)")
_CLASSES = {OWN: "own", LOST_PEER: "lost peer", ENDED: "ended"}
_REBOOTED, _DEAD, _SILENT = "rebooted", "supervisor gone", "no answer"
_WHY_LOST = {  # of one host, of several
    _REBOOTED: ("it was rebooted", "they were rebooted"),
    _DEAD: ("its supervisor is gone", "their supervisors are gone"),
    _SILENT: ("no answer", "no answer"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A ``FailedWorker`` with its host, attempt, and time by the operator's clock."""

    kind: int
    cause: str
    curable: bool
    time_ns: int
    error_ns: int
    rank: int
    host: str
    local_rank: int
    exit_code: int
    signal: int | None
    start: int
    text: str
    place: str
    attempt: int
    said: str = field(repr=False)
    recovered: bool = False

    def to_json(self) -> dict[str, Any]:
        """One object of the status's ``failures``."""
        return {
            "class": _CLASSES[self.kind],
            "cause": self.cause,
            "recovered": self.recovered,
            "rank": self.rank,
            "host": self.host,
            "local_rank": self.local_rank,
            "attempt": self.attempt,
            "round": self.start,
            "time": round(self.time_ns / 1e9, 6),
            "time_error_ms": round(self.error_ns / 1e6, 3),
            "exit_code": self.exit_code,
            "signal": None if self.signal is None else signal_name(self.signal),
            "message": self.text,
            "place": self.place or None,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How a run ended: state, exit code by the contract, one line; ``notices`` stand before it, then what helps."""

    state: str
    exit_code: int
    line: str
    failures: tuple[Failure, ...] = ()
    notices: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def culprits(self) -> tuple[str, ...]:
        """The host whose own failure came first; nobody where a peer was missed: whose doing that was is not known."""
        return tuple(failure.host for failure in self.failures[:1] if failure.kind == OWN)

    @property
    def preface(self) -> tuple[str, ...]:
        """The lines that stand before ``line``."""
        return (*self.notices, *([f"remedy: {self.remedy}"] if self.remedy else []))


def judge(nodes: Sequence[Mapping[str, Any]], unreachable: Iterable[str] = ()) -> Verdict:
    """The verdict over all nodes of one attempt.

    Args:
        nodes: Each host's node as its ``runs`` operation describes it, with detail.
        unreachable: Hosts of the plan that did not answer.
    """
    silent = sorted(unreachable)
    lost = _lost(nodes, silent)
    missed = _continued_without(nodes, silent)
    if missed:
        return Verdict(state="succeeded", exit_code=0, line="succeeded", notices=(lost or missed,))
    stopped = [node["exit"] for node in nodes if node["exit"] and node["exit"]["state"] == "stopped"]
    ordered = [record for record in stopped if record["reason"] not in CONSEQUENCES]
    ordered = [record for record in ordered if not (lost and record.get("ours") and _MISSED.search(record["reason"]))]
    ended_at = _ended_at(nodes)
    failures = sorted((f for node in nodes for f in _failures(node, ended_at)), key=lambda f: (f.kind, f.time_ns))
    own = [failure for failure in failures if failure.kind != ENDED]
    if ordered and not own and not (lost and all(record.get("ours") for record in ordered)):
        return _stopped(ordered)
    if own and not (own[0].kind == LOST_PEER and lost):
        return _blamed(own, failures, nodes)
    if lost:
        return Verdict(state="failed", exit_code=EXIT_NOT_THE_SCRIPT, line=lost, failures=tuple(failures))
    if all(node["exit"] and node["exit"]["state"] == "succeeded" for node in nodes):
        return Verdict(state="succeeded", exit_code=0, line="succeeded")
    return _without_worker(nodes, failures, stopped)


def _continued_without(nodes: Sequence[Mapping[str, Any]], silent: Sequence[str]) -> str:
    """Which hosts an elastic run did without until its good end; empty if it had no such end, or all had it."""
    good = [node for node in nodes if node["exit"] and node["exit"]["state"] == "succeeded"]
    took_part = [node for node in good if node["exit"].get("agent_exit") is not None]  # a spare did not
    least = nodes[0]["record"].get("min_nodes")
    missed = [*(node["host"] for node in nodes if node not in good), *silent]
    if not missed or least is None or len(took_part) < least:
        return ""
    return f"the run ended without {', '.join(missed)}"


def _ended_at(nodes: Sequence[Mapping[str, Any]]) -> int | None:
    """When the first node was ordered to stop, by the operator's clock: from then on peers vanish by our doing."""
    times = [
        event["time"] - node["clock_offset_ns"]
        for node in nodes
        for event in node.get("events", ())
        if event["event"] == "stopping" and event.get("reason") not in CONSEQUENCES
    ]
    return min(times, default=None)


def _lost(nodes: Sequence[Mapping[str, Any]], unreachable: Iterable[str]) -> str:
    """Which hosts were lost and why; empty if none was."""
    hosts: dict[str, list[str]] = {_REBOOTED: [], _DEAD: [], _SILENT: sorted(unreachable)}
    for node in nodes:
        if node["state"] == "lost":
            hosts[_REBOOTED if node.get("rebooted") else _DEAD].append(node["host"])
    parts = [(sorted(names), _WHY_LOST[why]) for why, names in hosts.items() if names]
    return "; ".join(
        f"{', '.join(names)} {'were' if names[1:] else 'was'} lost: {why[len(names) > 1]}" for names, why in parts
    )


def _stopped(records: Sequence[Mapping[str, Any]]) -> Verdict:
    limited = [record for record in records if record["reason"] == TIME_LIMIT]
    if limited:
        return Verdict(state="failed", exit_code=EXIT_TIME_LIMIT, line=TIME_LIMIT)
    ours = [record for record in records if record.get("ours")]
    if ours:
        return Verdict(state="failed", exit_code=EXIT_NOT_THE_SCRIPT, line=str(ours[0]["reason"]))
    leased = [str(record["reason"]) for record in records if str(record["reason"]).startswith(LEASE)]
    line = leased[0].removeprefix("the ") if leased else f"stopped: {records[0]['reason']}"
    return Verdict(state="stopped", exit_code=EXIT_STOPPED, line=line)


def _without_worker(
    nodes: Sequence[Mapping[str, Any]], failures: Sequence[Failure], stopped: Sequence[Mapping[str, Any]]
) -> Verdict:
    """No worker failed by itself, but an agent did: rendezvous, a missing module, a bad option, a kill."""
    failed = [node for node in nodes if node["exit"] and node["exit"]["state"] == "failed"]
    if not failed:
        if stopped:
            return _stopped(stopped)
        return Verdict(state="lost", exit_code=EXIT_NOT_THE_SCRIPT, line="the run ended without a record")
    node = min(failed, key=lambda node: int(node["exit"]["ended"]) - node["clock_offset_ns"])
    agent_log = agent_said(node)
    number = int(node["exit"].get("agent_exit") or 0) - 128
    if number > 0:
        line = f"torchrun on {node['host']} was killed by {signal_name(number)}"
    elif failures and (not agent_log or WORKER_FAILED in agent_log):  # somebody else ended a worker
        return _blamed(failures, failures, nodes)
    else:
        when = "" if failures else " before any worker did"
        line = f"torchrun failed on {node['host']}{when}: {last_error_line(agent_log) or node['exit']['reason']}"
    remedy = _remedy(line, agent_log)
    return Verdict(state="failed", exit_code=EXIT_NOT_THE_SCRIPT, line=line, failures=tuple(failures), remedy=remedy)


def _blamed(own: Sequence[Failure], failures: Sequence[Failure], nodes: Sequence[Mapping[str, Any]]) -> Verdict:
    first = own[0]
    return Verdict(
        state="failed",
        exit_code=first.exit_code,
        line=_line(own, failures, nodes),
        failures=tuple(failures),
        remedy=_remedy(first.text, first.said),
    )


def _remedy(*texts: str) -> str:
    row = known_messages.find(*texts)
    return str(row) if row else ""


def recovered(nodes: Sequence[Mapping[str, Any]], earlier: Sequence[Mapping[str, Any]] = ()) -> list[Failure]:
    """The failures that were made good, by torchrun's restarts or by a new attempt, by time; nobody is blamed for them.

    Args:
        nodes: The nodes of the last attempt.
        earlier: Those of the attempts before.
    """
    found = [(one, node) for node in (*earlier, *nodes) for one in recovered_failures(node)]
    found += [(one, node) for node in earlier for one in worker_failures(node) if one.kind != ENDED]
    failures = [replace(_by_operators_clock(one, node), recovered=True) for one, node in found]
    return sorted(failures, key=lambda failure: failure.time_ns)


def _failures(node: Mapping[str, Any], ended_at: int | None) -> Iterable[Failure]:
    """The failed workers of the node's last start."""
    for one in worker_failures(node):
        failure = _by_operators_clock(one, node)
        yield replace(failure, kind=ENDED) if _after(failure, ended_at) else failure


def _by_operators_clock(one: FailedWorker, node: Mapping[str, Any]) -> Failure:
    values = dict(one._asdict(), time_ns=one.time_ns - node["clock_offset_ns"])
    error_ns = int(node.get("clock_error_ns") or 0)
    return Failure(host=node["host"], attempt=int(node["attempt"]), error_ns=error_ns, **values)


def _after(failure: Failure, ended_at: int | None) -> bool:
    """Whether the run was being ended already; a lost peer within the clocks' error counts so too."""
    if ended_at is None:
        return False
    return failure.time_ns + (failure.error_ns if failure.kind == LOST_PEER else 0) >= ended_at


def _clock_error(one: Failure, other: Failure) -> int:
    """By how much the clocks of two failures may differ (ns); on one host they are one clock."""
    return 0 if one.host == other.host else one.error_ns + other.error_ns


def _line(own: Sequence[Failure], failures: Sequence[Failure], nodes: Sequence[Mapping[str, Any]]) -> str:
    first, *others = own
    rivals = [f for f in others if f.kind == first.kind and f.time_ns - first.time_ns <= _clock_error(first, f)]
    perhaps = f" (or rank {rivals[0].rank})" if rivals else ""
    more = len(failures) - 1
    rest = f"; {more} other{'s' if more > 1 else ''} stopped" if more else ""
    left = _left_before(first, nodes) or _not_in_it(failures) if first.kind == LOST_PEER else ""
    return f"rank {first.rank} ({first.host}:{first.local_rank}) failed first{perhaps}: {first.text}{left}{rest}"


def _left_before(victim: Failure, nodes: Sequence[Mapping[str, Any]]) -> str:
    """Who ended well before a peer missed it: a script that returns early on one rank."""
    ends = [
        (event["time"] - node["clock_offset_ns"], event, node["host"])
        for node in nodes
        for event in node.get("events", ())
        if event["event"] == "worker_exited" and not event["exit_code"] and event["start"] == victim.start
    ]
    earlier = [(event, host) for time, event, host in ends if time <= victim.time_ns + victim.error_ns]
    if not earlier:
        return ""
    event, host = earlier[-1]
    return f"; rank {event['rank']} ({host}:{event['local_rank']}) had ended with exit code 0 before"


def _not_in_it(failures: Sequence[Failure]) -> str:
    """Of a collective that timed out: the ranks that were not in it, or in an earlier one. They kept the others."""
    waiting = {f.rank: int(found[1]) for f in failures if (found := _WATCHDOG.search(f.text + f.said))}
    if not waiting:
        return ""
    newest = max(waiting.values())
    behind = [f for f in failures if waiting.get(f.rank, -1) < newest]
    if not behind or len(behind) > len(failures) / 2:
        return ""
    names = ", ".join(f"rank {f.rank} ({f.host}:{f.local_rank})" for f in sorted(behind, key=lambda f: f.rank)[:3])
    return f"; not in it: {names}{', …' if len(behind) > 3 else ''}"
