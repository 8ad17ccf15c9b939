"""A run that Slurm starts, as its job finds it (``job.json`` in the run's folder), and what a login host tells of it.

    <state>/slurm/<run>/
        script job.json secrets.json submitted.json stop.json end.json
        start.<job>.<restart>/       where the nodes of one start meet

Pure. Not here: what a job does with it (slurm/task.py), who submits it (launch/slurm.py).
"""

import re
from typing import Any, Mapping, NamedTuple, Optional

from .fields import Fields
from .log_frames import RUN
from .plan import PLAN_READER, NodePlan
from .records import Readers, maybe, read_record, record
from .verdict_record import VERDICT, VerdictRecord

JOB_ID = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?")  # an array's has its index behind


class SlurmJob(NamedTuple):
    """What each node of a job is to start, as far as it can be known before Slurm has chosen them."""

    state: str  # the folder of ours that all nodes and the login host share
    plan: NodePlan  # of a node that stands for all
    python: Optional[str] = None  # the training interpreter that is wanted: ``clusterddp_python``
    nproc: Optional[int] = None  # workers of each node; None: one a GPU, else one
    interface: Optional[str] = None
    more: Mapping[str, Any] = {}


class SubmittedRun(NamedTuple):
    """What a login host tells of a run that was submitted there."""

    run: str
    plan: NodePlan
    job: Optional[str] = None  # Slurm's number of it
    stopped: Optional[str] = None  # why a stop was ordered, if one was
    starts: int = 0  # how often Slurm has started it
    end: Optional[VerdictRecord] = None  # what the job said in the end
    more: Mapping[str, Any] = {}


_JOB: Readers = {
    "state": lambda fields, name: fields.check(name, lambda path: path.startswith("/"), "an absolute path"),
    "plan": PLAN_READER,
    "python": Fields.maybe_text,
    "nproc": Fields.maybe_number,
    "interface": Fields.maybe_text,
}
_SUBMITTED: Readers = {
    "run": lambda fields, name: fields.check(name, RUN.fullmatch, "a run's id"),
    "plan": PLAN_READER,
    "job": maybe(lambda fields, name: fields.check(name, JOB_ID.fullmatch, "a job's number")),
    "stopped": Fields.maybe_text,
    "starts": Fields.number,
    "end": maybe(record(VerdictRecord, VERDICT)),
}


def read_slurm_job(data: Any) -> SlurmJob:
    """A job from its JSON object; raises DamagedError."""
    return read_record(SlurmJob, _JOB, data, "job")


def read_submitted(data: Any) -> SubmittedRun:
    """What a login host tells, from its JSON object; raises DamagedError."""
    return read_record(SubmittedRun, _SUBMITTED, data, "submitted")
