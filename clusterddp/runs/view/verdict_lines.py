"""Judge how a run ended: make the same judgement as its hosts, and add remedies for the user. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import EXIT_NOT_THE_SCRIPT
from clusterddp.remote.shared.names.host_names import folded_names, sorted_names
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.verdict import judge as shared
from clusterddp.remote.shared.verdict.failures import ENDED, OWN, recovered_failures, worker_failures
from clusterddp.remote.shared.verdict.node_end import end_of
from clusterddp.remote.shared.verdict.verdict_record import make_verdict
from clusterddp.runs.view import known_messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterddp.remote.shared.verdict.failures import FailedWorker
    from clusterddp.remote.shared.verdict.judge import EarlyExit, Failure
    from clusterddp.remote.shared.verdict.node_end import NodeEnd
    from clusterddp.remote.shared.verdict.node_report import NodeReport
    from clusterddp.remote.shared.verdict.verdict_record import VerdictRecord
    from clusterddp.runs.view.preload_hint import SlowImports

WATCHER = "who watched it"  # in place of a host's name
NO_MEMBER = 1 << 20  # member index of a writer that is not one of the run's nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How a run ended: state, exit code (docs/run.md), one line; ``notices`` come before it, the remedy after."""

    state: str
    exit_code: int
    line: str
    failures: tuple[Failure, ...] = ()
    notices: tuple[str, ...] = ()
    remedy: str = ""
    early: tuple[EarlyExit, ...] = ()  # the worker that the first failure comes from, if it had ended well
    slow_imports: SlowImports | None = None  # what its script spent importing installed packages, if that was long

    @property
    def culprits(self) -> tuple[str, ...]:
        """The host whose own failure came first; empty if a peer was missed, because the cause is then unknown."""
        return tuple(failure.host for failure in self.failures[:1] if failure.kind == OWN)

    @property
    def preface(self) -> tuple[str, ...]:
        """The lines shown before ``line``."""
        return (*self.notices, *([f"remedy: {self.remedy}"] if self.remedy else []))


def judge(nodes: Sequence[NodeReport], unreachable: Iterable[str] = (), *, watched: bool = True) -> Verdict:
    """Judge one attempt from the detailed reports of all its nodes, if no host has saved a verdict.

    ``unreachable``: hosts of the plan that did not answer. ``watched``: the run was followed to its end, so these
    hosts are lost; otherwise its end may be unknown.
    """
    silent = sorted_names(unreachable)
    if not nodes:
        return _unknown_verdict(silent)
    ends, record = [_node_end(node) for node in nodes], nodes[0].record
    judged = shared.judge(ends, silent, record.min_nodes, record.max_restarts)
    if judged.by_loss and silent and not watched and not any(end.state == RunState.LOST for end in ends):
        return _unknown_verdict(silent, judged.failures)
    return Verdict(
        state=judged.state,
        exit_code=judged.exit_code,
        line=judged.line,
        failures=judged.failures,
        early=judged.early,
        notices=(judged.notice,) if judged.notice else (),
        remedy=remedy(*judged.texts),
    )


def _unknown_verdict(silent: Sequence[str], failures: tuple[Failure, ...] = ()) -> Verdict:
    """Return the verdict on a run whose end only hosts that do not answer could report."""
    line = f"unknown: {folded_names(silent)} {'do' if silent[1:] else 'does'} not answer now"
    return Verdict(state=RunState.UNKNOWN, exit_code=EXIT_NOT_THE_SCRIPT, line=line, failures=failures)


def from_record(record: VerdictRecord, nodes: Sequence[NodeReport] = ()) -> Verdict:
    """Convert the verdict that a run's hosts have saved.

    ``nodes`` are what hosts report now: their evidence of the first failure has more detail than the record.
    """
    texts = list(record.texts)
    for first in record.failures[:1]:
        ends = [_node_end(node) for node in nodes if node.host == first.host and node.attempt == first.attempt]
        texts += [failed.output for end in ends for failed in end.failures if failed.rank == first.worker.rank]
    return Verdict(
        state=record.state,
        exit_code=record.exit_code,
        line=record.line,
        failures=record.failures,
        early=record.early,
        notices=(record.notice,) if record.notice else (),
        remedy=remedy(*texts),
    )


def to_record(verdict: Verdict, nodes: Sequence[NodeReport], silent: Iterable[str]) -> VerdictRecord:
    """Convert a verdict judged here for the project; hosts' copies by equally many nodes take precedence."""
    ends = [_node_end(node) for node in nodes]
    judged = shared.Judgement(verdict.state, verdict.exit_code, verdict.line, verdict.failures, len(verdict.failures))
    notice = verdict.notices[0] if verdict.notices else ""
    texts = [text for first in verdict.failures[:1] for text in (first.worker.text, first.worker.output)]
    return make_verdict(
        judged._replace(notice=notice, texts=tuple(texts), early=verdict.early),
        ends,
        tuple(silent),
        writer=WATCHER,
        member=NO_MEMBER,
    )


def _node_end(node: NodeReport) -> NodeEnd:
    """Return a node's end as its host reports it, or else derived from the evidence it reports."""
    return node.end or end_of(node.part)


def remedy(*texts: str) -> str:
    """Return the remedy of the first text that holds a known message; empty if none does."""
    row = known_messages.find(*texts)
    return str(row) if row else ""


def all_recovered(nodes: Sequence[NodeReport], earlier: Sequence[NodeReport] = ()) -> list[Failure]:
    """Return the failures that torchrun's restarts or a new attempt recovered from, by time."""
    found = [failure for node in (*earlier, *nodes) for failure in _with_host(node, recovered_failures(node.evidence))]
    for node in earlier:
        found += _with_host(node, [failed for failed in worker_failures(node.evidence) if failed.kind != ENDED])
    return sorted(found, key=lambda failure: failure.time_ns)


def _with_host(node: NodeReport, workers: Iterable[FailedWorker]) -> list[Failure]:
    """Return recovered failures of a node's workers with its name, their times by the operator's clock."""
    offset = node.clock_offset_ns
    corrected = [worker._replace(time_ns=worker.time_ns - offset) for worker in workers]
    return list(shared.failures_on_host(end_of(node.part), corrected, recovered=True))
