"""What the plans of all nodes have in common is packed once; each host makes its whole plan of it and of its own."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from clusterddp.launch.ssh.over_ssh import SharedPlan
from clusterddp.remote.shared.run.host_settings import HostSettings
from clusterddp.remote.shared.run.node_env import Node
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.supervisor.start import _read_order
from tests.unit.plan_made import launch_plan

ORDER: dict[str, Any] = {"secrets": {}, "key": "00", "webhook": None}


def plan(count: int) -> Any:
    return launch_plan(
        [
            Node(
                host=f"gpu{rank:04}",
                nproc=8,
                address=f"10.0.{rank >> 8}.{rank & 255}",
                interface="eth0",
                python="/opt/py/bin/python",
                env={"A": str(rank)},
                secrets=("TOKEN",) if rank == 1 else (),
                settings=HostSettings(ports=(29400, 29499 + rank)),
                workdir=f"/home/u{rank}/p",
                cwd="/home/u/p",
                run_dir="/home/u/r",
            )
            for rank in range(count)
        ]
    )


@pytest.mark.parametrize("member", [0, 1, 2])
def test_a_host_reads_the_plan_that_was_made_for_it(member: int) -> None:
    made = plan(3)
    common = made.common
    shared, whole = SharedPlan.of(common), made.node_plan(member, common)
    order = json.loads(json.dumps({**ORDER, "plan": shared.rest_of(whole)}))
    assert _read_order(order, shared.packed).plan == whole


def test_the_names_of_all_nodes_are_not_in_what_each_host_is_sent_alone() -> None:
    made = plan(300)
    common = made.common
    own = json.dumps(SharedPlan.of(common).rest_of(made.node_plan(7, common)))
    assert "gpu0007" in own
    assert "gpu0008" not in own


@pytest.mark.parametrize("shared", [b"x", zlib.compress(b"[]"), zlib.compress(b"{"), zlib.compress(b"{}")[:5]])
def test_damaged_shared_parts_are_refused_as_a_damaged_plan(shared: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        _read_order({**ORDER, "plan": {}}, shared)


def test_a_whole_plan_needs_no_shared_part() -> None:
    whole = plan(2).node_plan(1)
    assert _read_order({**ORDER, "plan": json.loads(json.dumps(to_fields(whole)))}, b"").plan == whole
