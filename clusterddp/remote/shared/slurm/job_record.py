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
from ..run.plan import NodePlan
from ..schema.fields import Fields
from ..schema.record import by_key, checked, field, maybe, nested, read_record, record
from ..verdict.verdict_record import VerdictRecord

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


@record
class SentCode(NamedTuple):
    """The project's code as it comes to a job whose nodes share no folder: the args of ``sync_apply``."""

    workdir: str = field(Fields.text)  # the folder on each node, which may begin with ~/
    digest: str = field(Fields.text)  # empty: none comes, and each node's is taken as it is
    manifest: int = field(Fields.number)  # bytes
    lists: int = field(Fields.number)  # bytes
    name: str = field(Fields.text, default="")  # of the folder beside it that is meant
    # digest of the project's data; None: a node's is left alone
    data: Optional[str] = field(Fields.maybe_text, default=None)
    data_size: int = field(Fields.number, default=0)  # bytes of its manifest, at the end of ``manifest``
    take: str = field(Fields.text, default="")  # whose version of data counts where project and node changed it
    folders: Tuple[str, ...] = field(Fields.texts, default=())  # that are to be there besides
    links: Mapping[str, str] = field(by_key(Fields.text), default={})  # path inside → where it leads
    # whoever follows the run has it sent by sbcast; else it is in the job's script
    broadcast: bool = field(Fields.flag, default=False)
    more: Mapping[str, Any] = {}


@record
class SlurmJob(NamedTuple):
    """What each node of a job is to start, as far as it can be known before Slurm has chosen them."""

    # the folder of ours that all nodes and the login host share
    state: str = field(checked(lambda path: path.startswith("/"), "an absolute path"))
    plan: NodePlan = field(nested(NodePlan))  # of a node that stands for all
    # the training interpreter that is wanted: ``clusterddp_python``
    python: Optional[str] = field(Fields.maybe_text, default=None)
    nproc: Optional[int] = field(Fields.maybe_number, default=None)  # workers of each node; None: one a GPU, else one
    interface: Optional[str] = field(Fields.maybe_text, default=None)
    inside: bool = field(Fields.flag, default=False)  # a job that was there already: it goes on when the run has ended
    # its nodes share no folder with each other or the login host: ``state`` is each's
    apart: Optional[SentCode] = field(maybe(nested(SentCode)), default=None)
    more: Mapping[str, Any] = {}


@record
class SubmittedRun(NamedTuple):
    """What a login host tells of a run that was submitted there."""

    run: str = field(checked(RUN.fullmatch, "a run's id"))
    plan: NodePlan = field(nested(NodePlan))
    # Slurm's number of it
    job: Optional[str] = field(maybe(checked(JOB_ID.fullmatch, "a job's number")), default=None)
    stopped: Optional[str] = field(Fields.maybe_text, default=None)  # why a stop was ordered, if one was
    starts: int = field(Fields.number, default=0)  # how often Slurm has started it
    attempt: int = field(Fields.number, default=0)  # that the last start is, or will be when its nodes have met
    end: Optional[VerdictRecord] = field(maybe(nested(VerdictRecord)), default=None)  # what the job said in the end
    inside: bool = field(Fields.flag, default=False)  # the job was there already
    secrets: bool = field(Fields.flag, default=False)  # whether their values still lie there
    apart: bool = field(Fields.flag, default=False)  # its nodes share no folder
    # of such a run: its script waits for what its nodes know to be fetched
    parting: bool = field(Fields.flag, default=False)
    # of such a run: the start whose nodes wait for their code
    awaiting: Optional[str] = field(maybe(checked(START.fullmatch, "a start's name")), default=None)
    more: Mapping[str, Any] = {}


def read_slurm_job(data: Any) -> SlurmJob:
    """A job from its JSON object; raises DamagedError."""
    return read_record(SlurmJob, data, "job")


def read_submitted(data: Any) -> SubmittedRun:
    """What a login host tells, from its JSON object; raises DamagedError."""
    return read_record(SubmittedRun, data, "submitted")
