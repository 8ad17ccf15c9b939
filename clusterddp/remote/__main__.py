"""The zipapp's entry: one name per process role on a host."""

import sys
from typing import List, Optional

ROLES = {
    "helper": ".helper.loop",  # the other end of an operator's connection; dies with it
    "supervisor": ".supervisor.process",  # owns one node of one run; outlives every connection
    "fence": ".supervisor.fence",  # the process above a supervisor, where a warm server has begun both
    "store": ".rendezvous.store",  # the rendezvous store of a run
    "shim": ".worker.shim",  # the parent of one worker
    "beat": ".workdir.heartbeat",  # says in a workdir that other hosts may share that a run is live there
    "bundle": ".supervisor.node_bundle",  # writes down what a node knows of a run that hangs
    "webhook": ".supervisor.webhook_process",  # tells a URL how a run fares
    "slurm": ".slurm.job_role",  # a job's part of a run that Slurm starts: on each node, and in the batch script
}


def main(argv: Optional[List[str]] = None) -> int:
    """Run the role named first; returns its exit status."""
    role, *rest = sys.argv[1:] if argv is None else argv
    if role not in ROLES:
        sys.stderr.write("no such role: %r\n" % role)
        return 2
    module = __import__(str(__package__) + ROLES[role], fromlist=["main"])  # importlib's own is an import more
    return int(module.main(rest))


if __name__ == "__main__":
    sys.exit(main())
