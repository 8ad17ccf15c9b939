"""What is known of hosts: values, and pure judgements over them (GPUs, networks).

Filled by clusterddp/probe.py; nothing here touches a host.
"""

from clusterddp.facts.assign import GpuPolicy, assign_gpus, spare_gpus
from clusterddp.facts.bench import Bench
from clusterddp.facts.byhand import GLOO, NCCL, elected, fits, gloo_cards, nccl_cards
from clusterddp.facts.gpuhealth import Card, GpuHealth, Peers, Start, Trial, Xid
from clusterddp.facts.gpus import check_gpus, workers
from clusterddp.facts.health import Cgroup, Folder, Hca, Health, Login, Lookup, Owner, Write
from clusterddp.facts.network import OK, Candidate, Failure, candidates, choose, dials, is_virtual, loopback, nearest
from clusterddp.facts.pairing import all_rounds, at_once, first_rounds, neighbours, rows_of, second_round, twice_bad
from clusterddp.facts.pairs import BLACK_HOLE, Dialled, Pair, matrix
from clusterddp.facts.paths import job_paths
from clusterddp.facts.speeds import SlowHost, Slowness, Speed, median, slow_pairs, slowness
from clusterddp.facts.values import Facts, Gpu, Interface, TorchFacts

__all__ = [
    "BLACK_HOLE",
    "GLOO",
    "NCCL",
    "OK",
    "Bench",
    "Candidate",
    "Card",
    "Cgroup",
    "Dialled",
    "Facts",
    "Failure",
    "Folder",
    "Gpu",
    "GpuHealth",
    "GpuPolicy",
    "Hca",
    "Health",
    "Interface",
    "Login",
    "Lookup",
    "Owner",
    "Pair",
    "Peers",
    "SlowHost",
    "Slowness",
    "Speed",
    "Start",
    "TorchFacts",
    "Trial",
    "Write",
    "Xid",
    "all_rounds",
    "assign_gpus",
    "at_once",
    "candidates",
    "check_gpus",
    "choose",
    "dials",
    "elected",
    "first_rounds",
    "fits",
    "gloo_cards",
    "is_virtual",
    "job_paths",
    "loopback",
    "matrix",
    "median",
    "nccl_cards",
    "nearest",
    "neighbours",
    "rows_of",
    "second_round",
    "slow_pairs",
    "slowness",
    "spare_gpus",
    "twice_bad",
    "workers",
]
