"""A run that Slurm starts, as its job finds it (``job.json`` in the run's folder), and what a login host tells of it.

    <state>/slurm/<run>/
        script job.json secrets.json submitted.json stop.json end.json
        start.<job>.<restart>/       where the nodes of one start meet
            attempt.json notice.json heeded.<place>.json stop.json requeued.json awaiting.json arrived.json

Pure.
"""

import re
from typing import Any, Mapping, NamedTuple, Optional, Tuple

from ..run.log_frames import RUN
from ..run.plan import PLAN_READER, NodePlan
from ..schema.fields import Fields
from ..schema.record import Readers, maybe, read_record, record
from ..verdict.verdict_record import VERDICT, VerdictRecord

JOB_ID = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?")  # an array's has its index behind
COMMENT = "clusterddp:"  # begins a job's comment; the run's id follows
SUBMITTED = "submitted"  # the script's first word where we submit it; by hand it has none
NOT_OURS = 92  # its exit code where another user owns the state folder on a node, or could replace it
NOT_SHARED = 93  # its exit code where the folder of its run is not on the job's first node
OUR_CODE, PROJECT_CODE = "clusterddp.pyz", "code"  # in the run's folder, where nodes share none
NOT_UNPACKED = 94  # where nodes that share none could not make it
START = re.compile(r"start\.([0-9]{1,10})\.([0-9]{1,10})")  # a job's number, and how often it was requeued before


def in_array(text: str, array: str, index: str, run: str) -> str:
    """What was written for all runs of an array (``index_of`` for the index, the array's id for the run's), for one."""
    return text.replace(index_of(array), index).replace(array, run)


def index_of(array: str) -> str:
    """What stands for the index in texts for all runs of an array."""
    return array + "-K"


def start_name(environment: Mapping[str, str]) -> str:
    """The folder of the start that a job's environment is of; raises KeyError outside any job."""
    return "start.%s.%s" % (environment["SLURM_JOB_ID"], environment.get("SLURM_RESTART_COUNT") or "0")


class SentCode(NamedTuple):
    """The project's code as it comes to a job whose nodes share no folder: the args of ``sync_apply``."""

    workdir: str  # the folder on each node, which may begin with ~/
    digest: str  # empty: none comes, and each node's is taken as it is
    manifest: int  # bytes
    lists: int  # bytes
    name: str = ""  # of the folder beside it that is meant
    data: Optional[str] = None  # digest of the project's data; None: a node's is left alone
    data_size: int = 0  # bytes of its manifest, at the end of ``manifest``
    take: str = ""  # whose version of data counts where project and node changed it
    folders: Tuple[str, ...] = ()  # that are to be there besides
    links: Mapping[str, str] = {}  # path inside → where it leads
    broadcast: bool = False  # whoever follows the run has it sent by sbcast; else it is in the job's script
    more: Mapping[str, Any] = {}


class SlurmJob(NamedTuple):
    """What each node of a job is to start, as far as it can be known before Slurm has chosen them."""

    state: str  # the folder of ours that all nodes and the login host share
    plan: NodePlan  # of a node that stands for all
    python: Optional[str] = None  # the training interpreter that is wanted: ``clusterddp_python``
    nproc: Optional[int] = None  # workers of each node; None: one a GPU, else one
    interface: Optional[str] = None
    inside: bool = False  # a job that was there already: it goes on when the run has ended
    apart: Optional[SentCode] = None  # its nodes share no folder with each other or the login host: ``state`` is each's
    more: Mapping[str, Any] = {}


class SubmittedRun(NamedTuple):
    """What a login host tells of a run that was submitted there."""

    run: str
    plan: NodePlan
    job: Optional[str] = None  # Slurm's number of it
    stopped: Optional[str] = None  # why a stop was ordered, if one was
    starts: int = 0  # how often Slurm has started it
    attempt: int = 0  # that the last start is, or will be when its nodes have met
    end: Optional[VerdictRecord] = None  # what the job said in the end
    inside: bool = False  # the job was there already
    secrets: bool = False  # whether their values still lie there
    apart: bool = False  # its nodes share no folder
    parting: bool = False  # of such a run: its script waits for what its nodes know to be fetched
    awaiting: Optional[str] = None  # of such a run: the start whose nodes wait for their code
    more: Mapping[str, Any] = {}


_CODE: Readers = {
    "workdir": Fields.text,
    "digest": Fields.text,
    "manifest": Fields.number,
    "lists": Fields.number,
    "name": Fields.text,
    "folders": Fields.texts,
    "links": lambda fields, name: fields.mapping(name, Fields.text),
    "broadcast": Fields.flag,
    "data": Fields.maybe_text,
    "data_size": Fields.number,
    "take": Fields.text,
}
_JOB: Readers = {
    "state": lambda fields, name: fields.check(name, lambda path: path.startswith("/"), "an absolute path"),
    "plan": PLAN_READER,
    "python": Fields.maybe_text,
    "nproc": Fields.maybe_number,
    "interface": Fields.maybe_text,
    "inside": Fields.flag,
    "apart": maybe(record(SentCode, _CODE)),
}
_SUBMITTED: Readers = {
    "run": lambda fields, name: fields.check(name, RUN.fullmatch, "a run's id"),
    "plan": PLAN_READER,
    "job": maybe(lambda fields, name: fields.check(name, JOB_ID.fullmatch, "a job's number")),
    "stopped": Fields.maybe_text,
    "starts": Fields.number,
    "attempt": Fields.number,
    "end": maybe(record(VerdictRecord, VERDICT)),
    "inside": Fields.flag,
    "secrets": Fields.flag,
    "apart": Fields.flag,
    "parting": Fields.flag,
    "awaiting": maybe(lambda fields, name: fields.check(name, START.fullmatch, "a start's name")),
}


def read_slurm_job(data: Any) -> SlurmJob:
    """A job from its JSON object; raises DamagedError."""
    return read_record(SlurmJob, _JOB, data, "job")


def read_submitted(data: Any) -> SubmittedRun:
    """What a login host tells, from its JSON object; raises DamagedError."""
    return read_record(SubmittedRun, _SUBMITTED, data, "submitted")
