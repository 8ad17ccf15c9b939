"""What a job of Slurm's would not heed is refused in one line that names the remedy; nothing is passed over."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import UsageError
from clusterddp.inventory import HostEntry, Inventory
from clusterddp.launch.options import RunOptions
from clusterddp.launch.slurm.refused_options import OF_THE_LOGIN, OF_THE_NODES, REFUSED
from clusterddp.launch.slurm.submission import slurm_request

if TYPE_CHECKING:
    from clusterddp.launch.slurm.client.batch_script import JobRequest

# Heeded: in the plan that the nodes get (launch/make_plan.py run_settings), in what Slurm is asked for, or by the sync.
HEEDED = {
    "script", "args", "module", "name", "array", "nnodes", "nproc_per_node", "env", "secret", "time_limit", "relaunch",
    "on_disconnect", "max_restarts", "rdzv_backend", "torchrun_arg", "pass_local_rank", "debug_comm", "grace",
    "no_fork_server", "no_comm_trace", "stall", "on_stall", "pdb", "breakpoint_timeout", "no_sync", "spread", "take",
    "sync_limit", "log_limit", "launcher", "limit", "workdir", "again",
}  # fmt: skip
# How a host is reached, what Slurm's own part has no say in, and what a workdir that nodes share does not need (carry).
OF_A_HOST = {
    "name", "address", "port", "user", "groups", "vars", "connection", "identity_file", "ssh_args", "ansible_python",
    "role", "transport", "launcher", "where", "data_address", "carry", "warm",
}  # fmt: skip


def entry(name: str, **more: Any) -> HostEntry:
    return HostEntry(name=name, address=name, launcher="slurm", **more)


def asked(*hosts: HostEntry, **options: Any) -> JobRequest:
    cluster = Inventory(path=Path("cluster.yaml"), hosts=hosts, groups={})
    return slurm_request(cluster, RunOptions(script="train.py", **options))


def test_every_option_and_every_variable_is_heeded_or_refused() -> None:
    assert {one.name for one in fields(RunOptions)} == HEEDED | REFUSED.keys()
    assert {one.name for one in fields(HostEntry)} == OF_A_HOST | {*OF_THE_NODES, *OF_THE_LOGIN}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpus": "free"}, r"--gpus: Slurm gives a job its GPUs; set clusterddp_gpus to their number a node"),
        ({"share_gpus": True}, r"--share-gpus: Slurm gives a job its GPUs; leave it out; clusterddp_slurm_lines"),
        ({"no_doctor": True}, r"--no-doctor: no node is checked before Slurm has chosen it; leave"),
        ({"skip": "shm"}, r"--skip: no node is checked before Slurm has chosen it; "),
        ({"array": "0-3", "on_disconnect": "stop"}, r"--on-disconnect stop: nobody follows the runs of an array"),
    ],
)
def test_an_option_of_the_ssh_launcher_is_refused_with_its_remedy(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(entry("login1", role="login"), nnodes=2, **given)


@pytest.mark.parametrize(
    ("more", "options", "said"),
    [
        ({"gpus": ("0", "3")}, {}, r"gpu01: clusterddp_gpus: 0, 3: Slurm gives a job its GPUs; write how many"),
        ({"data_address": "10.0.0.1"}, {}, r"gpu01: clusterddp_address: .*; set clusterddp_interface for all"),
        ({"python": "py311"}, {}, r"clusterddp_python of gpu02 is not that of gpu01: .*; set it for both"),
        ({"workdir": "/scratch"}, {}, r"clusterddp_workdir of gpu01 is not that of login1"),
        ({"role": "spare"}, {"relaunch": 1}, r"gpu01: a job of Slurm's has no spares; ask for more nodes"),
    ],
)
def test_a_variable_that_would_not_hold_is_refused(more: dict[str, Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(entry("login1", role="login"), entry("gpu01", **more), entry("gpu02"), **options)


def test_nodes_that_are_named_alike_are_asked_for() -> None:
    hosts = [entry("login1", role="login"), entry("gpu01", gpus=4), entry("gpu02", gpus=4)]
    request = asked(*hosts)
    assert (request.nodelist, request.options["gpus-per-node"]) == ("gpu01,gpu02", "4")
