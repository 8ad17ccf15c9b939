"""Slurm's answers: recorded ones are read, damaged ones cost nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.launch.slurm.client.answers import (
    QueuedJob,
    last_error,
    read_accounting,
    read_config,
    read_partitions,
    read_queue,
    read_scontrol_line,
    read_scontrol_lines,
    read_table,
)
from clusterddp.launch.slurm.client.login_host import refusal
from clusterddp.launch.slurm.client.states import STATES, meaning

# Printed by Slurm 22.05.8.
QUEUE = """\
17|PENDING|2026-11-22T08:55:10||trainer|main|Resources
18_3|RUNNING|2026-11-22T08:50:00|gpu[01-02,07]|trainer|main|None
5|PENDING|N/A||trainer|main,small|PartitionTimeLimit
"""
SHOWN = (
    "JobId=1 JobName=bash UserId=trainer(20001) GroupId=trainer(20001) MCS_label=N/A Priority=4294901759 Nice=0"
    " Account=(null) QOS=(null) JobState=COMPLETED Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=0"
    " ExitCode=0:0 StartTime=2026-11-22T07:14:53 NodeList=gpu[01-02] NumNodes=2 Command=bash -c sleep WorkDir=/a b\n"
)
ACCOUNTING = (
    "8|CANCELLED by 20001|0:0|None assigned|trainer\n5|COMPLETED|0:0|gpu[01-02]|trainer\n"
    "1|FAILED|3:0|gpu01|trainer\n1.batch|FAILED|3:0|gpu01|\n"
)


def test_a_queue_is_read_line_by_line_and_what_is_no_line_of_it_is_left_out() -> None:
    nodes, start = ("gpu01", "gpu02", "gpu07"), "2026-11-22T08:50:00"
    assert read_queue(f"slurm_load_jobs: hm\n{QUEUE}x|y\n") == [
        QueuedJob(
            job="17", state="PENDING", reason="Resources", start="2026-11-22T08:55:10", user="trainer", partition="main"
        ),
        QueuedJob(job="18_3", state="RUNNING", start=start, nodes=nodes, user="trainer", partition="main"),
        QueuedJob(job="5", state="PENDING", reason="PartitionTimeLimit", user="trainer", partition="main,small"),
    ]


def test_what_slurm_is_set_to_is_read_by_name() -> None:
    said = (
        "Configuration data as of 2026-11-22T11:00:00\nPrologFlags             = (null)\nTmpFS = /scratch\n\nCgroup:\n"
    )
    assert read_config(said) == {"PrologFlags": "(null)", "TmpFS": "/scratch"}
    assert read_config("Prolog[0] = /etc/one\nProlog[1] = /etc/two\n") == {"Prolog": "/etc/one"}  # 24.11


def test_nodes_and_accounts_are_read_a_line_each() -> None:
    nodes = "NodeName=gpu01 Gres=gpu:1 State=IDLE+DRAIN Reason=bad DIMM [root@2026-11-22T07:14:53]\nNodeName=gpu02\n"
    assert [one.get("Reason") for one in read_scontrol_lines(nodes)] == ["bad DIMM [root@2026-11-22T07:14:53]", None]
    assert read_table("vision|normal\nx\n", ("Account", "QOS")) == [{"Account": "vision", "QOS": "normal"}]


def test_partitions_are_told_apart_by_name_and_whether_they_are_up() -> None:
    said = "main*|up|2|idle\nclosed|down|1|drain*\nsinfo: error: x\n"
    assert [(one.name, one.up, one.nodes, one.state) for one in read_partitions(said)] == [
        ("main", True, 2, "idle"),
        ("closed", False, 1, "drain*"),
    ]


def test_accounting_tells_who_cancelled_a_job_and_nothing_of_its_steps() -> None:
    assert read_accounting(ACCOUNTING) == [
        QueuedJob(job="8", state="CANCELLED", by="20001", user="trainer"),
        QueuedJob(job="5", state="COMPLETED", nodes=("gpu01", "gpu02"), user="trainer"),
        QueuedJob(job="1", state="FAILED", nodes=("gpu01",), user="trainer"),
    ]


def test_a_job_is_shown_with_values_that_hold_spaces() -> None:
    fields = read_scontrol_line(SHOWN)
    assert (fields["Command"], fields["WorkDir"], fields["Requeue"]) == ("bash -c sleep", "/a b", "1")
    assert (fields["JobId"], fields["JobState"], fields["NodeList"]) == ("1", "COMPLETED", "gpu[01-02]")


@given(st.text())
def test_whatever_slurm_prints_is_read_without_an_error(text: str) -> None:
    read_queue(text)
    read_queue("|".join(["1", "RUNNING", *[text] * 5]))  # as many as QUEUE_FORMAT has
    read_accounting(f"1|{text}|0:0|{text}|{text}")
    read_scontrol_line(text)
    read_scontrol_lines(text)
    read_config(text)
    read_table(text, ("Account", "QOS"))
    read_partitions(f"{text}|up|1|{text}")
    assert last_error(text).isprintable()
    assert meaning(text).state


@pytest.mark.parametrize(
    ("state", "ours", "code", "over"),
    [
        ("PENDING", "queued", 125, False),
        ("RUNNING", "running", 125, False),
        ("COMPLETING", "running", 125, False),
        ("TIMEOUT", "failed", 124, True),
        ("NODE_FAIL", "failed", 125, True),
        ("OUT_OF_MEMORY", "failed", 137, True),
        ("CANCELLED by 1000", "stopped", 143, True),
        ("CANCELLED+", "stopped", 143, True),
        ("COMPLETED", "unknown", 125, True),
        ("SOMETHING_NEW", "unknown", 125, True),
        ("", "unknown", 125, True),
    ],
)
def test_one_table_says_what_a_state_means(state: str, ours: str, code: int, *, over: bool) -> None:
    means = meaning(state)
    assert (means.state, means.exit_code, means.over) == (ours, code, over)


def test_what_slurm_has_ended_is_told_in_words_too() -> None:
    assert {state for state, means in STATES.items() if means.outside and not means.explanation} == {"CANCELLED"}


def test_a_refusal_is_slurms_own_reason_and_what_helps() -> None:
    said = (
        "sbatch: error: invalid partition specified: nope\n"
        "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
    )
    error = refusal(last_error(said))
    assert error.message == "Slurm refuses the job: Invalid partition name specified"
    assert "clusterddp_slurm_partition" in error.remedy
