"""What the operator asks of a run's login host or of a job's first node, and the answers, one class an operation."""

from typing import Any, Mapping, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import by_key, field, maybe, nested, read_record, record
from ..verdict.judge import VerdictRecord


@record
class CommandRequest(NamedTuple):
    """``slurm_command``: a Slurm command to run."""

    argv: Tuple[str, ...] = field(Fields.texts)


@record
class CommandAnswer(NamedTuple):
    """What a Slurm command gave."""

    status: Optional[int] = field(Fields.maybe_integer)  # None: it did not end in time
    out: str = field(Fields.any_text)
    err: str = field(Fields.any_text)  # its end


@record
class SubmitRequest(NamedTuple):
    """``slurm_submit``: the operator's data is a ``RunToSubmit``'s JSON, and after it the code for the job's nodes."""

    message: int = field(Fields.number)  # bytes of that JSON


@record
class RunToSubmit(NamedTuple):
    """A run that is to be submitted."""

    run: str = field(Fields.text)  # the array's id, of an array of runs
    script: str = field(Fields.any_text)
    job: Mapping[str, Any] = field(Fields.raw)  # the JSON of a SlurmJob
    secrets: Mapping[str, str] = field(Fields.raw)
    inside: Optional[str] = field(Fields.maybe_text)  # the number of an existing job in which the script has to run
    runs: Mapping[str, str] = field(by_key(Fields.text))  # the ids of an array's runs by index, or none


@record
class RunsRequest(NamedTuple):
    """``slurm_runs``: which runs to report."""

    run: str = field(Fields.text)  # their ids begin with it


@record
class OrderedStop(NamedTuple):
    """``slurm_stop``: the order to end a run, now and at every later start."""

    run: str = field(Fields.text)
    reason: str = field(Fields.text)
    grace: float = field(Fields.real)  # seconds from SIGTERM to SIGKILL


@record
class StopCount(NamedTuple):
    """The answer to ``slurm_stop``."""

    spools: int = field(Fields.number)  # nodes of the run that have begun


@record
class EndRequest(NamedTuple):
    """``slurm_ended``: a run is over, and its secrets and code go."""

    run: str = field(Fields.text)
    verdict: Optional[VerdictRecord] = field(maybe(nested(VerdictRecord)))  # stored unless its job has stored its own


@record
class SecretsRequest(NamedTuple):
    """``slurm_secrets``: the values for which a run's nodes wait."""

    run: str = field(Fields.text)
    secrets: Mapping[str, str] = field(Fields.raw)


@record
class CollectRequest(NamedTuple):
    """``slurm_collect``: fetch a run's files from the nodes of its job; the answer is the errors by node."""

    run: str = field(Fields.text)
    job: str = field(Fields.text)
    nodes: Tuple[str, ...] = field(Fields.texts)


@record
class CollectedRequest(NamedTuple):
    """``slurm_collected``: a run's files were fetched, so that its job may end."""

    run: str = field(Fields.text)


@record
class BroadcastRequest(NamedTuple):
    """``slurm_broadcast``: send a run's code to all nodes of its job, once for each start."""

    run: str = field(Fields.text)
    job: str = field(Fields.text)
    start: str = field(Fields.text)  # the name of its folder


@record
class ArrivedRequest(NamedTuple):
    """``slurm_arrived``: the code of a start is on all nodes of its job."""

    run: str = field(Fields.text)
    start: str = field(Fields.text)


def read_run_to_submit(data: Any) -> RunToSubmit:
    """Read a run to submit from its JSON object; raises DamagedError."""
    return read_record(RunToSubmit, data, "submission")
