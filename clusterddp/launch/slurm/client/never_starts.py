"""Decide whether a waiting job would wait forever as submitted, from Slurm's reason and the limits behind it.

Some reasons alone settle it. Others name a limit for all jobs of an account or a QOS together: they pass when other
jobs end, unless this job alone asks for more than the limit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.launch.slurm.client.answers import minutes, read_config, read_scontrol_line, read_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterddp.launch.slurm.client.answers import QueuedJob
    from clusterddp.launch.slurm.client.login_host import LoginHost

HOPELESS_REASONS = frozenset((
    "AccountNotAllowed", "AssociationTimeLimit", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount",
    "InvalidQOS", "MaxMemPerLimit", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "QOSNotAllowed",
    "QOSTimeLimit", "ReservationInvalid",
))  # fmt: skip
_JOB_LIMIT = re.compile(r"(?:Assoc|QOS)Max\w+Per(?:Job(?:Limit)?|Node)|QOSMin[A-Z]\w*")
_NOT_PERMITTED = re.compile(r"permitted[ _]to[ _]use[ _]this[ _]partition")  # Slurm 24.11, about a group or QOS
# Of a job that any of several partitions may take, Slurm's reason is that of the one it tried last.
_OF_ONE_PARTITION = re.compile(
    r"Partition|AccountNotAllowed|QOS|BadConstraints|MaxMemPerLimit|.*" + _NOT_PERMITTED.pattern
)
_GROUP_LIMIT = re.compile(r"(Assoc|QOS)Grp(\w+?)(RunMinutes|Minutes)?(?:Limit)?")
_USER_LIMIT = re.compile(r"(?:QOS)?Max(\w+?)(RunMins)?Per(User|Account)(?:Limit)?")
_TRES = {"cpu": "cpu", "node": "node", "mem": "mem", "memory": "mem", "gres": "gres/", "billing": "billing"}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_MAX_ACCOUNT_LEVELS = 8  # levels of accounts


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedLimit:
    """A limit for several jobs together, named by a reason."""

    of_qos: bool  # whether it is the limit of a QOS; else of an association
    field: str  # sacctmgr's name of it
    tres: str = ""  # the prefix of the names of the counted resources; empty if jobs are counted


def is_hopeless(reason: str, partition: str = "") -> bool:
    """Return whether a queued job with this pending reason can never start, even when all other jobs have ended.

    ``partition``: its name, or a list: what one of several partitions refuses, another may take.
    """
    if "," in partition and _OF_ONE_PARTITION.match(reason):
        return False
    return reason in HOPELESS_REASONS or bool(_JOB_LIMIT.fullmatch(reason) or _NOT_PERMITTED.search(reason))


def describe_reason(job: QueuedJob) -> str:
    """Return why a job waits, as shown in messages, with a warning if it would never start."""
    hopeless = is_hopeless(job.reason, job.partition)
    return f"{job.reason}: it never starts as it was submitted" if hopeless else job.reason


def shared_limit(reason: str) -> SharedLimit | None:
    """Return the limit for several jobs that a reason names; None for any other reason."""
    if reason == "AssocMaxJobsLimit":
        return SharedLimit(of_qos=False, field="MaxJobs")
    if match := _GROUP_LIMIT.fullmatch(reason):
        of_qos, counted, suffixes = match[1] == "QOS", match[2], {"RunMinutes": "RunMins", "Minutes": "Mins"}
        return _limit_of(counted, "GrpJobs", f"GrpTRES{suffixes.get(match[3], '')}", of_qos=of_qos)
    if match := _USER_LIMIT.fullmatch(reason):
        whose = "PU" if match[3] == "User" else "PA"
        return _limit_of(match[1], f"MaxJobs{whose}", f"MaxTRES{match[2] or ''}{whose}", of_qos=True)
    return None


def _limit_of(counted: str, jobs: str, resources: str, *, of_qos: bool) -> SharedLimit | None:
    """Return a limit on what is ``counted``; ``jobs`` and ``resources`` are sacctmgr's fields for either."""
    if counted == "Jobs":
        return SharedLimit(of_qos=of_qos, field=jobs)
    tres = _TRES.get(counted.lower())
    return SharedLimit(of_qos=of_qos, field=resources, tres=tres) if tres else None


