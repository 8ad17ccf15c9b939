"""Decodes Slurm's answers: ``squeue -h -o``, ``sacct --parsable2``, ``scontrol show -o``, error messages."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterddp.remote.shared.slurm.job_record import JOB_ID
from clusterddp.remote.shared.slurm.nodelist import expand_nodelist
from clusterddp.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

# The reason is last because it is the only field that may contain any character.
QUEUE_FORMAT = "%i|%T|%S|%N|%u|%P|%r"
ACCOUNTING_FORMAT = "JobID,State,ExitCode,NodeList,User"
_STATE = re.compile(r"[A-Z][A-Z_]*")
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w/:.*-]*)=")
_MAX_TEXT = 300  # characters kept of a text of Slurm's


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedJob:
    """A job as Slurm reports it now."""

    job: str  # its number, with an array's index
    state: str  # Slurm's name of it
    reason: str = ""  # Slurm's name of why it waits; empty for none
    start: str = ""  # when it began, or is expected to, as Slurm writes it; empty if Slurm does not know
    nodes: tuple[str, ...] = field(default=())  # the nodes that it has
    user: str = ""
    partition: str = ""  # its name, or a list while the job waits for any of several
    by: str = ""  # the uid of the user who cancelled it, if Slurm reports it


def read_queue(text: str) -> list[QueuedJob]:
    """Return the jobs in the output of ``squeue --noheader --format QUEUE_FORMAT``."""
    jobs = []
    for line in text.splitlines():
        parts = line.strip().split("|", 6)
        if len(parts) == 7 and JOB_ID.fullmatch(parts[0]) and _STATE.fullmatch(parts[1]):
            job, state, start, nodes, user, partition, reason = parts
            waits = {"reason": _plain(reason), "start": _plain(start), "partition": _plain(partition)}
            jobs.append(QueuedJob(job=job, state=state, nodes=_nodes_of(nodes), user=user, **waits))
    return jobs


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """The nodes of a partition that are in one state."""

    name: str
    up: bool
    nodes: int
    state: str


def read_partitions(text: str) -> list[Partition]:
    """Return the partitions in the output of ``sinfo --noheader --format=%P|%a|%D|%t``."""
    partitions = []
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) == 4 and parts[0] and parts[0].isprintable() and re.fullmatch(r"[0-9]{1,9}", parts[2]):
            name = parts[0].removesuffix("*")[:_MAX_TEXT]
            partitions.append(Partition(name=name, up=parts[1] == "up", nodes=int(parts[2]), state=one_line(parts[3])))
    return partitions


def read_accounting(text: str) -> list[QueuedJob]:
    """Return the jobs in the output of ``sacct --noheader --parsable2 --allocations --format ACCOUNTING_FORMAT``."""
    jobs = []
    for line in text.splitlines():
        parts = line.strip().split("|")
        state, _, by = parts[1].partition(" by ") if len(parts) == 5 else ("", "", "")
        if JOB_ID.fullmatch(parts[0]) and _STATE.fullmatch(state):
            jobs.append(QueuedJob(job=parts[0], state=state, nodes=_nodes_of(parts[3]), user=parts[4], by=by))
    return jobs


def read_config(text: str) -> dict[str, str]:
    """Return the settings in the output of ``scontrol show config``: ``Name = value``; the first of a name counts.

    Newer versions print ``Prolog[0] = …``, a line for each of several.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        name = re.sub(r"\[[0-9]+\]$", "", name.strip())
        if equals and name.isidentifier():
            found.setdefault(name, one_line(value.strip())[:_MAX_TEXT])
    return found


def read_table(text: str, names: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows printed by ``sacctmgr --noheader --parsable2`` for these fields; malformed lines are left out."""
    lines = [line.split("|") for line in text.splitlines()]
    return [dict(zip(names, map(one_line, line), strict=True)) for line in lines if len(line) == len(names)]


def read_scontrol_lines(text: str) -> list[dict[str, str]]:
    """Return the fields of each line of ``scontrol show … -o``."""
    return [found for line in text.splitlines() if (found := read_scontrol_line(line))]


def read_scontrol_line(text: str) -> dict[str, str]:
    """Return the fields in the first line of ``scontrol show … -o``; values may contain spaces."""
    line = text.strip().split("\n", 1)[0]
    positions = [(match.group(1), match.start(), match.end()) for match in _FIELD.finditer(line)]
    ends = [*(start for _, start, _ in positions[1:]), len(line)]
    found: dict[str, str] = {}
    for (name, _, begin), end in zip(positions, ends, strict=False):
        found.setdefault(name, line[begin:end].strip())
    return found


def minutes(text: str) -> int | None:
    """Return a time limit, as Slurm prints or sbatch takes it, in minutes, rounded up; None if unlimited or unreadable.

    Without days, one number is minutes, two are minutes and seconds; otherwise hours come first: ``1-2``, ``02:30:00``.
    """
    match = re.fullmatch(r"(?:([0-9]{1,6})-)?([0-9]{1,6}(?::[0-9]{1,6}){0,2})", text)
    if not match:
        return None
    numbers = [int(number) for number in match[2].split(":")]
    if match[1] is None and len(numbers) < 3:
        numbers.insert(0, 0)  # hours
    hours, whole, seconds = (*numbers, 0, 0)[:3]
    return (int(match[1] or 0) * 24 + hours) * 60 + whole + math.ceil(seconds / 60)


def last_error(text: str) -> str:
    """Return the reason in the error output of a Slurm command, without the program's name."""
    lines = [one_line(line.strip()) for line in text.splitlines() if line.strip()]
    reasons = [
        re.sub(r"^\w+: (?:error|fatal): ", "", line) for line in lines if ": error: " in line or ": fatal: " in line
    ]
    return (reasons or lines or ["it says nothing"])[-1][:_MAX_TEXT]


def _plain(value: str) -> str:
    """Return a value of Slurm's on one line; empty for its words for no value."""
    return "" if value in {"None", "N/A", "Unknown", "(null)", "n/a"} else one_line(value)[:_MAX_TEXT]


def _nodes_of(text: str) -> tuple[str, ...]:
    try:
        return expand_nodelist(text)
    except ValueError:  # no nodes yet: empty, (null), None assigned
        return ()
