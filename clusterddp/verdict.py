"""Which worker failed first, and how a run ended: pure over what the hosts' spools tell.

Class first, time within a class: (1) a failure of its own, (2) a lost peer, (3) ended by us or by the agent.
A killed rank's victims raise before anybody sees the death, so time alone would blame them.

Not here: gathering (run.py asks every host's ``runs`` operation with ``detail``).
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.errors import EXIT_NOT_THE_SCRIPT, EXIT_STOPPED, EXIT_TIME_LIMIT
from clusterddp.remote.spool import TIME_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OWN, LOST_PEER, ENDED = 1, 2, 3

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
    lost = sorted([node["host"] for node in nodes if node["state"] == "lost"] + silent)
    failures = sorted((failure for node in nodes for failure in _failures(node)), key=lambda f: (f.kind, f.time_ns))
    own = [failure for failure in failures if failure.kind != ENDED]
    if stopped and not own:
        return _stopped(stopped)
    if own and not (own[0].kind == LOST_PEER and lost):
        return Verdict(state="failed", exit_code=own[0].exit_code, line=_line(own, failures), failures=tuple(failures))
    if lost:
        line = f"{', '.join(lost)} was lost: " + ("no answer" if silent else "its supervisor is gone")
        return Verdict(state="failed", exit_code=EXIT_NOT_THE_SCRIPT, line=line, failures=tuple(failures))
    if all(node["exit"] and node["exit"]["state"] == "succeeded" for node in nodes):
        return Verdict(state="succeeded", exit_code=0, line="succeeded")
    return _without_worker(nodes, failures)


def _stopped(records: Sequence[Mapping[str, Any]]) -> Verdict:
    reason = str(records[0]["reason"])
    if reason == TIME_LIMIT:
        return Verdict(state="failed", exit_code=EXIT_TIME_LIMIT, line=TIME_LIMIT)
    if any(record.get("ours") for record in records):
        return Verdict(state="failed", exit_code=EXIT_NOT_THE_SCRIPT, line=reason)
    return Verdict(state="stopped", exit_code=EXIT_STOPPED, line=f"stopped: {reason}")


def _without_worker(nodes: Sequence[Mapping[str, Any]], failures: Sequence[Failure]) -> Verdict:
    """An agent failed and no worker of its own did: rendezvous, a missing module, a bad option."""
    if failures:
        code = failures[0].exit_code
        return Verdict(state="failed", exit_code=code, line=_line(failures, failures), failures=tuple(failures))
    failed = [node for node in nodes if node["exit"] and node["exit"]["state"] == "failed"]
    if not failed:
        return Verdict(state="lost", exit_code=EXIT_NOT_THE_SCRIPT, line="the run ended without a record")
    node = failed[0]
    said = _last_error_line(node.get("stderr", {}).get("agent", "")) or node["exit"]["reason"]
    return Verdict(
        state="failed",
        exit_code=EXIT_NOT_THE_SCRIPT,
        line=f"torchrun failed on {node['host']} before any worker did: {said}",
    )


def _failures(node: Mapping[str, Any]) -> Iterable[Failure]:
    """The failed workers of the node's last start."""
    events = node.get("events", ())
    starts = [event["start"] for event in events if event["event"] == "worker_started"]
    ended_at = min((event["time"] for event in events if event["event"] == "stopping"), default=None)
    for event in events:
        if event["event"] != "worker_exited" or not event["exit_code"] or event["start"] != max(starts, default=0):
            continue
        key = f"{event['start']}.{event['local_rank']}"
        error = node.get("errors", {}).get(f"{key}.json")
        text = _describe(event, error, node.get("stderr", {}).get(key, ""))
        yield Failure(
            kind=_kind(event, text + str(error or ""), ended_at),
            time_ns=int((error or {}).get("time_ns") or event["time"]) - node["clock_offset_ns"],
            error_ns=int(node.get("clock_error_ns") or 0),
            rank=event["rank"],
            host=node["host"],
            local_rank=event["local_rank"],
            exit_code=event["exit_code"],
            text=text,
        )


def _kind(event: Mapping[str, Any], text: str, ended_at: int | None) -> int:
    if event.get("signal") == signal.SIGTERM or (ended_at and event["time"] >= ended_at):
        return ENDED
    return LOST_PEER if _LOST_PEER.search(text) else OWN


def _describe(event: Mapping[str, Any], error: Mapping[str, Any] | None, stderr: str) -> str:
    if error and error.get("exc_type"):
        place = f" ({_short(error.get('file'))}:{error['line']})" if error.get("file") else ""
        first_line = (str(error.get("exc_message") or "").splitlines() or [""])[0]
        return f"{error['exc_type']}{': ' if first_line else ''}{first_line[:300]}{place}"
    if event.get("signal"):
        hint = ", often the out-of-memory killer" if event["signal"] == signal.SIGKILL else ""
        return f"killed by {signal.Signals(event['signal']).name}{hint}"
    said = _last_error_line(stderr)
    return f"exit code {event['exit_code']}" + (f": {said}" if said else "")


def _last_error_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if _TRACE_END.match(line) and ("Error" in line or "Exception" in line):
            return line[:300]
    return lines[-1][:300] if lines else ""


def _short(path: object) -> str:
    return str(path).rpartition("/")[2]


def _line(own: Sequence[Failure], failures: Sequence[Failure]) -> str:
    first, *others = own
    rivals = [f for f in others if f.kind == first.kind and f.time_ns - first.time_ns <= first.error_ns + f.error_ns]
    perhaps = f" (or rank {rivals[0].rank})" if rivals else ""
    more = len(failures) - 1
    rest = f"; {more} other{'s' if more > 1 else ''} stopped" if more else ""
    return f"rank {first.rank} ({first.host}:{first.local_rank}) failed first{perhaps}: {first.text}{rest}"
