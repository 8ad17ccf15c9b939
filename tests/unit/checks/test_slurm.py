"""Checks of Slurm: what its login host tells, and nodes that are not what Slurm takes them for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.checks.catalog.slurm import CHECKS, count_gpus
from clusterddp.checks.engine import judge, select
from clusterddp.checks.evidence import Evidence, HostEvidence, SlurmEvidence
from clusterddp.errors import UsageError
from clusterddp.inventory import HostEntry
from tests.unit.facts_made import gpus, node

NODES = ({"NodeName": "gpu01", "State": "IDLE", "Gres": "gpu:a100:4(S:0-1)"}, {"NodeName": "gpu02", "State": "MIXED"})
PARTITION = {"PartitionName": "main", "State": "UP", "MaxNodes": "UNLIMITED", "TotalNodes": "2", "AllowAccounts": "ALL"}
WELL = SlurmEvidence(
    config={"GresTypes": "gpu", "TaskPlugin": "task/affinity,task/cgroup", "ConstrainDevices": "yes", "TmpFS": "/tmp"},
    partitions=(PARTITION,),
    nodes=NODES,
    associations=({"Account": "vision", "Partition": "", "QOS": "normal,long", "MaxTRES": "cpu=9,node=4"},),
    asked={"nodes": "2"},
)


def said(name: str, seen: SlurmEvidence = WELL, **changes: Any) -> list[tuple[str, str]]:
    """What a check says of the login host."""
    evidence = Evidence(
        hosts=(HostEvidence(entry=HostEntry(name="login1", address="login1")),), manager=replace(seen, **changes)
    )
    return [
        (one.verdict, one.message) for one in judge(evidence, select([name], launchers=["slurm"])) if one.name == name
    ]


def of_node(name: str, seen: SlurmEvidence = WELL, **facts: Any) -> list[tuple[str, str]]:
    """What a check says of gpu01."""
    entry, own = node("gpu01", **facts)
    evidence = Evidence(hosts=(HostEvidence(entry=entry, facts=own),), manager=seen)
    return [
        (one.verdict, one.message) for one in judge(evidence, select([name], launchers=["slurm"])) if one.name == name
    ]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("Unable to contact slurm controller (connect failure)", "Unable to contact slurm controller"),
        (
            "slurm_load_ctl_conf error: Zero Bytes were transmitted or received",
            "Slurm's controller takes nothing from the login host: their clocks or their keys of munge differ (",
        ),
        ("Munge decode failed: Expired credential", "the clocks of the login host and of Slurm's controller differ ("),
        ("Munge decode failed: Rewound credential", "the clocks of the login host and of Slurm's controller differ ("),
        ("Munge decode failed: Invalid credential", "munge's key is not that of Slurm's controller ("),
        (
            'If munged is up, restart with --num-threads=10; Failed to access "/run/munge/munge.socket.2"',
            "munged does not run on the login host (",
        ),
    ],
)
def test_a_controller_that_does_not_answer_is_told_with_munge_and_clocks_by_name(error: str, told: str) -> None:
    ((verdict, message),) = said("slurm-controller", error=error)
    assert (verdict, message[: len(told)]) == ("fail", told)
    assert said("slurm-partition", error=error) == [("skipped", "because of slurm-controller")]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"partitions": (), "asked": {"partition": "nope"}}, "no partition nope is there for the user"),
        ({"partitions": ()}, "there is no default partition"),
        ({"partitions": ({**PARTITION, "State": "DOWN"},)}, "partition main is DOWN"),
        ({"asked": {"nodes": "5"}}, "partition main gives a job 2 nodes at most, and 5 are asked for"),
        (
            {"partitions": ({**PARTITION, "AllowAccounts": "nlp"},), "asked": {"account": "vision"}},
            "partition main takes no job of account vision",
        ),
    ],
)
def test_a_partition_in_which_a_job_would_wait_for_ever_is_told(changes: dict[str, Any], told: str) -> None:
    assert said("slurm-partition", **changes) == [("fail", told)]


def test_of_several_partitions_one_that_takes_the_job_is_enough() -> None:
    small, nlp = {**PARTITION, "PartitionName": "small", "MaxNodes": "1"}, {**PARTITION, "AllowAccounts": "nlp"}
    two, asked = (small, PARTITION), {"partition": "small,main", "nodes": "2", "account": "vision"}
    assert said("slurm-partition", partitions=two, asked=asked)[0][0] == "pass"
    assert said("slurm-partition", partitions=(small, nlp), asked=asked) == [
        ("fail", "partition small gives a job 1 node at most, and 2 are asked for"),
        ("fail", "partition main takes no job of account vision"),
    ]
    assert said("slurm-partition", partitions=two, asked={**asked, "partition": "small,nope,main"}) == [
        ("fail", "no partition nope is there for the user")
    ]


def test_nodes_that_are_out_are_told_with_their_reason_and_fail_where_too_few_are_left() -> None:
    drained = {"NodeName": "gpu02", "State": "IDLE+DRAIN", "Reason": "bad DIMM [root@2026-11-21T10:00:00]"}
    told = "gpu02: IDLE+DRAIN: bad DIMM"
    assert said("slurm-nodes", nodes=(NODES[0], drained), asked={"nodes": "1"}) == [("warn", told)]
    assert said("slurm-nodes", nodes=(NODES[0], drained)) == [("fail", told)]
    asleep = {"NodeName": "gpu02", "State": "IDLE+CLOUD+POWERED_DOWN"}
    assert said("slurm-nodes", nodes=(NODES[0], asleep))[0][0] == "pass"
    assert said("slurm-nodes") == [("pass", "no node of the partition is drained or down")]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"account": "nlp"}, ("fail", "account nlp is none of the user's")),
        ({"account": "vision", "qos": "high"}, ("fail", "QOS high is none of the account's")),
        ({"nodes": "5"}, ("fail", "the account may have 4 nodes a job, and 5 are asked for")),
        ({"account": "vision", "qos": "long", "nodes": "4"}, ("pass", "the user's account allows such a job")),
    ],
)
def test_an_account_that_would_keep_a_job_waiting_is_told(asked: dict[str, str], told: tuple[str, str]) -> None:
    enforced = {**WELL.config, "AccountingStorageEnforce": "associations,limits,qos"}
    assert said("slurm-account", config=enforced, asked=asked) == [told]


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"MaxJobs": "0"}, "the account may have no job (MaxJobs=0)"),
        ({"GrpTRES": "node=1,gres/gpu=64"}, "the account may have 1 node at once, and 2 are asked for"),
        ({"GrpTRES": "gres/gpu=4"}, "the account may have 4 GPUs at once, and 16 are asked for"),
        ({"MaxTRES": "gres/gpu=8"}, "the account may have 8 GPUs a job, and 16 are asked for"),
    ],
)
def test_a_limit_of_the_account_is_told_unless_another_account_has_none(limits: dict[str, str], told: str) -> None:
    asked = {"nodes": "2", "gpus-per-node": "8"}
    limited = {"Account": "vision", **limits}
    assert said("slurm-account", associations=(limited,), asked=asked) == [("fail", told)]
    both = (limited, {"Account": "speech"})
    assert said("slurm-account", associations=both, asked=asked)[0][0] == "pass"
    assert said("slurm-account", associations=both, asked={**asked, "account": "vision"}) == [("fail", told)]


def test_a_user_without_an_account_fails_only_where_slurm_insists_on_one() -> None:
    assert said("slurm-account", associations=()) == [("pass", "the user's account allows such a job")]
    assert said("slurm-account", associations=(), config={"AccountingStorageEnforce": "associations"})[0][0] == "fail"
    assert said("slurm-account", associations=None)[0][0] == "pass"


def test_settings_by_which_jobs_reach_into_each_other_are_warned_of() -> None:
    open_ = {**WELL.config, "TaskPlugin": "task/none"}
    assert said("slurm-devices", config=open_) == [("warn", "TaskPlugin is task/none: a job can use GPUs of others")]
    assert said("slurm-devices", config={**WELL.config, "ConstrainDevices": "no"})[0][0] == "warn"
    assert said("slurm-devices")[0][0] == "pass"
    late = {"Prolog": "/etc/slurm/prolog.sh", "PrologFlags": "(null)"}
    assert said("slurm-prolog", config=late)[0][0] == "warn"
    assert said("slurm-prolog", config={**late, "PrologFlags": "Alloc,Contain"})[0][0] == "pass"


def test_a_job_that_slurm_does_not_give_is_told_with_its_reason() -> None:
    refused = ("Slurm would never start such a job: PartitionConfig", "ask for less")
    assert said("slurm-job", refused=refused) == [("fail", refused[0])]


def test_gpus_that_slurm_counts_and_that_are_not_there_are_told() -> None:
    assert of_node("slurm-gpus", pci_nvidia=8) == [("fail", "Slurm gives out 4 GPUs there (Gres), and 8 are seen")]
    assert of_node("slurm-gpus", pci_nvidia=4)[0][0] == "pass"
    assert of_node("slurm-gpus", devices=1, gpus=gpus(1, mig=True))[0][0] == "pass"  # Slurm counts the instances


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("(null)", 0),
        ("", 0),
        ("gpu", 1),
        ("gpu:4", 4),
        ("gpu:a100:4(S:0-1),gpu:h100:2,shard:8", 6),
        ("gpu:x", 1),
        ("gpu:0", 0),
    ],
)
def test_gres_is_counted(gres: str, count: int) -> None:
    assert count_gpus(gres) == count


def test_folders_of_their_own_and_temporary_files_elsewhere_are_told() -> None:
    apart = replace(WELL, unshared={"gpu01": {"/home/u/.clusterddp": "it is not the login host's"}})
    assert of_node("slurm-folders", apart) == [("fail", "/home/u/.clusterddp: it is not the login host's")]
    why = {"/a": "it is not the login host's", "/b": "it is not the login host's", "/c": "cannot be written"}
    assert of_node("slurm-folders", replace(WELL, unshared={"gpu01": why})) == [
        ("fail", "/a, /b: it is not the login host's"),
        ("fail", "/c: cannot be written"),
    ]
    scratch = replace(WELL, config={"TmpFS": "/scratch"})
    assert of_node("slurm-tmp", scratch, folder_variables={}) == [
        ("warn", "Slurm's TmpFS is /scratch, and a job's temporary files go to /tmp")
    ]
    assert of_node("slurm-tmp", scratch, folder_variables={"TMPDIR": "/scratch/u"})[0][0] == "pass"


def test_without_slurm_its_checks_are_left_out_and_refused_by_name() -> None:
    assert not [check for check in select() if check.category == "Slurm"]
    with pytest.raises(UsageError, match="slurm-gpus is looked at with `doctor --launcher slurm` only"):
        select(["slurm-gpus"])


KEYS = ("PartitionName", "State", "MaxNodes", "TotalNodes", "AllowAccounts", "NodeName", "Gres", "Reason", "MaxTRES")
FIELDS = st.dictionaries(st.sampled_from(KEYS), st.text(max_size=30), max_size=6)


@given(fields=FIELDS, text=st.text(max_size=20))
def test_no_check_raises_whatever_slurm_tells(fields: dict[str, str], text: str) -> None:
    seen = SlurmEvidence(
        config={"TmpFS": text, "PrologFlags": text, "Prolog": text, "TaskPlugin": text, "GresTypes": text},
        partitions=(fields,),
        nodes=({**fields, "NodeName": "gpu01"}, fields),
        associations=(fields,),
        asked={"nodes": text, "account": text, "qos": text},
    )
    for check in CHECKS:
        said(check.name, seen)
        of_node(check.name, seen)
