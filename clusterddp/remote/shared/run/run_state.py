"""The states of a run, of a node's part in it and of a workload manager's job: their names. Pure.

How a run as a whole ended, verdict/judge.py alone decides. No enum: connections import this, and enum is slow.
"""


class RunState:
    """The names of the states."""

    QUEUED = "queued"  # it waits: for the workload manager, as a spare, or between two attempts
    STARTING = "starting"  # no worker has started yet
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  # by an order
    LOST = "lost"  # its supervisor is gone, and left no record of how it ended
    UNKNOWN = "unknown"  # of a run or job: nobody who answers can say how it ended


LIVE_STATES = (RunState.QUEUED, RunState.STARTING, RunState.RUNNING)
ENDED_STATES = (RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.LOST)
ALL_STATES = (*LIVE_STATES, *ENDED_STATES, RunState.UNKNOWN)
_END_EVENTS = {RunState.SUCCEEDED: "done", RunState.STOPPED: "stopped"}


def end_event(state: str) -> str:
    """Return the event of ``run --notify`` that tells that a run ended in this state."""
    return _END_EVENTS.get(state, "failed")
