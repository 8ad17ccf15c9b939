"""Build a node's environment for torchrun from the run's settings and the node's facts. Pure.

The operator calls it for SSH; a Slurm node calls the same function for itself. torchrun reads its own options
from ``PET_*``, so the argv stays identical on every host and everything particular stands here.
"""

import math
from typing import Dict, Mapping, NamedTuple, Optional, Tuple

from .host_settings import HostSettings
from .run_settings import RunSettings

# Left over from another launcher or torchrun on this host, these would steer ours.
STALE_VARIABLES = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "PYTHON_EXEC",
}  # fmt: skip
STALE_PREFIXES = ("PET_", "TORCHELASTIC_", "CLUSTERDDP_")

STATIC = "static"  # a rendezvous backend: rank 0's agent has the store, ranks are given, there are no restarts
JOIN_TIMEOUT = 300  # seconds an agent waits for the other nodes
READ_TIMEOUT = 60  # seconds an agent waits for the store to answer
# For c10d only; our own rendezvous does not use them.
LAST_CALL_TIMEOUT = 3  # seconds an elastic start waits for more than MIN nodes; c10d's default is 30
HEARTBEAT_INTERVAL, MAX_MISSED_HEARTBEATS = 2, 3  # seconds between two heartbeats; how many may be missed
TIGHT_HEARTBEAT_TIMEOUT = HEARTBEAT_INTERVAL * MAX_MISSED_HEARTBEATS
HEARTBEAT_TIMEOUT = 15  # c10d's default


THREADS = "OMP_NUM_THREADS"
PROBED = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", THREADS}  # unless the user set them


def without_other_launchers(environment: Mapping[str, str]) -> Dict[str, str]:
    """Remove the variables that another launcher or torchrun has left in an environment."""
    return {
        n: value for n, value in environment.items() if n not in STALE_VARIABLES and not n.startswith(STALE_PREFIXES)
    }


class Node(NamedTuple):
    """One host's part in a run, as its facts and the inventory determine it."""

    host: str
    nproc: int
    address: str  # of the data plane, as the interface
    interface: Optional[str]
    python: str
    env: Mapping[str, str]  # the host's, from the inventory
    secrets: Tuple[str, ...]
    settings: HostSettings
    workdir: str
    cwd: str
    run_dir: str
    clock_offset_ns: int = 0
    clock_error_ns: int = 0
    devices: Optional[str] = None  # CUDA_VISIBLE_DEVICES; None: all
    threads: Optional[int] = None  # each worker's OMP_NUM_THREADS; None leaves it to torchrun


def node_environment(run: str, settings: RunSettings, node: Node) -> Dict[str, str]:
    """Build one node's variables; the user's own override all except those that we need to control the run."""
    values = {"PYTHONUNBUFFERED": "1"}
    if node.interface:
        # Exact match: without "=", NCCL takes a prefix and eth1 would match eth10.
        values["NCCL_SOCKET_IFNAME"] = "=" + node.interface
        values["GLOO_SOCKET_IFNAME"] = node.interface
        values["TP_SOCKET_IFNAME"] = node.interface
    if node.threads is not None:
        values[THREADS] = str(node.threads)
    if settings.debug_comm:
        values.update(NCCL_DEBUG="INFO", TORCH_DISTRIBUTED_DEBUG="DETAIL", TORCH_CPP_LOG_LEVEL="INFO")
    if node.devices is not None:
        values["CUDA_VISIBLE_DEVICES"] = node.devices
    values.update(node.env)
    values.update(settings.env)
    values.update(
        # By default torch keeps one store over all rounds; workers of a later round then read addresses of the
        # one before, and about half of all restarts are lost.
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        PET_LOCAL_ADDR=node.address,
        PET_NPROC_PER_NODE=str(node.nproc),
        # Without is_host, torchrun compares host names; a 127.0.1.1 line in /etc/hosts then costs minutes and the run.
        PET_RDZV_CONF=rendezvous_conf(elastic=settings.elastic, tight=settings.tight),
        PET_SHUTDOWN_TIMEOUT=str(math.ceil(settings.grace)),  # torch 2.13; older ones have 30 s
        PET_MONITOR_INTERVAL="0.1",  # torch 2.3 and older: 5 s
        CLUSTERDDP_RUN_ID=run,
        CLUSTERDDP_RUN_DIR=node.run_dir,
        CLUSTERDDP_HOST=node.host,
    )
    return values


def rendezvous_conf(*, elastic: bool, tight: bool) -> str:
    """Build torchrun's --rdzv-conf; a torch version ignores the keys it does not know."""
    conf = "is_host=false,join_timeout=%d,read_timeout=%d" % (JOIN_TIMEOUT, READ_TIMEOUT)
    if elastic:
        conf += ",last_call_timeout=%d" % LAST_CALL_TIMEOUT
    if elastic and tight:
        conf += ",keep_alive_interval=%d,keep_alive_max_attempt=%d" % (HEARTBEAT_INTERVAL, MAX_MISSED_HEARTBEATS)
    return conf


def yielding_variables(settings: RunSettings, node: Node) -> Tuple[str, ...]:
    """The probed variables that the user has not set: a value in the host's environment or setup lines wins."""
    return tuple(sorted(PROBED - set(settings.env) - set(node.env)))
