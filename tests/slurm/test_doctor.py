"""`clusterddp doctor` where Slurm has the hosts: Slurm's own checks, and all others on the nodes of a short job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.lean import training_python
from tests.slurm.seen import nothing_is_left, thorough, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli import User
    from tests.lab.slurm import Slurm

need_torch()
pytestmark = pytest.mark.torch


@pytest.fixture
def user(slurm: Slurm, tmp_path: Path) -> User:
    return user_of(slurm, tmp_path, {}, clusterddp_python=training_python())


def found(user: User, *words: str) -> dict[str, Any]:
    """What each check says: verdict, hosts and message of the worst."""
    told: dict[str, Any] = {}
    for one in user.run("doctor", "--json", *words).json["checks"]:
        told.setdefault(one["name"], (one["verdict"], one["hosts"], one["message"]))
    return told


def test_slurm_and_the_nodes_of_a_short_job_are_looked_at(user: User, slurm: Slurm) -> None:
    told = found(user, "--nnodes", "2", "--skip", "Rehearsal,Network,Machines")
    assert told["slurm-controller"][0] == "pass"
    assert told["slurm-job"] == ("pass", ["gpu00"], "Slurm gives a short job the nodes that are asked for")
    assert told["slurm-gpus"][1:] == (["gpu01", "gpu02"], "Slurm gives out 1 GPU there (Gres), and 0 are seen")
    assert told["slurm-folders"][:2] == told["torch"][:2] == ("pass", ["gpu01", "gpu02"])
    nothing_is_left(slurm)


@thorough
def test_all_of_the_doctor_runs_in_the_job_with_its_rehearsal(user: User, slurm: Slurm) -> None:
    told = found(user, "--nnodes", "2")
    assert told["rehearsal"][:2] == told["live-runs"][:2] == told["network"][:2] == ("pass", ["gpu01", "gpu02"])
    assert "shared" not in told
    nothing_is_left(slurm)


@thorough
def test_what_no_job_would_get_is_told_and_no_job_is_left(user: User, slurm: Slurm) -> None:
    many = found(user, "--nnodes", "5")
    assert many["slurm-job"][0] == "fail"
    assert many["slurm-job"][2] in {
        "Slurm would never start such a job: PartitionConfig",
        "Slurm refuses the job: Requested node configuration is not available",  # 24.11 and newer
    }
    assert many["slurm-partition"][::2] == ("fail", "partition main gives a job 2 nodes at most, and 5 are asked for")
    assert "torch" not in many
    assert (
        found(user, "--partition", "nope")["slurm-job"][2] == "Slurm refuses the job: Invalid partition name specified"
    )
    nothing_is_left(slurm)


@thorough
def test_of_several_partitions_one_that_takes_the_job_is_enough_for_doctor_and_run(
    user: User, own_slurm: Slurm
) -> None:
    small = ["scontrol", "create", "PartitionName=small", "Nodes=ALL", "MaxNodes=1", "State=UP"]
    own_slurm.controller.run(small, user="root")
    variables = {"clusterddp_python": training_python(), "clusterddp_slurm_partition": "small,main"}
    own_slurm.write_inventory(variables, user.folder / "inventory.yaml")
    told = found(user, "--nnodes", "2", "--only", "slurm-partition,slurm-nodes,slurm-job")
    assert {name: verdict for name, (verdict, _, _) in told.items()} == dict.fromkeys(told, "pass")
    user.write("nothing.py", "")
    for _ in range(3):  # Slurm's first reason is now that of the one, now that of the other
        done = user.run("run", "--nnodes", "2", "nothing.py")
        assert done.code == 0, done.err
        assert "never starts" not in done.err
    nothing_is_left(own_slurm)


@thorough
def test_a_drained_node_is_told_with_its_reason_and_a_dead_controller_by_name(user: User, own_slurm: Slurm) -> None:
    own_slurm.write_inventory({"clusterddp_python": training_python()}, user.folder / "inventory.yaml")
    drain = ["scontrol", "update", "NodeName=gpu02", "State=DRAIN", "Reason=bad DIMM"]
    own_slurm.controller.run(drain, user="root")
    more = "Prolog=/bin/true\nTmpFS=/scratch\n"
    for host in own_slurm.lab.hosts:
        host.run(["sh", "-c", f"printf '{more}' >>/etc/slurm/slurm.conf"], user="root")
    own_slurm.controller.run(["scontrol", "reconfigure"], user="root")
    own_slurm.controller.run(["scontrol", "update", "PartitionName=main", "MaxTime=2"], user="root")
    told = found(user, "--only", "Slurm")
    assert told["slurm-job"][0] == told["slurm-folders"][0] == "pass"
    assert told["slurm-nodes"][::2] == ("warn", "gpu02: IDLE+DRAIN: bad DIMM")
    assert told["slurm-devices"][::2] == ("warn", "TaskPlugin is task/none: a job can use GPUs of others")
    assert told["slurm-prolog"][0] == "warn"
    assert told["slurm-tmp"] == ("warn", ["gpu01"], "Slurm's TmpFS is /scratch, and a job's temporary files go to /tmp")
    own_slurm.controller.run(["pkill", "-x", "munged"], user="root")
    told = found(user, "--only", "slurm-controller,slurm-nodes")
    assert told["slurm-controller"][0] == "fail"
    assert told["slurm-controller"][2].startswith("munged does not run on the login host (")
    assert told["slurm-nodes"][::2] == ("skipped", "because of slurm-controller")


MUNGED = """\
set -e
dd if=/dev/urandom of=/run/munge/own.key bs=1024 count=1
chown munge:munge /run/munge/own.key && chmod 600 /run/munge/own.key
pkill -x munged
while pgrep -x munged; do sleep 0.05; done
setpriv --reuid=munge --regid=munge --init-groups /usr/sbin/munged {words}
"""


@thorough
@pytest.mark.parametrize("differs", ["key", "clock"])
def test_a_login_host_whose_clock_or_munge_key_is_another_is_told_so_by_doctor_and_run(
    user: User, own_slurm: Slurm, differs: str
) -> None:
    login, words = own_slurm.compute[1], "--key-file=/run/munge/own.key" if differs == "key" else ""
    more = {"all": {"clusterddp_launcher": "slurm"}, login.name: {"clusterddp_role": "login"}}
    own_slurm.lab.write_inventory(user.folder / "inventory.yaml", hosts=[login.name], more=more)
    if differs == "clock":
        login.skew_clock(3600)
    login.run(["bash", "-c", MUNGED.format(words=words)], user="root")
    verdict, hosts, said = found(user, "--only", "slurm-controller")["slurm-controller"]
    assert (verdict, hosts) == ("fail", [login.name])
    assert said.startswith(
        "Slurm's controller takes nothing from the login host: their clocks or their keys of munge differ ("
    )
    user.write("nothing.py", "")
    refused = user.run("run", "--nnodes", "1", "nothing.py")
    assert (refused.code, refused.notes[-1].count("; ")) == (125, 1), refused.err
    assert "munge" in refused.notes[-1]