def read_tres(text: str) -> dict[str, int]:
    """Resources as Slurm writes them (``cpu=2,mem=8000M,gres/gpu=2``) by name, memory in bytes."""
    amounts = {}
    for part in text.split(","):
        match = re.fullmatch(r"([a-z][\w/:.-]*)=([0-9]{1,18})(?:\.[0-9]{1,9})?([KMGTP]?)", part.strip())
        if match:
            amounts[match[1]] = int(match[2]) * _UNITS[match[3]]
    return amounts


def describe_excess(limit: SharedLimit, row: Mapping[str, str], job: Mapping[str, str]) -> str:
    """Describe what a job alone asks for beyond a limit; empty if it does not."""
    value = row.get(limit.field, "")
    if not limit.tres:
        return f"{limit.field}={value}" if value == "0" else ""
    times = minutes(job.get("TimeLimit", "")) if "Mins" in limit.field else 1
    asked = read_tres(job.get("ReqTRES") or job.get("TRES", ""))
    for name, most in read_tres(value).items():
        if name.startswith(limit.tres) and times is not None and asked.get(name, 0) * times > most:
            return f"{limit.field} {name}={_number(most, name)}, and {_number(asked[name] * times, name)} are asked for"
    return ""


def _number(value: int, name: str) -> str:
    return f"{value // _UNITS['M']}M" if name == "mem" else str(value)


def why_never(login: LoginHost, job: QueuedJob) -> str:
    """Return why a waiting job would never start as submitted; empty if it may. Raises HostError."""
    if is_hopeless(job.reason, job.partition):
        return job.reason
    limit = shared_limit(job.reason)
    if limit is None:
        return ""
    _, out, _ = login.command("scontrol", "show", "job", "-o", job.job)
    fields = read_scontrol_line(out)
    for whose, row in (_qos_rows if limit.of_qos else _association_rows)(login, fields, limit.field):
        if excess := describe_excess(limit, row, fields):
            return f"{job.reason}: {whose} has {excess}"
    return ""


def _association_rows(login: LoginHost, job: Mapping[str, str], field: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield a field of the job's associations, if Slurm shows them: its user's, its account's, those above."""
    _, out, _ = login.command("scontrol", "show", "config")
    cluster, user = read_config(out).get("ClusterName", ""), job.get("UserId", "").partition("(")[0]
    account, names = job.get("Account", ""), ("User", "ParentName", field)
    for _ in range(_MAX_ACCOUNT_LEVELS):
        if account in {"", "(null)"}:
            return
        arguments = (f"cluster={cluster}", f"account={account}", f"format={','.join(names)}")
        _, out, _ = login.command("sacctmgr", "-nP", "show", "associations", *arguments)
        rows = [row for row in read_table(out, names) if row["User"] in {"", user}]
        for row in rows:
            yield f"account {account}" + (f" of {user}" if row["User"] else ""), row
        account = next((row["ParentName"] for row in rows if not row["User"]), "")


def _qos_rows(login: LoginHost, job: Mapping[str, str], field: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield a field of the job's QOS, and of its partition's."""
    _, out, _ = login.command("scontrol", "show", "partition", "-o", job.get("Partition", ""))
    chosen = {job.get("QOS", ""), read_scontrol_line(out).get("QoS", "")} - {"", "(null)", "N/A"}
    names = ("Name", field)
    arguments = (",".join(sorted(chosen)), f"format={','.join(names)}")
    _, out, _ = login.command("sacctmgr", "-nP", "show", "qos", *arguments)
    for row in read_table(out, names) if chosen else ():
        yield f"QOS {row['Name']}", row
