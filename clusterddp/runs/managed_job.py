"""The state of the workload manager's job that a run is in. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """A job of a workload manager.

    Attributes:
        number: The manager's id of the job.
        word: The manager's name for the job's state.
        state: The same in the terms of docs/status.md; for an ended job, the run's end if its nodes report nothing.
        over: Whether the job has ended.
        attempt: The run's attempt that the job is in, or waits to begin.
        reason: Why it waits, in the manager's own term.
        start: When it began or is expected to; empty if unknown.
        own: Whether it was submitted for the run, and is to end with it.
    """

    number: str
    word: str
    state: str
    over: bool
    attempt: int = 1
    reason: str = ""
    start: str = ""
    own: bool = True

    @property
    def waits(self) -> str:
        """What the job waits for, in a few words; empty if it does not wait."""
        if self.state != "queued":
            return ""
        expected = f", expected to start {self.start.replace('T', ' ')}" if self.start else ""
        return f"job {self.number} is queued" + (f" ({self.reason}{expected})" if self.reason else expected)
