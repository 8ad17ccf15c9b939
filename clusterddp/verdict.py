"""Which worker failed first, and how a run ended: pure over what the hosts' spools tell.

Class first, time within a class: (1) a failure of its own, (2) a lost peer, (3) ended by us or by the agent.
A killed rank's victims raise before anybody sees the death, so time alone would blame them.

Not here: gathering (run.py asks every host's ``runs`` operation with ``detail``).
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterddp.errors import EXIT_NOT_THE_SCRIPT, EXIT_STOPPED, EXIT_TIME_LIMIT
from clusterddp.remote.spool import FAIL_FAST_REASON, TIME_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OWN, LOST_PEER, ENDED = 1, 2, 3
CONSEQUENCES = {FAIL_FAST_REASON}  # reasons to stop a node that are no cause: what failed first is looked for elsewhere
AGENT_PATIENCE = 25 * 10**9  # ns: torchrun sends SIGTERM to the others, and SIGKILL 30 s later
TOGETHER = 10**9  # ns between an agent's violent death and its workers'
_NEVER = 1 << 63
_DEAD = ("its supervisor is gone", "their supervisors are gone")
_SILENT = ("no answer", "no answer")
_WORKER_FAILED = "ChildFailedError"  # torchrun's word for "a worker failed, not I"

_LOST_PEER = re.compile(
    r"connection (was )?(closed|reset) by (the )?(remote )?peer|Broken pipe|Connection reset|recvBytes|sendBytes"
    r"|ncclRemoteError|NCCL.*(remote process|watchdog)|Watchdog caught collective|DistBackendError"
    r"|Socket closed|peer closed|Connection refused|DistNetworkError|client socket has timed out",
    re.IGNORECASE,
)
_TRACE_END = re.compile(r"^(?:[A-Za-z_][\w.]*)(?:Error|Exception|Interrupt|Exit|Warning|Failure)?(?::|$)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """One worker's failure: what class it is, when by the operator's clock, and what is known of it."""

    kind: int
    time_ns: int
    error_ns: int
    rank: int
    host: str
    local_rank: int
    exit_code: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How a run ended: state, exit code by the contract, and one line."""

    state: str
    exit_code: int
    line: str
    failures: tuple[Failure, ...] = ()


def judge(nodes: Sequence[Mapping[str, Any]], unreachable: Iterable[str] = ()) -> Verdict:
    """The verdict over all nodes of one attempt.

    Args:
        nodes: Each host's node as its ``runs`` operation describes it, with detail.
        unreachable: Hosts of the plan that did not answer.
    """
    silent = sorted(unreachable)
    stopped = [node["exit"] for node in nodes if node["exit"] and node["exit"]["state"] == "stopped"]
    ordered = [record for record in stopped if record["reason"] not in CONSEQUENCES]
    dead = sorted(node["host"] for node in nodes if node["state"] == "lost")
    ended_at = _ended_at(nodes)
    failures = sorted((f for node in nodes for f in _failures(node, ended_at)), key=lambda f: (f.kind, f.time_ns))
    own = [failure for failure in failures if failure.kind != ENDED]
    if ordered and not own:
        return _stopped(ordered)
    if own and not (own[0].kind == LOST_PEER and (dead or silent)):
        return Verdict(state="failed", exit_code=own[0].exit_code, line=_line(own, failures), failures=tuple(failures))
    if dead or silent:
        line = "; ".join(_lost(hosts, why) for hosts, why in ((dead, _DEAD), (silent, _SILENT)) if hosts)
        return Verdict(state="failed", exit_code=EXIT_NOT_THE_SCRIPT, line=line, failures=tuple(failures))
    if all(node["exit"] and node["exit"]["state"] == "succeeded" for node in nodes):
        return Verdict(state="succeeded", exit_code=0, line="succeeded")
    return _without_worker(nodes, failures, stopped)


def _ended_at(nodes: Sequence[Mapping[str, Any]]) -> int | None:
    """When the first node was ordered to stop, by the operator's clock: from then on peers vanish by our doing."""
    times = [
        event["time"] - node["clock_offset_ns"]
        for node in nodes
        for event in node.get("events", ())
        if event["event"] == "stopping" and event.get("reason") not in CONSEQUENCES
    ]
    return min(times, default=None)


def _lost(hosts: Sequence[str], why: tuple[str, str]) -> str:
    return f"{', '.join(hosts)} {'was' if len(hosts) == 1 else 'were'} lost: {why[len(hosts) > 1]}"


