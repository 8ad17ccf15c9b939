"""The records of a run in a Slurm job: ``job.json`` for its nodes, and the login host's report.

    <state>/slurm/<run>/
        script job.json secrets.json submitted.json stop.json end.json
        start.<job>.<restart>/       files that the nodes of one start exchange
            attempt.json notice.json heeded.<member>.json stop.json preempted.json requeued.json awaiting.json
            arrived.json

Pure.
"""

import re
import time
from typing import Any, Mapping, NamedTuple, Optional, Tuple

from ..logs.log_frames import is_run
from ..run.plan import NodePlan
from ..schema.fields import Fields
from ..schema.record import checked, field, maybe, nested, read_record, record
from ..verdict.judge import VerdictRecord
from ..workdir.sync_records import SyncRequest

AFTER_ALL_NODES = 1 << 20  # the member index of a verdict that Slurm has
BY_SCRIPT = "slurm"  # the writer of a verdict without nodes that the job's script or its submission has recorded
JOB_ID = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?")  # an array's has its index behind
COMMENT = "clusterddp:"  # begins a job's comment; the id of the run, or of its array, follows
SUBMITTED = "submitted"  # the script's first word where we submit it; by hand it has none
NOT_OURS = 92  # the script's exit code where another user owns or could replace the state folder on a node
NOT_SHARED = 93  # the script's exit code where its run's folder is not on the job's first node
OUR_CODE, PROJECT_CODE = "clusterddp.pyz", "code"  # file names in the run's folder, where nodes share no folder
NOT_WRITTEN = 94  # the script's exit code where what the run needs could not be written into its folder on a node
START = re.compile(r"start\.([0-9]{1,10})\.([0-9]{1,10})")  # a job's number, and how often it was requeued before


def in_array(text: str, array: str, index: str, run: str) -> str:
    """Fill in a text that was written for all runs of an array with one run's index and id."""
    return text.replace(index_of(array), index).replace(array, run)


def index_of(array: str) -> str:
    """The placeholder for the index in texts for all runs of an array."""
    return array + "-K"


def job_number(environment: Mapping[str, str]) -> str:
    """The current job's number, of an array with the index behind; raises KeyError outside of a job.

    An array's last task has the array's number as its SLURM_JOB_ID, which commands of Slurm's take for all its tasks.
    """
    array = environment.get("SLURM_ARRAY_JOB_ID")
    return "%s_%s" % (array, environment["SLURM_ARRAY_TASK_ID"]) if array else environment["SLURM_JOB_ID"]


def start_name(environment: Mapping[str, str]) -> str:
    """The name of the folder for the current start, from a job's environment; raises KeyError outside of a job."""
    return "start.%s.%s" % (environment["SLURM_JOB_ID"], environment.get("SLURM_RESTART_COUNT") or "0")


@record
class SentCode(NamedTuple):
    """How the project's code reaches a job whose nodes share no folder."""

    # what each node's workdir is to hold; without a digest none is sent, and each node uses the code it has
    order: SyncRequest = field(nested(SyncRequest))
    # sent by sbcast, at the request of a client that follows the run; else it is in the job's script
    broadcast: bool = field(Fields.flag, default=False)
    more: Mapping[str, Any] = {}


@record
class SlurmJob(NamedTuple):
    """What each node of a job has to start, as far as it is known before Slurm has chosen the nodes."""

    # our state folder, which all nodes and the login host share
    state: str = field(checked(lambda path: path.startswith("/"), "an absolute path"))
    plan: NodePlan = field(nested(NodePlan))  # of a node that stands for all
    # the training interpreter that is wanted: ``clusterddp_python``
    python: Optional[str] = field(Fields.maybe_text, default=None)
    nproc: Optional[int] = field(Fields.maybe_number, default=None)  # workers of each node; None: one a GPU, else one
    interface: Optional[str] = field(Fields.maybe_text, default=None)
    inside: bool = field(Fields.flag, default=False)  # the run uses a job that existed before and goes on after it
    # given if its nodes share no folder with each other or the login host: each has its own ``state``
    sent_code: Optional[SentCode] = field(maybe(nested(SentCode)), default=None)
    more: Mapping[str, Any] = {}


@record
class SubmittedRun(NamedTuple):
    """A login host's report on a run that was submitted there."""

    run: str = field(checked(is_run, "a run's id"))
    plan: NodePlan = field(nested(NodePlan))
    # Slurm's job id
    job: Optional[str] = field(maybe(checked(JOB_ID.fullmatch, "a job's number")), default=None)
    stopped: Optional[str] = field(Fields.maybe_text, default=None)  # why a stop was ordered, if one was
    starts: int = field(Fields.number, default=0)  # how often Slurm has started it
    attempt: int = field(Fields.number, default=0)  # of the last start, known or expected
    end: Optional[VerdictRecord] = field(maybe(nested(VerdictRecord)), default=None)  # the job's final verdict
    inside: bool = field(Fields.flag, default=False)  # the job existed before the run
    secrets: bool = field(Fields.flag, default=False)  # whether their values are still stored
    unshared: bool = field(Fields.flag, default=False)  # its nodes share no folder
    # of such a run: its script waits until its nodes' files are fetched
    awaits_collection: bool = field(Fields.flag, default=False)
    # of such a run: the start whose nodes wait for their code
    awaiting: Optional[str] = field(maybe(checked(START.fullmatch, "a start's name")), default=None)
    submitting: bool = field(Fields.flag, default=False)  # sbatch still runs, and has printed no job number yet
    more: Mapping[str, Any] = {}


def read_slurm_job(data: Any) -> SlurmJob:
    """Read a job from its JSON object; raises DamagedError."""
    return read_record(SlurmJob, data, "job")


def slurm_verdict(attempt: int, state: str, code: int, line: str, hosts: Tuple[str, ...] = ()) -> VerdictRecord:
    """A verdict from Slurm's information, rather than from nodes of the run; ``hosts`` have reported."""
    now, reporting = time.time_ns(), (*hosts, "slurm")
    return VerdictRecord(attempt, state, code, line, BY_SCRIPT, AFTER_ALL_NODES, reporting, written=now, ended=now)
