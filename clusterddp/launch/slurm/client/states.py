"""What Slurm's job states mean for a run: one table. Pure. A state that is not in it is ``unknown``."""

from __future__ import annotations

from dataclasses import dataclass

from clusterddp.errors import EXIT_NOT_THE_SCRIPT, EXIT_STOPPED, EXIT_TIME_LIMIT

MANAGER = "Slurm"  # as our lines name it
OUT_OF_MEMORY = 137  # as of a process that the kernel's OOM killer ended


@dataclass(frozen=True, kw_only=True, slots=True)
class StateMeaning:
    """What one state means.

    Attributes:
        state: The run's, in the words of docs/status.md.
        exit_code: Of a run that has ended so, where its nodes say nothing.
        outside: Slurm, or somebody by it, has ended the job: whatever its nodes saw of that is no reason of theirs.
        words: The same for people, and what helps; empty where Slurm's word says it all.
    """

    state: str
    exit_code: int = EXIT_NOT_THE_SCRIPT
    outside: bool = False
    words: str = ""

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.state not in {"queued", "starting", "running"}


_QUEUED, _RUNNING = StateMeaning(state="queued"), StateMeaning(state="running")
_FAILED = StateMeaning(state="failed")
_TAKEN = "another job took its nodes; --relaunch lets it go on"
_OVER = "its time was over; --time-limit asks for more, --relaunch lets it go on"
UNKNOWN = StateMeaning(state="unknown")
STATES = {
    "PENDING": _QUEUED,
    "REQUEUED": _QUEUED,
    "REQUEUE_FED": _QUEUED,
    "REQUEUE_HOLD": _QUEUED,
    "RESV_DEL_HOLD": _QUEUED,
    "SPECIAL_EXIT": _QUEUED,
    "EXPEDITING": _QUEUED,
    "CONFIGURING": StateMeaning(state="starting"),
    "RUNNING": _RUNNING,
    "SUSPENDED": _RUNNING,
    "STOPPED": _RUNNING,
    "SIGNALING": _RUNNING,
    "STAGE_OUT": _RUNNING,
    "RESIZING": _RUNNING,
    "COMPLETING": _RUNNING,
    "COMPLETED": UNKNOWN,  # so it is called too when a node was powered off
    "FAILED": _FAILED,
    "LAUNCH_FAILED": _FAILED,
    "RECONFIG_FAIL": _FAILED,
    "BOOT_FAIL": StateMeaning(state="failed", outside=True, words="a node did not boot"),
    "NODE_FAIL": StateMeaning(state="failed", outside=True, words="a node was lost; --relaunch lets the run go on"),
    "DEADLINE": StateMeaning(state="failed", exit_code=EXIT_TIME_LIMIT, outside=True, words="its deadline was over"),
    "TIMEOUT": StateMeaning(state="failed", exit_code=EXIT_TIME_LIMIT, outside=True, words=_OVER),
    "OUT_OF_MEMORY": StateMeaning(
        state="failed", exit_code=OUT_OF_MEMORY, outside=True, words="clusterddp_slurm_mem asks for more memory"
    ),
    "CANCELLED": StateMeaning(state="stopped", exit_code=EXIT_STOPPED, outside=True),
    "PREEMPTED": StateMeaning(state="stopped", exit_code=EXIT_STOPPED, outside=True, words=_TAKEN),
    "REVOKED": UNKNOWN,
}


def meaning(state: str) -> StateMeaning:
    """What a state of Slurm's means; it may have words behind it, as ``CANCELLED by 1000``."""
    return STATES.get(state.split(" ", 1)[0].rstrip("+"), UNKNOWN)
