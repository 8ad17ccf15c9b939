"""A table of what Slurm's job states mean for a run. A state that is not in it is ``unknown``."""

from __future__ import annotations

from dataclasses import dataclass

from clusterddp.remote.shared.processes.exit_codes import (
    EXIT_KILLED,
    EXIT_NOT_THE_SCRIPT,
    EXIT_STOPPED,
    EXIT_TIME_LIMIT,
)
from clusterddp.remote.shared.run.run_state import LIVE_STATES, RunState

MANAGER = "Slurm"  # its name in messages
NAME = "slurm"  # of this launcher
NO_ANSWER = "nothing: it does not answer"  # in place of a job's state, where the nodes alone tell of the run
QUERY_INTERVAL = 0.5  # seconds between queries of the queue


@dataclass(frozen=True, kw_only=True, slots=True)
class StateMeaning:
    """What one of Slurm's states means."""

    state: str  # the run's (shared/run/run_state.py)
    exit_code: int = EXIT_NOT_THE_SCRIPT  # of a run that ended so, if its nodes report nothing
    outside: bool = False  # Slurm, or a user through it, ended the job: what its nodes saw of that is no cause
    explanation: str = ""  # an explanation for people, with a remedy; empty if Slurm's name of the state suffices

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.state not in LIVE_STATES


_QUEUED, _RUNNING = StateMeaning(state=RunState.QUEUED), StateMeaning(state=RunState.RUNNING)
_FAILED = StateMeaning(state=RunState.FAILED)
_TAKEN = "another job took its nodes; --relaunch lets it go on"
_OVER = "its time was over; --time-limit asks for more, --relaunch lets it go on"
UNKNOWN = StateMeaning(state=RunState.UNKNOWN)
STATES = {
    "PENDING": _QUEUED,
    "REQUEUED": _QUEUED,
    "REQUEUE_FED": _QUEUED,
    "REQUEUE_HOLD": _QUEUED,
    "RESV_DEL_HOLD": _QUEUED,
    "SPECIAL_EXIT": _QUEUED,
    "EXPEDITING": _QUEUED,
    "CONFIGURING": StateMeaning(state=RunState.STARTING),
    "RUNNING": _RUNNING,
    "SUSPENDED": _RUNNING,
    "STOPPED": _RUNNING,
    "SIGNALING": _RUNNING,
    "STAGE_OUT": _RUNNING,
    "RESIZING": _RUNNING,
    "COMPLETING": _RUNNING,
    "COMPLETED": UNKNOWN,  # also the state after a node was powered off
    "FAILED": _FAILED,
    "LAUNCH_FAILED": _FAILED,
    "RECONFIG_FAIL": _FAILED,
    "BOOT_FAIL": StateMeaning(state=RunState.FAILED, outside=True, explanation="a node did not boot"),
    "NODE_FAIL": StateMeaning(
        state=RunState.FAILED, outside=True, explanation="a node was lost; --relaunch lets the run go on"
    ),
    "DEADLINE": StateMeaning(
        state=RunState.FAILED, exit_code=EXIT_TIME_LIMIT, outside=True, explanation="its deadline was over"
    ),
    "TIMEOUT": StateMeaning(state=RunState.FAILED, exit_code=EXIT_TIME_LIMIT, outside=True, explanation=_OVER),
    "OUT_OF_MEMORY": StateMeaning(
        state=RunState.FAILED,
        exit_code=EXIT_KILLED,
        outside=True,
        explanation="clusterddp_slurm_mem asks for more memory",
    ),
    "CANCELLED": StateMeaning(state=RunState.STOPPED, exit_code=EXIT_STOPPED, outside=True),
    "PREEMPTED": StateMeaning(state=RunState.STOPPED, exit_code=EXIT_STOPPED, outside=True, explanation=_TAKEN),
    "REVOKED": UNKNOWN,
}


def meaning(state: str) -> StateMeaning:
    """Return the meaning of one of Slurm's states, which may be followed by other text (``CANCELLED by 1000``).

    Where Slurm did not answer, the job is taken to run: its end is not known.
    """
    return _RUNNING if state == NO_ANSWER else STATES.get(state.split(" ", 1)[0].rstrip("+"), UNKNOWN)
