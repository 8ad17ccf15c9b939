"""Plans: a node's as a run of one host has it, and a launch plan of given nodes."""

from __future__ import annotations

import json
import tempfile
from typing import TYPE_CHECKING, Any

from clusterddp.hosts.zipapp import bundle
from clusterddp.launch.make_plan import LaunchPlan, make_plan, run_settings
from clusterddp.launch.options import RunOptions
from clusterddp.remote.shared.run.host_settings import HostSettings
from clusterddp.remote.shared.run.plan import NodePlan, Peer, StorePlan
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.spool.creation import create_spool

if TYPE_CHECKING:
    from clusterddp.remote.spool.layout import Spool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.remote.shared.run.node_env import Node

PLAN = NodePlan(
    run="run1",
    attempt=1,
    node="0-h",
    node_rank=0,
    nnodes=1,
    host="h",
    argv=("-m", "torch.distributed.run", "train.py"),
    python="/opt/py/bin/python",
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
    record=RunRecord(hosts=("h",)),
    peers=(Peer(host="h", address="10.0.0.1", nproc=2),),
    host_settings=HostSettings(setup=("module load cuda",), ports=(29400, 29499)),
)


def changed(plan: NodePlan, **changes: Any) -> NodePlan:
    """A plan with other fields: its own, or those of its run's or host's settings."""
    inside = {*changes} - {*NodePlan._fields}
    of_host = {name: changes.pop(name) for name in inside & {*HostSettings._fields}}
    of_run = {name: changes.pop(name) for name in inside - {*HostSettings._fields}}
    settings, host_settings = plan.settings._replace(**of_run), plan.host_settings._replace(**of_host)
    return plan._replace(settings=settings, host_settings=host_settings, **changes)


def changed_node(node: Node, **changes: Any) -> Node:
    """A node with other fields, its own or those of its host's settings."""
    of_host = {name: changes.pop(name) for name in {*changes} - {*node._fields}}
    return node._replace(settings=node.settings._replace(**of_host), **changes)


def plan_text(**changes: Any) -> str:
    """What ``plan.json`` holds."""
    return json.dumps(to_fields(changed(PLAN, **changes)))


def launch_plan(
    nodes: Sequence[Node],
    run: str = "abc",
    *,
    rdzv_backend: str = "c10d",
    lease: float | None = None,
    secrets: Sequence[str] = (),
    record: RunRecord | None = None,
    **options: Any,
) -> LaunchPlan:
    """The plan of a run with these options; the secrets need not be set here."""
    wanted = RunOptions(**{"script": "train.py", **options})
    settings = run_settings(wanted, rdzv_backend)._replace(lease=lease)
    record = record or RunRecord(hosts=())
    return make_plan(run=run, nodes=nodes, options=wanted, settings=settings, secrets=secrets, record=record)


def made_spool(spool: Spool, plan: NodePlan = PLAN) -> bool:
    """Make a spool as a start does; False if it was there already."""
    with tempfile.NamedTemporaryFile() as code:
        code.write(bundle().code)
        code.flush()
        return create_spool(spool, plan, code.fileno())
