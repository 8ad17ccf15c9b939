"""How a run ended, for its user: the judgement that hosts make too, with what helps. Pure.

Not here: the judgement (remote/shared/verdict.py), which copy of a verdict counts (remote/shared/verdict_record.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared import verdict as shared
from clusterddp.remote.shared.failures import ENDED, OWN, recovered_failures, worker_failures
from clusterddp.remote.shared.node_end import end_of
from clusterddp.runs import known_messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterddp.remote.shared.failures import FailedWorker
    from clusterddp.remote.shared.verdict import Failure


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
    found = shared.judge([end_of(node) for node in nodes], unreachable, nodes[0]["record"].get("min_nodes"))
    return Verdict(
        state=found.state,
        exit_code=found.exit_code,
        line=found.line,
        failures=found.failures,
        notices=(found.notice,) if found.notice else (),
        remedy=remedy(*found.said),
    )


def remedy(*texts: str) -> str:
    """What helps, by the first of these texts that holds a known message; empty if none does."""
    row = known_messages.find(*texts)
    return str(row) if row else ""


def recovered(nodes: Sequence[Mapping[str, Any]], earlier: Sequence[Mapping[str, Any]] = ()) -> list[Failure]:
    """The failures that were made good, by torchrun's restarts or by a new attempt, by time; nobody is blamed for them.

    Args:
        nodes: The nodes of the last attempt.
        earlier: Those of the attempts before.
    """
    found = [failure for node in (*earlier, *nodes) for failure in _failures(node, recovered_failures(node))]
    for node in earlier:
        found += _failures(node, [one for one in worker_failures(node) if one.kind != ENDED])
    return sorted(found, key=lambda failure: failure.time_ns)


def _failures(node: Mapping[str, Any], workers: Iterable[FailedWorker]) -> list[Failure]:
    offset = node["clock_offset_ns"]
    mine = [worker._replace(time_ns=worker.time_ns - offset) for worker in workers]
    return list(shared.with_host(end_of(node), mine, recovered=True))
