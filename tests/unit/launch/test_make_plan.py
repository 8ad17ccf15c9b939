"""The launch plan: one argv for all hosts, a small environment for each."""

from __future__ import annotations

import re
from typing import Any

import pytest

from clusterddp.errors import PlanError, UsageError
from clusterddp.launch.make_plan import check_restarts, predicted_ranks
from clusterddp.remote.shared.run.host_settings import HostSettings
from clusterddp.remote.shared.run.node_env import Node
from clusterddp.remote.shared.run.plan import StorePlan
from clusterddp.remote.shared.run.unplaced_plan import choose_backend
from tests.remedies import remedy
from tests.unit.plan_made import changed_node, launch_plan


def node(rank: int, **changes: Any) -> Node:
    base = Node(
        host=f"gpu{rank:02}",
        nproc=1,
        address=f"10.0.0.{rank + 1}",
        interface="eth0",
        python="/opt/py/bin/python",
        env={},
        secrets=(),
        settings=HostSettings(ports=(29400, 29499)),
        workdir="/home/u/clusterddp/p",
        cwd="/home/u/clusterddp/p",
        run_dir="/home/u/.clusterddp/dirs/r",
    )
    return changed_node(base, **changes)


def plan_of(*nodes: Node, **options: Any) -> Any:
    return launch_plan(nodes, **options)


def test_every_host_gets_the_same_argv_and_its_own_address() -> None:
    plan = plan_of(node(0, nproc=2), node(1))
    first, second = plan.node_plan(0), plan.node_plan(1)
    assert first.argv == second.argv
    assert list(first.argv) == [
        "-m", "torch.distributed.run", "--nnodes", "2", "--rdzv-id", "abc.1", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "10.0.0.1:{port}", "--max-restarts", "0", "train.py",
    ]  # fmt: skip
    assert [n.env["PET_LOCAL_ADDR"] for n in (first, second)] == ["10.0.0.1", "10.0.0.2"]
    assert [n.env["PET_NPROC_PER_NODE"] for n in (first, second)] == ["2", "1"]
    assert plan.shared.world_size == 3


def test_only_the_first_host_has_the_store() -> None:
    plan = plan_of(node(0), node(1))
    assert plan.node_plan(0).store == StorePlan("10.0.0.1")
    assert plan.node_plan(0).host_settings.ports == (29400, 29499)
    assert plan.node_plan(1).store is None


def test_no_agent_is_left_to_guess_whether_it_hosts_the_rendezvous() -> None:
    plan = plan_of(node(0), node(1))
    for rank in (0, 1):
        assert "is_host=false" in plan.node_plan(rank).env["PET_RDZV_CONF"]


def test_interfaces_are_exact_for_nccl_and_plain_for_gloo() -> None:
    env = plan_of(node(0, interface="eth1")).node_plan(0).env
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == ("=eth1", "eth1")


def test_what_the_user_sets_wins_and_the_command_line_wins_over_the_inventory() -> None:
    plan = plan_of(node(0, env={"A": "host", "GLOO_SOCKET_IFNAME": "ib0"}), env={"A": "run", "B": "run"})
    env = plan.node_plan(0).env
    assert (env["A"], env["B"], env["GLOO_SOCKET_IFNAME"]) == ("run", "run", "ib0")


