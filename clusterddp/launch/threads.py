"""Set how many threads each worker's OpenMP and BLAS libraries may use (OMP_NUM_THREADS). Pure.

torchrun sets 1 on a host with several workers, with a warning on every host, and nothing on a host with one. clusterddp
gives each worker its share of the cores that its host may use. A value set by the user, the inventory, the host or a
setup line is kept: launch/make_plan.py passes it on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from clusterddp.remote.shared.run.node_env import THREADS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.facts.host import Facts
    from clusterddp.remote.shared.run.node_env import Node

_log = logging.getLogger("clusterddp")


def with_threads(nodes: Sequence[Node], facts: Mapping[str, Facts], env: Mapping[str, str]) -> list[Node]:
    """Set each node's threads per worker to its share of the cores, at least 1; nodes on one machine share its cores.

    ``facts`` are by host name; ``env`` are the variables that the user sets for all hosts.
    """
    workers: dict[str, int] = {}
    for node in nodes:
        boot = facts[node.host].boot
        workers[boot] = workers.get(boot, 0) + node.nproc
    return [_with_share(node, facts[node.host], workers[facts[node.host].boot], env) for node in nodes]


def _with_share(node: Node, facts: Facts, workers: int, env: Mapping[str, str]) -> Node:
    """Set a node's threads; ``workers`` is the number on its machine. Log where the value comes from."""
    share = max(1, facts.usable_cores // workers)
    if THREADS in env:
        why, value = "by the command", env[THREADS]
    elif facts.omp_num_threads is not None:
        why, value = "by clusterddp_env, a setup line or the host", facts.omp_num_threads
    else:
        why, value = f"cores that may be used: {facts.usable_cores}; workers there: {workers}", str(share)
    _log.debug("%s: %s=%s (%s)", node.host, THREADS, value, why)
    return node._replace(threads=share)
