"""The command ``slurm`` of the host's code, which a job's script calls on each node and in the batch shell.

    slurm node FOLDER           one task per node of a step: starts the node's supervisor, ends with it
    slurm step FOLDER SRUN …    where nodes share no folder: runs srun and replicates the folder
    slurm task FOLDER           likewise, in place of ``node``, with the folder replicated
    slurm notice FOLDER         the job's end is near: workers that handle SIGUSR1 get it
    slurm stop FOLDER           orders this start to stop, because Slurm ends the job
    slurm end FOLDER STATUS     after the step: reports how the run ended and exits accordingly, or requeues the job

``FOLDER`` is the run's (shared/slurm/job_record.py).
"""

import os
import signal
import sys
from typing import List

from ..shared.processes.exit_codes import EXIT_NOT_THE_SCRIPT
from ..shared.slurm.job_record import start_name
from ..shared.verdict.failures import ended_by_manager
from ..system.bootstrap import Refused
from .batch_end import end, is_preempted
from .folder_relay import relay_step, relay_task
from .job_cleanup import prune_at_submit
from .job_folder import JobFolder
from .node_task import SUPERVISOR_SIGNALS, Task


def main(argv: List[str]) -> int:
    """Run one of the commands above; return the exit status."""
    what, folder, *rest = argv
    try:
        job = JobFolder(folder)
        if what == "node":
            return Task(job).run()
        start = start_name(os.environ)
        if what == "step":
            prune_at_submit(job.state)  # nothing else removes old files on this host
            return relay_step(job, start, rest)
        if what == "task":
            for number in SUPERVISOR_SIGNALS:  # the supervisor handles them
                signal.signal(number, lambda *_: None)
            own = [sys.executable, "-I", "-S", sys.argv[0], "slurm", "node", folder]
            return relay_task(job, start, own)
        if what == "notice":
            job.write_notice(start)
            return 0
        if what == "stop":
            plan = job.job().plan
            job.order_start_to_stop(start, ended_by_manager(plan.manager), plan.settings.grace)
            if is_preempted():
                job.write_preempted(start)
            if not plan.settings.relaunch:
                job.remove_secrets()  # Slurm may kill what comes after this
            return 0
        return end(job, start, int(rest[0]))
    except Refused as refused:
        sys.stderr.write("clusterddp: %s%s\n" % (refused.message, "; " + refused.remedy if refused.remedy else ""))
        return EXIT_NOT_THE_SCRIPT