def test_each_worker_has_its_share_of_the_threads_unless_somebody_sets_it() -> None:
    plan = plan_of(node(0, threads=4), node(1, threads=2, env={"OMP_NUM_THREADS": "7"}), node(2))
    told = [plan.node_plan(member) for member in range(3)]
    assert [one.env.get("OMP_NUM_THREADS") for one in told] == ["4", "7", None]
    assert ["OMP_NUM_THREADS" in one.yielding for one in told] == [True, False, True]
    plan = plan_of(node(0, threads=4), env={"OMP_NUM_THREADS": "1"})
    assert plan.node_plan(0).env["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in plan.node_plan(0).yielding


def test_an_ipv6_endpoint_is_bracketed() -> None:
    plan = plan_of(node(0, address="fd00::1"))
    assert plan.shared.argv[plan.shared.argv.index("--rdzv-endpoint") + 1] == "[fd00::1]:{port}"


def test_nodes_on_one_machine_get_a_loopback_address_each_in_their_order() -> None:
    plan = plan_of(node(0, address="127.0.0.1", host="b"), node(1, address="127.0.0.1", host="a"))
    assert [n.address for n in plan.nodes] == ["127.0.1.100", "127.0.1.101"]
    assert predicted_ranks(plan.nodes, "c10d") == {"b": (0, 0), "a": (1, 1)}


def test_a_loopback_address_among_several_machines_is_refused() -> None:
    with pytest.raises(PlanError, match="loopback") as said:
        plan_of(node(0, address="127.0.0.1"), node(1, address="127.0.0.1"), node(2))
    assert remedy("launch/make_plan.py", "set clusterddp_address").found(str(said.value))
    plan_of(node(0, address="10.0.0.8"), node(1, address="10.0.0.9"), node(2))


def test_a_run_without_nodes_is_refused() -> None:
    with pytest.raises(PlanError, match="no host takes part"):
        plan_of()


@pytest.mark.parametrize("argument", ["--rdzv-id=7", "--nnodes", "--rdzv_endpoint=a:1", "-t"])
def test_a_torchrun_option_that_the_plan_sets_is_refused_by_name(argument: str) -> None:
    with pytest.raises(UsageError, match="is set by clusterddp itself"):
        plan_of(node(0), torchrun_arg=(argument,))


def test_a_dry_run_shows_names_of_secrets_and_never_values() -> None:
    text = plan_of(node(0, secrets=("HOST_TOKEN",)), secrets=("WANDB_KEY",), args=("a b", "$(x)", "it's")).render()
    assert "export WANDB_KEY=<secret>" in text
    assert "export HOST_TOKEN=<secret>" in text
    assert re.search(r"'a b' '\$\(x\)' 'it'\"'\"'s'$", text.strip())


def test_a_dry_run_shows_no_value_of_a_variable_that_looks_like_a_secret() -> None:
    text = plan_of(node(0, env={"API_KEY": "hidden1"}), env={"HF_TOKEN": "hidden2", "LR": "3e-4"}).render()
    assert "hidden" not in text
    for line in ("export API_KEY=<secret>", "export HF_TOKEN=<secret>", "export LR=3e-4"):
        assert line in text.splitlines()


def test_a_dry_run_can_be_pasted_into_zsh_which_expands_what_begins_with_an_equals_sign() -> None:
    env = {"NCCL_SOCKET_IFNAME": "=eth0", "B": "='x", "C": "a=b", "D": "a:=b"}
    lines = plan_of(node(0), env=env, args=("=x",)).render().strip().splitlines()
    exports = [line for line in lines if line.startswith(("export NCCL_", "export B=", "export C=", "export D="))]
    assert exports == ["export B='='\"'\"'x'", "export C=a=b", "export D='a:=b'", "export NCCL_SOCKET_IFNAME='=eth0'"]
    assert lines[-1].endswith(" '=x'")


def test_ranks_follow_the_inventory_and_under_c10d_the_addresses_as_text() -> None:
    nodes = [node(0, address="10.0.0.9", nproc=2), node(1, address="10.0.0.10"), node(2, address="10.0.0.1", nproc=4)]
    assert predicted_ranks(nodes, "clusterddp") == {"gpu00": (0, 1), "gpu01": (2, 2), "gpu02": (3, 6)}
    assert predicted_ranks(nodes, "c10d") == {"gpu02": (0, 3), "gpu01": (4, 4), "gpu00": (5, 6)}


@pytest.mark.parametrize(
    ("wanted", "versions", "states", "backend"),
    [
        ("auto", ["2.6.0", "2.13.0+cpu"], ["/s", "/s"], "clusterddp"),
        ("auto", ["2.10.0", "3.0"], ["/s", "/s"], "clusterddp"),
        ("auto", ["2.13.0", "2.5.1+cu124"], ["/s", "/s"], "c10d"),
        ("auto", ["2.13.0", ""], ["/s", "/s"], "c10d"),
        ("auto", ["2.13.0"], ["/a:b"], "c10d"),
        ("c10d", ["2.13.0"], ["/s"], "c10d"),
    ],
)
def test_the_plugin_is_used_where_every_torch_finds_it(
    wanted: str, versions: list[str], states: list[str], backend: str
) -> None:
    assert choose_backend(wanted, versions, states) == backend


def test_a_plan_by_hand_uses_what_torchrun_has() -> None:
    text = plan_of(node(0), rdzv_backend="clusterddp").render()
    assert "--rdzv-backend c10d" in text
    assert "clusterddp --rdzv" not in text


def test_an_elastic_plan_says_least_and_most() -> None:
    plan = plan_of(node(0), node(1), node(2), nnodes=(2, 4), rdzv_backend="clusterddp")
    assert plan.shared.argv[plan.shared.argv.index("--nnodes") + 1] == "2:4"
    told = plan.node_plan(1)
    settings = told.settings
    assert (settings.elastic, settings.min_nodes, settings.max_nodes, told.nnodes) == (True, 2, 4, 3)
    assert told.record.min_nodes == 2


def test_signs_of_life_are_closer_only_where_the_clocks_agree() -> None:
    def conf(offset: float, *, elastic: bool) -> str:
        ahead = node(1, clock_offset_ns=int(offset * 1e9))
        found = plan_of(node(0), ahead, nnodes=(1, 2) if elastic else None).node_plan(0).env["PET_RDZV_CONF"]
        return str(found)

    assert "keep_alive_interval=2,keep_alive_max_attempt=3" in conf(1.9, elastic=True)
    assert "keep_alive" not in conf(2.1, elastic=True)
    assert "last_call_timeout=3" in conf(2.1, elastic=True)
    assert conf(0, elastic=False) == "is_host=false,join_timeout=300,read_timeout=60"


def test_clocks_that_would_shrink_a_job_under_c10d_are_refused() -> None:
    late = node(1, clock_offset_ns=-4 * 10**9, clock_error_ns=10**9)
    with pytest.raises(PlanError, match=r"the clocks of gpu01 and gpu00 differ by 5\.0 s"):
        plan_of(node(0), late)
    assert plan_of(node(0), late, rdzv_backend="clusterddp")


def test_the_local_rank_is_passed_as_the_first_argument_and_only_where_it_is_wanted() -> None:
    given = ("$local_rank", "${local_rank}", "$$", "$x")
    plan = plan_of(node(0), args=given, pass_local_rank=True)
    assert plan.shared.argv[-6:] == (
        "train.py",
        "--local-rank=${local_rank}",
        "$$local_rank",
        "$${local_rank}",
        "$$$$",
        "$x",
    )
    assert "--local-rank=${local_rank}" not in plan_of(node(0), args=given).shared.argv


def test_a_static_plan_tells_each_agent_its_rank() -> None:
    text = plan_of(node(0), node(1), rdzv_backend="static").render()
    assert "export PET_NODE_RANK=0" in text
    assert "export PET_NODE_RANK=1" in text
    assert text.count("--rdzv-backend static --rdzv-endpoint 10.0.0.1:29400") == 2


def test_restarts_that_a_torch_cannot_do_are_refused() -> None:
    versions = {"gpu00": "2.4.1", "gpu01": "2.3.1+cu121"}
    with pytest.raises(
        PlanError, match=r"gpu01 has torch 2\.3\.1\+cu121, whose c10d cannot start workers again"
    ) as said:
        check_restarts(1, "c10d", versions)
    assert remedy("launch/make_plan.py", "take --relaunch in place of --max-restarts, or another torch").found(
        str(said.value)
    )
    check_restarts(0, "c10d", versions)
    check_restarts(1, "c10d", {**versions, "gpu01": "2.4.1"})
    check_restarts(1, "c10d", {"gpu01": "2.3.1"})
    check_restarts(1, "clusterddp", {"gpu00": "2.13.0", "gpu01": "2.6.0"})
