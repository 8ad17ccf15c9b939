"""A node's plan as a run of one host has it."""

from __future__ import annotations

import json
import tempfile
from typing import TYPE_CHECKING, Any

from clusterddp.hosts.zipapp import bundle
from clusterddp.remote.shared.run.node_env import Policy
from clusterddp.remote.shared.run.plan import NodePlan, Peer, StorePlan
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.schema.record import written
from clusterddp.remote.spool.creation import create_spool

if TYPE_CHECKING:
    from clusterddp.remote.spool.layout import Spool

PLAN = NodePlan(
    run="run1",
    attempt=1,
    node="0-h",
    node_rank=0,
    nnodes=1,
    host="h",
    argv=("-m", "torch.distributed.run", "train.py"),
    python="/opt/py/bin/python",
    setup=("module load cuda",),
    env={"A": "1"},
    workdir="/home/u/work",
    cwd="/home/u/work",
    run_dir="/home/u/.clusterddp/rundirs/run1-h",
    nproc=2,
    world_size=2,
    store=StorePlan("10.0.0.1"),
    secrets=("TOKEN",),
    clock_offset_ns=-7,
    clock_error_ns=2_000_000,
    time_limit=None,
    record=RunRecord(hosts=("h",)),
    peers=(Peer(host="h", address="10.0.0.1", nproc=2),),
    policy=Policy(run="run1", env={}),
    ports=(29400, 29499),
)


def plan_text(**changes: Any) -> str:
    """What ``plan.json`` holds."""
    return json.dumps(written(PLAN._replace(**changes)))


def made_spool(spool: Spool, plan: NodePlan = PLAN) -> bool:
    """Make a spool as a start does; False if it was there already."""
    with tempfile.NamedTemporaryFile() as code:
        code.write(bundle().code)
        code.flush()
        return create_spool(spool, plan, code.fileno())
