"""What is known of hosts: values, and pure judgements over them (GPUs, networks).

Filled by clusterddp/probe.py; nothing here touches a host.
"""

from clusterddp.facts.assign import GpuPolicy, assign_gpus, spare_gpus
from clusterddp.facts.gpus import check_gpus, check_torch, workers
from clusterddp.facts.health import Cgroup, Folder, Health, Login, Lookup, Owner, Write
from clusterddp.facts.network import Candidate, Failure, candidates, choose, dials, loopback, nearest
from clusterddp.facts.pairs import Dialled, Pair, matrix
from clusterddp.facts.values import Facts, Gpu, Interface, TorchFacts

__all__ = [
    "Candidate",
    "Cgroup",
    "Dialled",
    "Facts",
    "Failure",
    "Folder",
    "Gpu",
    "GpuPolicy",
    "Health",
    "Interface",
    "Login",
    "Lookup",
    "Owner",
    "Pair",
    "TorchFacts",
    "Write",
    "assign_gpus",
    "candidates",
    "check_gpus",
    "check_torch",
    "choose",
    "dials",
    "loopback",
    "matrix",
    "nearest",
    "spare_gpus",
    "workers",
]
