"""Which jobs would wait for ever: by Slurm's reason, or by a limit that the job alone goes beyond."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.launch.slurm.client.answers import QueuedJob, minutes
from clusterddp.launch.slurm.client.never_starts import (
    SharedLimit,
    describe_excess,
    describe_reason,
    is_hopeless,
    read_tres,
    shared_limit,
)
from clusterddp.launch.slurm.client.states import STATES

JOB = {"TRES": "cpu=16,mem=8000M,node=2,billing=16,gres/gpu=8,gres/gpu:a100=8", "TimeLimit": "1-00:10:00"}


def waiting(reason: str, partition: str = "main") -> QueuedJob:
    return QueuedJob(job="7", state="PENDING", reason=reason, partition=partition)


@pytest.mark.parametrize(
    "reason",
    [
        "PartitionConfig", "PartitionTimeLimit", "AccountNotAllowed", "InvalidQOS", "ReservationInvalid",
        "DependencyNeverSatisfied",
        "AssocMaxNodePerJobLimit", "AssocMaxWallDurationPerJobLimit", "AssocMaxGRESMinutesPerJob", "AssocMaxMemPerNode",
        "QOSMaxCpuPerJobLimit", "QOSMaxGRESPerJob", "QOSMaxCpuPerNode", "QOSMinCpuNotSatisfied", "QOSMinGRES",
        "uid 20001 not in group permitted to use this partition (closed). groups allowed: root",  # printed by 24.11.5
    ],
)  # fmt: skip
def test_what_one_job_may_not_ask_for_is_hopeless(reason: str) -> None:
    assert is_hopeless(reason)
    assert describe_reason(waiting(reason)) == f"{reason}: it never starts as it was submitted"


@pytest.mark.parametrize(
    "reason",
    [
        "Resources", "Priority", "Dependency", "BeginTime", "None", "", "ReqNodeNotAvail", "JobHeldUser", "Licenses",
        "AssocMaxJobsLimit", "AssocGrpNodeLimit", "AssocGrpCPUMinutesLimit", "QOSGrpGRES", "QOSMaxJobsPerUserLimit",
        "QOSMaxNodePerUserLimit", "MaxGRESPerAccount", "PartitionDown", "JobArrayTaskLimit", *STATES,
    ],
)  # fmt: skip
def test_what_waits_for_others_is_not_hopeless(reason: str) -> None:
    assert not is_hopeless(reason)
    assert describe_reason(waiting(reason)) == reason


@pytest.mark.parametrize(
    ("reason", "hopeless"),
    [
        ("PartitionNodeLimit", False), ("PartitionTimeLimit", False), ("PartitionConfig", False),
        ("AccountNotAllowed", False), ("QOSNotAllowed", False), ("QOSMaxNodePerJobLimit", False),
        ("BadConstraints", False), ("MaxMemPerLimit", False),
        ("uid 20001 not in group permitted to use this partition (closed). groups allowed: root", False),
        ("AssocMaxNodePerJobLimit", True), ("InvalidAccount", True), ("ReservationInvalid", True),
        ("DependencyNeverSatisfied", True),
    ],
)  # fmt: skip
def test_what_one_of_several_partitions_refuses_another_may_take(reason: str, *, hopeless: bool) -> None:
    """Slurm's reason is that of the partition that it tried last."""
    assert is_hopeless(reason, "small,main") is hopeless
    assert is_hopeless(reason, "small")
    assert (describe_reason(waiting(reason, "small,main")) != reason) is hopeless


