"""A run's verdict as the user sees it: with notices and a remedy; and the failures that it recovered from. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.remote.shared.verdict.failures import ENDED, OWN, recovered_failures, worker_failures
from clusterddp.remote.shared.verdict.judge import failures_on_host
from clusterddp.remote.shared.verdict.node_end import end_of
from clusterddp.runs.view import known_messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterddp.remote.shared.verdict.failures import FailedWorker
    from clusterddp.remote.shared.verdict.judge import Failure, VerdictRecord
    from clusterddp.remote.shared.verdict.node_end import NodeEnd
    from clusterddp.remote.shared.verdict.node_report import NodeReport
    from clusterddp.runs.view.preload_hint import SlowImports


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How a run ended: state, exit code (docs/run.md), one line; ``notices`` come before it, the remedy after."""

    record: VerdictRecord  # as its hosts have saved it, or else as it was judged here
    notices: tuple[str, ...] = ()
    remedy: str = ""
    silent: tuple[str, ...] = ()  # hosts of the run that did not answer just now
    slow_imports: SlowImports | None = None  # what its script spent importing installed packages, if that was long

    @property
    def state(self) -> str:
        """The state in which the run ended; ``unknown`` if only hosts that do not answer know it."""
        return self.record.state

    @property
    def exit_code(self) -> int:
        """The exit code of a command that followed the run."""
        return self.record.exit_code

    @property
    def line(self) -> str:
        """The verdict in a sentence."""
        return self.record.line

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The workers that failed, the first one first."""
        return self.record.failures

    @property
    def culprits(self) -> tuple[str, ...]:
        """The host whose own failure came first; empty if a peer was missed, because the cause is then unknown."""
        return tuple(failure.host for failure in self.failures[:1] if failure.kind == OWN)

    @property
    def preface(self) -> tuple[str, ...]:
        """The lines shown before ``line``."""
        return (*self.notices, *([f"remedy: {self.remedy}"] if self.remedy else []))


def remedy(record: VerdictRecord, nodes: Sequence[NodeReport] = ()) -> str:
    """Return the remedy of the first text of a verdict that holds a known message; empty if none does.

    ``nodes``: what hosts report now, for a record that was kept: their evidence of the first failure has more detail.
    """
    texts = list(record.texts)
    for first in record.failures[:1]:
        ends = [node_end(node) for node in nodes if node.host == first.host and node.attempt == first.attempt]
        texts += [failed.output for end in ends for failed in end.failures if failed.rank == first.worker.rank]
    row = known_messages.find(*texts, own=any(first.kind == OWN for first in record.failures[:1]))
    return str(row) if row else ""


def node_end(node: NodeReport) -> NodeEnd:
    """Return a node's end as its host reports it, or else derived from the evidence it reports."""
    return node.end or end_of(node.part)


def all_recovered(nodes: Sequence[NodeReport], earlier: Sequence[NodeReport] = ()) -> list[Failure]:
    """Return the failures that torchrun's restarts or a new attempt recovered from, by time."""
    found = [failure for node in (*earlier, *nodes) for failure in _with_host(node, recovered_failures(node.evidence))]
    for node in earlier:
        found += _with_host(node, [failed for failed in worker_failures(node.evidence) if failed.kind != ENDED])
    return sorted(found, key=lambda failure: failure.time_ns)


def _with_host(node: NodeReport, workers: Iterable[FailedWorker]) -> list[Failure]:
    """Return recovered failures of a node's workers with its name, their times by the operator's clock."""
    corrected = [worker.by_operator(node.clock_offset_ns) for worker in workers]
    return list(failures_on_host(end_of(node.part), corrected, recovered=True))
