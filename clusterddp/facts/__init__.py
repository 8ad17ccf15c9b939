"""What is known of hosts, as values, and functions that draw conclusions from them (GPUs, networks), without I/O.

clusterddp/probe/dial_hosts.py collects them.
"""

from clusterddp.facts.bench import Bench, Together
from clusterddp.facts.bench_results import (
    AllReduce,
    Gemm,
    Lateness,
    Measured,
    expected,
    late_ranks,
    odd_sums,
    slow_gpus,
)
from clusterddp.facts.bench_schedule import (
    all_rounds,
    always_bad,
    at_once,
    first_rounds,
    neighbours,
    rows_of,
    second_round,
)
from clusterddp.facts.dials import BLACK_HOLE, Dialled, Pair, lost_not_dropped, matrix
from clusterddp.facts.gpu_assignment import GpuPolicy, assign_gpus, check_gpus, spare_gpus, workers
from clusterddp.facts.gpu_health import Card, GpuCopies, GpuHealth, GpuStart, Trial, Xid
from clusterddp.facts.health import Cgroup, FolderDisk, Hca, Health, LoginPython, Lookup, PortOwner, Write
from clusterddp.facts.host import Facts, Gpu, Interface, TorchFacts, facts_request
from clusterddp.facts.job_paths import job_paths
from clusterddp.facts.library_defaults import GLOO, NCCL, elected, fits, gloo_cards, nccl_cards
from clusterddp.facts.network import (
    OK,
    Candidate,
    DialFailure,
    candidates,
    dials,
    is_virtual,
    loopback,
    nearest,
)
from clusterddp.facts.speeds import SlowHost, Slowness, Speed, median, slow_pairs, slowness

__all__ = [
    "BLACK_HOLE",
    "GLOO",
    "NCCL",
    "OK",
    "AllReduce",
    "Bench",
    "Candidate",
    "Card",
    "Cgroup",
    "DialFailure",
    "Dialled",
    "Facts",
    "FolderDisk",
    "Gemm",
    "Gpu",
    "GpuCopies",
    "GpuHealth",
    "GpuPolicy",
    "GpuStart",
    "Hca",
    "Health",
    "Interface",
    "Lateness",
    "LoginPython",
    "Lookup",
    "Measured",
    "Pair",
    "PortOwner",
    "SlowHost",
    "Slowness",
    "Speed",
    "Together",
    "TorchFacts",
    "Trial",
    "Write",
    "Xid",
    "all_rounds",
    "always_bad",
    "assign_gpus",
    "at_once",
    "candidates",
    "check_gpus",
    "dials",
    "elected",
    "expected",
    "facts_request",
    "first_rounds",
    "fits",
    "gloo_cards",
    "is_virtual",
    "job_paths",
    "late_ranks",
    "loopback",
    "lost_not_dropped",
    "matrix",
    "median",
    "nccl_cards",
    "nearest",
    "neighbours",
    "odd_sums",
    "rows_of",
    "second_round",
    "slow_gpus",
    "slow_pairs",
    "slowness",
    "spare_gpus",
    "workers",
]