def _stopped(records: Sequence[Mapping[str, Any]]) -> Verdict:
    limited = [record for record in records if record["reason"] == TIME_LIMIT]
    if limited:
        return Verdict(state="failed", exit_code=EXIT_TIME_LIMIT, line=TIME_LIMIT)
    ours = [record for record in records if record.get("ours")]
    if ours:
        return Verdict(state="failed", exit_code=EXIT_NOT_THE_SCRIPT, line=str(ours[0]["reason"]))
    return Verdict(state="stopped", exit_code=EXIT_STOPPED, line=f"stopped: {records[0]['reason']}")


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
    agent_log = node.get("stderr", {}).get("agent", "")
    number = int(node["exit"].get("agent_exit") or 0) - 128
    if number > 0:
        line = f"torchrun on {node['host']} was killed by {_signal_name(number)}"
    elif failures and (not agent_log or _WORKER_FAILED in agent_log):  # somebody else ended a worker
        code = failures[0].exit_code
        return Verdict(state="failed", exit_code=code, line=_line(failures, failures), failures=tuple(failures))
    else:
        when = "" if failures else " before any worker did"
        line = f"torchrun failed on {node['host']}{when}: {_last_error_line(agent_log) or node['exit']['reason']}"
    return Verdict(state="failed", exit_code=EXIT_NOT_THE_SCRIPT, line=line, failures=tuple(failures))


def _failures(node: Mapping[str, Any], ended_at: int | None) -> Iterable[Failure]:
    """The failed workers of the node's last start."""
    events = node.get("events", ())
    last = max((event["start"] for event in events if event["event"] == "worker_started"), default=0)
    exits = [e for e in events if e["event"] == "worker_exited" and e["exit_code"] and e["start"] == last]
    stopping = min((event["time"] for event in events if event["event"] == "stopping"), default=_NEVER)
    first = min((event["time"] for event in exits), default=0)
    for event in exits:
        key = f"{last}.{event['local_rank']}"
        error = node.get("errors", {}).get(f"{key}.json") or {}
        stderr = node.get("stderr", {}).get(key, "")
        text = _describe(event, error, stderr)
        time_ns = int(error.get("time_ns") or event["time"])
        failure = Failure(
            kind=LOST_PEER if _LOST_PEER.search(_evidence(event, error, stderr, text)) else OWN,
            time_ns=time_ns - node["clock_offset_ns"],
            error_ns=int(node.get("clock_error_ns") or 0),
            rank=event["rank"],
            host=node["host"],
            local_rank=event["local_rank"],
            # An exception on record is the end; the signal that came in the teardown is not.
            exit_code=1 if error.get("exc_type") else event["exit_code"],
            text=text,
        )
        ended = time_ns >= stopping or _by_agent(node, event, error, first) or _after(failure, ended_at)
        yield replace(failure, kind=ENDED) if ended else failure


def _by_agent(node: Mapping[str, Any], event: Mapping[str, Any], error: Mapping[str, Any], first: int) -> bool:
    """Whether torchrun ended this worker: because of another one, or by its own death."""
    if error.get("exc_type"):
        return False
    if event.get("signal") != signal.SIGKILL:
        return bool(event.get("signal") == signal.SIGTERM)
    died = [e["time"] for e in node.get("events", ()) if e["event"] == "agent_exited" and e["exit_code"] > 128]
    return event["time"] - first >= AGENT_PATIENCE or any(abs(event["time"] - at) < TOGETHER for at in died)


def _after(failure: Failure, ended_at: int | None) -> bool:
    """Whether the run was being ended already; a lost peer within the clocks' error counts so too."""
    if ended_at is None:
        return False
    return failure.time_ns + (failure.error_ns if failure.kind == LOST_PEER else 0) >= ended_at


def _evidence(event: Mapping[str, Any], error: Mapping[str, Any], stderr: str, text: str) -> str:
    """Where a lost peer may show: the exception; for an abort (NCCL's watchdog) all that the worker said."""
    return f"{text}\n{error.get('exc_message') or ''}" + (stderr if event.get("signal") == signal.SIGABRT else "")


def _describe(event: Mapping[str, Any], error: Mapping[str, Any] | None, stderr: str) -> str:
    if error and error.get("exc_type"):
        place = f" ({_short(error.get('file'))}:{error['line']})" if error.get("file") else ""
        first_line = (str(error.get("exc_message") or "").splitlines() or [""])[0]
        return f"{error['exc_type']}{': ' if first_line else ''}{first_line[:300]}{place}"
    if event.get("signal"):
        hint = ", often the out-of-memory killer" if event["signal"] == signal.SIGKILL else ""
        return f"killed by {_signal_name(event['signal'])}{hint}"
    said = _last_error_line(stderr)
    return f"exit code {event['exit_code']}" + (f": {said}" if said else "")


def _last_error_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if _TRACE_END.match(line) and ("Error" in line or "Exception" in line):
            return line[:300]
    return lines[-1][:300] if lines else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _short(path: object) -> str:
    return str(path).rpartition("/")[2]


def _doubt(one: Failure, other: Failure) -> int:
    """By how much the clocks of two failures may differ (ns); on one host they are one clock."""
    return 0 if one.host == other.host else one.error_ns + other.error_ns


def _line(own: Sequence[Failure], failures: Sequence[Failure]) -> str:
    first, *others = own
    rivals = [f for f in others if f.kind == first.kind and f.time_ns - first.time_ns <= _doubt(first, f)]
    perhaps = f" (or rank {rivals[0].rank})" if rivals else ""
    more = len(failures) - 1
    rest = f"; {more} other{'s' if more > 1 else ''} stopped" if more else ""
    return f"rank {first.rank} ({first.host}:{first.local_rank}) failed first{perhaps}: {first.text}{rest}"
