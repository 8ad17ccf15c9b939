"""The job of a workload manager that a run is in, as a view of the run holds it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """A job.

    Attributes:
        number: The manager's.
        word: Its own word for the job's state.
        state: The same in the words of docs/status.md; an ended one's is how that ends a run whose nodes say nothing.
        over: Whether the job has ended.
        attempt: The run's attempt that the job is in, or waits to begin.
        reason: Why it waits, in the manager's word.
        start: When it began, or is expected to; empty where nobody knows.
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
        """What it waits for, in a few words; empty once it does not."""
        if self.state != "queued":
            return ""
        expected = f", expected to start {self.start.replace('T', ' ')}" if self.start else ""
        return f"job {self.number} is queued" + (f" ({self.reason}{expected})" if self.reason else expected)
