"""The launch plan: one argv for all hosts, a small environment for each."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from clusterddp.errors import PlanError, UsageError
from clusterddp.plan import LaunchOptions, Node, make_plan, predicted_ranks


def node(rank: int, **changes: Any) -> Node:
    base = Node(
        host=f"gpu{rank:02}",
        nproc=1,
        address=f"10.0.0.{rank + 1}",
        interface="eth0",
        python="/opt/py/bin/python",
        setup=(),
        env={},
        secrets=(),
        ports=(29400, 29499),
        workdir="/home/u/clusterddp/p",
        cwd="/home/u/clusterddp/p",
        run_dir="/home/u/.clusterddp/dirs/r",
    )
    return replace(base, **changes)


def plan_of(*nodes: Node, **options: Any) -> Any:
    values: dict[str, Any] = {"script": "train.py", "env": {}, **options}
    return make_plan(run="abc", attempt=1, nodes=nodes, options=LaunchOptions(**values), record={"name": None})


def test_every_host_gets_the_same_argv_and_its_own_address() -> None:
    plan = plan_of(node(0, nproc=2), node(1)).with_ports(29400)
    first, second = plan.node_json(0), plan.node_json(1)
    assert first["argv"] == second["argv"]
    assert first["argv"] == [
        "-m", "torch.distributed.run", "--nnodes", "2", "--rdzv-id", "abc.1", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "10.0.0.1:29400", "--max-restarts", "0", "train.py",
    ]  # fmt: skip
    assert [n["env"]["PET_LOCAL_ADDR"] for n in (first, second)] == ["10.0.0.1", "10.0.0.2"]
    assert [n["env"]["PET_NPROC_PER_NODE"] for n in (first, second)] == ["2", "1"]
    assert plan.world_size == 3


def test_only_the_first_host_has_the_store() -> None:
    plan = plan_of(node(0), node(1))
    assert plan.node_json(0)["store"] == {"address": "10.0.0.1", "ports": [29400, 29499]}
    assert plan.node_json(1)["store"] is None


def test_no_agent_is_left_to_guess_whether_it_hosts_the_rendezvous() -> None:
    plan = plan_of(node(0), node(1))
    for rank in (0, 1):
        assert "is_host=false" in plan.environment(rank)["PET_RDZV_CONF"]


def test_interfaces_are_exact_for_nccl_and_plain_for_gloo() -> None:
    env = plan_of(node(0, interface="eth1")).environment(0)
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == ("=eth1", "eth1")


def test_what_the_user_sets_wins_and_the_command_line_wins_over_the_inventory() -> None:
    plan = plan_of(node(0, env={"A": "host", "GLOO_SOCKET_IFNAME": "ib0"}), env={"A": "run", "B": "run"})
    env = plan.environment(0)
    assert (env["A"], env["B"], env["GLOO_SOCKET_IFNAME"]) == ("run", "run", "ib0")


def test_an_ipv6_endpoint_is_bracketed() -> None:
    plan = plan_of(node(0, address="fd00::1")).with_ports(29401)
    assert plan.argv[plan.argv.index("--rdzv-endpoint") + 1] == "[fd00::1]:29401"


def test_nodes_on_one_machine_get_a_loopback_address_each_in_their_order() -> None:
    plan = plan_of(node(0, address="127.0.0.1", host="b"), node(1, address="127.0.0.1", host="a"))
    assert [n.address for n in plan.nodes] == ["127.0.1.100", "127.0.1.101"]
    assert predicted_ranks(plan.nodes) == {"b": (0, 0), "a": (1, 1)}


def test_a_loopback_address_among_several_machines_is_refused() -> None:
    with pytest.raises(PlanError, match="loopback"):
        plan_of(node(0, address="127.0.0.1"), node(1, address="127.0.0.1"), node(2))


def test_a_run_without_nodes_is_refused() -> None:
    with pytest.raises(PlanError, match="no host takes part"):
        plan_of()


@pytest.mark.parametrize("argument", ["--rdzv-id=7", "--nnodes", "--rdzv_endpoint=a:1", "-t"])
def test_a_torchrun_option_that_the_plan_sets_is_refused_by_name(argument: str) -> None:
    with pytest.raises(UsageError, match="is set by clusterddp itself"):
        plan_of(node(0), torchrun_args=(argument,))


def test_a_dry_run_shows_names_of_secrets_and_never_values() -> None:
    text = plan_of(node(0, secrets=("HOST_TOKEN",)), secrets=("WANDB_KEY",), args=("a b", "$(x)", "it's")).render()
    assert "export WANDB_KEY=<secret>" in text
    assert "export HOST_TOKEN=<secret>" in text
    assert re.search(r"'a b' '\$\(x\)' 'it'\"'\"'s'$", text.strip())