@pytest.mark.parametrize(
    ("reason", "limit"),
    [
        ("AssocMaxJobsLimit", SharedLimit(of_qos=False, field="MaxJobs")),
        ("AssocGrpJobsLimit", SharedLimit(of_qos=False, field="GrpJobs")),
        ("AssocGrpNodeLimit", SharedLimit(of_qos=False, field="GrpTRES", tres="node")),
        ("AssocGrpCPUMinutesLimit", SharedLimit(of_qos=False, field="GrpTRESMins", tres="cpu")),
        ("AssocGrpGRESRunMinutes", SharedLimit(of_qos=False, field="GrpTRESRunMins", tres="gres/")),
        ("QOSGrpMemoryMinutes", SharedLimit(of_qos=True, field="GrpTRESMins", tres="mem")),
        ("QOSMaxJobsPerUserLimit", SharedLimit(of_qos=True, field="MaxJobsPU")),
        ("QOSMaxNodePerUserLimit", SharedLimit(of_qos=True, field="MaxTRESPU", tres="node")),
        ("MaxGRESPerAccount", SharedLimit(of_qos=True, field="MaxTRESPA", tres="gres/")),
        ("MaxCpuRunMinsPerUser", SharedLimit(of_qos=True, field="MaxTRESRunMinsPU", tres="cpu")),  # 24.05 and newer
        ("AssocGrpWallLimit", None),
        ("AssocGrpSubmitJobsLimit", None),
        ("Resources", None),
        ("PartitionConfig", None),
    ],
)
def test_a_reason_names_the_limit_of_several_jobs_that_is_behind_it(reason: str, limit: SharedLimit | None) -> None:
    assert shared_limit(reason) == limit


@pytest.mark.parametrize(
    ("reason", "value", "told"),
    [
        ("AssocGrpNodeLimit", "node=1,cpu=99", "GrpTRES node=1, and 2 are asked for"),
        ("AssocGrpNodeLimit", "node=2,cpu=1", ""),
        ("AssocGrpGRES", "gres/gpu=4", "GrpTRES gres/gpu=4, and 8 are asked for"),
        ("AssocGrpMemLimit", "mem=7G", "GrpTRES mem=7168M, and 8000M are asked for"),
        ("AssocGrpMemLimit", "mem=8000M", ""),
        ("AssocGrpCPUMinutesLimit", "cpu=23199", "GrpTRESMins cpu=23199, and 23200 are asked for"),
        ("AssocGrpCPUMinutesLimit", "cpu=23200", ""),
        ("AssocMaxJobsLimit", "0", "MaxJobs=0"),
        ("AssocMaxJobsLimit", "3", ""),
        ("AssocMaxJobsLimit", "", ""),
    ],
)
def test_a_limit_of_several_jobs_is_hopeless_where_one_alone_goes_beyond_it(reason: str, value: str, told: str) -> None:
    limit = shared_limit(reason)
    assert limit
    assert describe_excess(limit, {limit.field: value}, JOB) == told
    newer = {"ReqTRES": JOB["TRES"], "AllocTRES": "(null)", "TimeLimit": JOB["TimeLimit"]}
    assert describe_excess(limit, {limit.field: value}, newer) == told


def test_without_an_end_nobody_knows_what_a_job_would_use_up() -> None:
    limit = SharedLimit(of_qos=False, field="GrpTRESMins", tres="cpu")
    assert describe_excess(limit, {"GrpTRESMins": "cpu=1"}, {**JOB, "TimeLimit": "UNLIMITED"}) == ""


@pytest.mark.parametrize(
    ("said", "limit"),
    [
        ("4", 4), ("4:00", 4), ("3:01", 4), ("00:04:00", 4), ("01:00:59", 61), ("1-2", 1560), ("0-00:04", 4),
        ("2-03:04:00", 3064), ("UNLIMITED", None), ("Partition_Limit", None), ("", None), ("1:2:3:4", None),
    ],
)  # fmt: skip
def test_a_time_limit_is_read_in_each_form_that_sbatch_takes(said: str, limit: int | None) -> None:
    assert minutes(said) == limit


@given(st.text(), st.text())
def test_whatever_slurm_tells_is_read_without_an_error(one: str, other: str) -> None:
    read_tres(one)
    minutes(one)
    shared_limit(one)
    is_hopeless(one, other)
    for limit in (SharedLimit(of_qos=True, field="F", tres="node"), SharedLimit(of_qos=True, field="FMins", tres="")):
        describe_excess(limit, {limit.field: one}, {"TRES": other, "TimeLimit": one})
