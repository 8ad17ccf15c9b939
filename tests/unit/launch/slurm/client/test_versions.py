"""What Slurm of each version prints, read: the same story told by all of them (tests/data/slurm/answers).

A file's first line says where it is from: printed by that version, or composed as its sources print it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterddp.checks.catalog.slurm import CHECKS, count_gpus
from clusterddp.checks.engine import judge, select
from clusterddp.checks.evidence import Evidence, HostEvidence, SlurmEvidence
from clusterddp.inventory import HostEntry
from clusterddp.launch.slurm.client.answers import (
    Partition,
    QueuedJob,
    read_accounting,
    read_partitions,
    read_queue,
    read_scontrol_lines,
)
from clusterddp.launch.slurm.client.never_starts import describe_excess, is_hopeless, shared_limit
from clusterddp.launch.slurm.client.states import STATES, UNKNOWN, meaning

FILES = sorted((Path(__file__).parents[4] / "data" / "slurm" / "answers").glob("*.txt"))
# All words for a job's state that the sources of 22.05 to 26.05 have.
JOB_STATES = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "CONFIGURING", "DEADLINE", "EXPEDITING", "FAILED", "NODE_FAIL",
    "OUT_OF_MEMORY", "PENDING", "PREEMPTED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD",
    "REVOKED", "RUNNING", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "SUSPENDED", "TIMEOUT",
}  # fmt: skip
COMMENT = "clusterddp:k3xa8w2mnp"

Answers = dict[str, str]


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def answers(request: pytest.FixtureRequest) -> Answers:
    """What each command printed, by its name."""
    parts = request.param.read_text().split("\n== ")[1:]
    return {name: text for name, _, text in (part.partition("\n") for part in parts)}


def test_every_state_of_every_version_is_in_the_table() -> None:
    assert STATES.keys() >= JOB_STATES
    assert {state for state in JOB_STATES if meaning(state) is UNKNOWN} == {"COMPLETED", "REVOKED"}


def test_a_queue_is_read_alike(answers: Answers) -> None:
    jobs = {job.job: job for job in read_queue(answers["squeue"])}
    assert len(jobs) == answers["squeue"].count("|alice|")
    assert jobs["101"] == QueuedJob(
        job="101", state="PENDING", reason="Resources", start="2026-11-22T08:55:10", user="alice", partition="a100"
    )
    assert jobs["102_3"].nodes == ("gpu01", "gpu02", "gpu07")
    assert jobs["104"].reason == "ReqNodeNotAvail, UnavailableNodes:gpu[04-05]"
    waits = {name for name, job in jobs.items() if meaning(job.state).state == "queued"}
    assert waits == jobs.keys() - {"102_3", "105"}
    assert not any(is_hopeless(job.reason) for job in jobs.values())


def test_the_books_are_read_alike(answers: Answers) -> None:
    ended = {job.job: (meaning(job.state).exit_code, job.by) for job in read_accounting(answers["sacct"])}
    assert ended == {
        "91": (125, ""),
        "92": (143, "1000"),
        "93": (125, ""),
        "94": (124, ""),
        "95": (137, ""),
        "96_7": (143, ""),
        "97": (125, ""),
    }


def test_a_job_and_what_it_asks_for_are_read_alike(answers: Answers) -> None:
    waits, lost = read_scontrol_lines(answers["scontrol show job"])
    assert [waits[name] for name in ("JobId", "JobState", "Reason")] == ["103", "PENDING", "AssocGrpNodeLimit"]
    assert lost["NodeList"] == "gpu[01-02]"
    assert (waits["JobName"], lost["StdErr"], waits["Comment"]) == ("night run", "/home/alice/my out", COMMENT)
    limit = shared_limit(waits["Reason"])
    assert limit
    assert describe_excess(limit, {"GrpTRES": "node=1"}, waits) == "GrpTRES node=1, and 2 are asked for"
    assert describe_excess(limit, {"GrpTRES": "node=2"}, lost) == ""


def test_nodes_and_partitions_are_judged_alike(answers: Answers) -> None:
    nodes = read_scontrol_lines(answers["scontrol show node"])
    (partition,) = read_scontrol_lines(answers["scontrol show partition"])
    assert {count_gpus(node["Gres"]) for node in nodes} == {4}
    assert {name in node["Partitions"].split(",") for node in nodes for name in ("a100", "debug")} == {True}
    seen = SlurmEvidence(partitions=(partition,), nodes=tuple(nodes), asked={"nodes": "5", "account": "nlp"})
    evidence = Evidence(hosts=(HostEvidence(entry=HostEntry(name="login1", address="login1")),), manager=seen)
    names = [check.name for check in CHECKS if check.name in {"slurm-nodes", "slurm-partition"}]
    told = [(one.name, one.message) for one in judge(evidence, select(names, launchers=["slurm"])) if one.name in names]
    out = [message for name, message in told if name == "slurm-nodes"]
    assert {message.split(":")[0] for message in out} <= {"gpu03", "gpu04", "gpu07", "gpu08"}
    assert any(message == "gpu04: IDLE+DRAIN: bad DIMM" for message in out)
    assert [message for name, message in told if name == "slurm-partition"] == [
        "partition a100 gives a job 4 nodes at most, and 5 are asked for",
        "partition a100 takes no job of account nlp",
    ]


def test_what_is_up_is_read_alike(answers: Answers) -> None:
    read = read_partitions(answers["sinfo"])
    assert len(read) == len(answers["sinfo"].splitlines())
    assert read[0] == Partition(name="a100", up=True, nodes=2, state="down*")
    assert [part.name for part in read if not part.up] == ["debug"]


# Printed by Slurm 24.11.5 in the lab (tests/lab/other_slurm.sh).
QUEUE_2411 = """\
6|PENDING|2026-11-22T14:54:59||trainer|main|{}
5_3|PENDING|2026-11-22T16:53:00||trainer|main|Priority
2|RUNNING|2026-11-22T14:52:55|gpu[01-02]|trainer|main|None
1|FAILED|2026-11-22T14:52:55|gpu01|trainer|main|NonZeroExitCode
""".format("uid 20001 not in group permitted to use this partition (closed). groups allowed: root")
BOOKS_2411 = """\
2|CANCELLED by 20001|0:0|gpu[01-02]|trainer
4|FAILED|1:0|None assigned|trainer
5_[3-7%2]|CANCELLED by 20001|0:0|None assigned|trainer
"""
JOB_2411 = (
    "JobId=2 JobName=wrap UserId=trainer(20001) GroupId=trainer(20001) MCS_label=N/A Priority=1 Nice=0 Account=vision"
    " QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0"
    " RunTime=00:00:08 TimeLimit=01:00:00 TimeMin=N/A StartTime=2026-11-22T14:52:55 NodeList=gpu[01-02] NumNodes=2"
    " ReqTRES=cpu=2,mem=8000M,node=2,billing=2 AllocTRES=cpu=2,node=2,billing=2 WorkDir=/home/trainer Comment=a b "
    " StdErr=/dev/null StdIn=/dev/null StdOut=/dev/null \n"
)


def test_what_24_11_printed_in_the_lab_is_read() -> None:
    jobs = {job.job: job for job in read_queue(QUEUE_2411)}
    assert [meaning(jobs[number].state).state for number in ("5_3", "2", "1", "6")] == [
        "queued",
        "running",
        "failed",
        "queued",
    ]
    assert [number for number, job in jobs.items() if is_hopeless(job.reason)] == ["6"]
    books = read_accounting(BOOKS_2411)
    assert [(job.job, job.by, job.nodes) for job in books] == [("2", "20001", ("gpu01", "gpu02")), ("4", "", ())]
    (shown,) = read_scontrol_lines(JOB_2411)
    assert (shown["Comment"], shown["NodeList"]) == ("a b", "gpu[01-02]")
    limit = shared_limit("QOSMaxNodePerUserLimit")
    assert limit
    assert describe_excess(limit, {"MaxTRESPU": "node=1"}, shown) == "MaxTRESPU node=1, and 2 are asked for"
