"""Derives how a run ended from its job's exit status, if neither its nodes nor its script could report it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.slurm.job_record import NOT_OURS, NOT_SHARED, NOT_UNPACKED

if TYPE_CHECKING:
    from clusterddp.launch.slurm.client.answers import QueuedJob
    from clusterddp.remote.shared.slurm.job_record import SubmittedRun
    from clusterddp.remote.shared.verdict.verdict_record import VerdictRecord

NO_OUTPUT = "0:53"  # its node could not open the file for its output


def by_exit_status(
    by_state: VerdictRecord, one: SubmittedRun, job: QueuedJob, login: str, status: str
) -> VerdictRecord:
    """The verdict on a run whose job has ended and whose nodes report nothing.

    ``by_state`` is the verdict by Slurm's state alone, ``login`` the login host's name, ``status`` is ``CODE:SIGNAL``.
    """
    nodes = ", ".join(job.nodes) or "its nodes"
    if status == f"{NOT_OURS}:0":
        line = f"{nodes}: another user owns the state folder there, or could put their own in its place"
        return by_state._replace(line=f"{line}: set clusterddp_state to a folder of your own")
    if not one.apart:
        if status == "0:0":  # the script's last step records how the run ended, in a file
            line = (
                f"its job ended with 0, and nothing that {nodes} wrote is seen on {login}; set clusterddp_slurm_shared"
            )
            return by_state._replace(state=RunState.SUCCEEDED, exit_code=0, line=f"{line}: false")
        if status not in {NO_OUTPUT, f"{NOT_SHARED}:0"}:
            return by_state
        first = job.nodes[0] if job.nodes else "the job's first node"
        line = f"{first} and {login} share no folder: clusterddp_state has to be in one that all nodes see"
        return by_state._replace(line=f"{line}, or clusterddp_slurm_shared false")
    if status == f"{NOT_UNPACKED}:0":
        line = f"{nodes}: the run's code cannot be kept there: clusterddp_state has to be a folder of each node"
        return by_state._replace(line=line)
    found = re.fullmatch(r"([0-9]{1,3}):0", status)
    if not found:
        return by_state
    code = int(found[1])
    line = f"its job ended with {code}; its lines are on {nodes} alone, for nobody followed its end"
    return by_state._replace(state=RunState.FAILED if code else RunState.SUCCEEDED, exit_code=code, line=line)
