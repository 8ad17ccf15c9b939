"""The workload manager's job that a run is in: its state, and what is reported of it beside the run's nodes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.remote.shared.run.run_state import RunState

if TYPE_CHECKING:
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.remote.shared.verdict.judge import VerdictRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """The state of a workload manager's job."""

    number: str  # the manager's id of the job
    manager_state: str  # the manager's name for its state
    state: str  # the same in the terms of docs/status.md; for an ended job, the run's end if its nodes report nothing
    ended: bool
    attempt: int = 1  # the run's attempt that the job is in, or waits to begin
    reason: str = ""  # why it waits, in the manager's own term
    start: str = ""  # when it began or is expected to; empty if unknown
    ends_with_run: bool = True  # it was submitted for the run, and is to end with it

    @property
    def waiting_for(self) -> str:
        """What the job waits for, in a few words; empty if it does not wait."""
        if self.state != RunState.QUEUED:
            return ""
        expected = f", expected to start {self.start.replace('T', ' ')}" if self.start else ""
        return f"job {self.number} is queued" + (f" ({self.reason}{expected})" if self.reason else expected)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobReport:
    """What the workload manager says of a run, beside the reports of its nodes."""

    run: str
    record: RunRecord
    job: JobStatus
    verdict: VerdictRecord | None = None  # if it knows the run's end
