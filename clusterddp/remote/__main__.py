"""The zipapp's entry: one name per process role on a host.

helper      the other end of an operator's connection; dies with it
supervisor  owns one node of one run; outlives every connection
store       the rendezvous store of a run
fence       the process above a supervisor, where a warm server has begun both
shim        the parent of one worker
slurm       a job's part of a run that Slurm starts: on each node, and in the batch script
beat        says in a workdir that other hosts may share that a run is live there
webhook     tells a URL how a run fares
"""

import importlib
import sys
from typing import List, Optional

ROLES = {
    "helper": ".helper.loop",
    "supervisor": ".supervisor.process",
    "fence": ".supervisor.fence",
    "store": ".rendezvous.store",
    "shim": ".worker.shim",
    "beat": ".workdir.heartbeat",
    "webhook": ".supervisor.webhook_process",
    "slurm": ".slurm.job_role",
}


def main(argv: Optional[List[str]] = None) -> int:
    """Run the role named first; returns its exit status."""
    role, *rest = sys.argv[1:] if argv is None else argv
    if role not in ROLES:
        sys.stderr.write("no such role: %r\n" % role)
        return 2
    module = importlib.import_module(ROLES[role], __package__)
    return int(module.main(rest))


if __name__ == "__main__":
    sys.exit(main())
