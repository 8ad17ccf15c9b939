"""Access to the files in the folder of a run under Slurm, which its nodes and the login host share."""

import json
import os
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

from ..shared.run.plan import SECRETS
from ..shared.run.spool_records import StopOrder, read_stop_order
from ..shared.schema.fields import DamagedError, Fields
from ..shared.schema.json_text import read_json
from ..shared.schema.record import field, read_record, record, to_fields
from ..shared.slurm.job_record import OUR_CODE, PROJECT_CODE, START, SlurmJob, read_slurm_job
from ..shared.verdict.judge import VerdictRecord, read_verdict
from ..spool.layout import Spool, all_spools, record_at
from ..system.bootstrap import Refused, write_json, write_private
from ..system.small_files import is_locked, names_in
from .shared_exchange import NodeFailure

T = TypeVar("T")
NAME = "slurm"  # of the folder in the state folder that holds all runs' folders
SUBMITTING = "submitting"  # a file that is locked while the run is submitted; the runs of an array share it


@record
class SubmittedJob(NamedTuple):
    """What Slurm said when the run was submitted (``submitted.json``)."""

    job: str = field(Fields.text)  # its id


@record
class BegunAttempt(NamedTuple):
    """The attempt that a start is (``attempt.json`` in the start's folder)."""

    attempt: int = field(Fields.number)


class JobFolder:
    """The folder of one run; a ``start`` is the name of one start of its job, whose files are in a subfolder."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    @classmethod
    def of(cls, state: str, run: str) -> "JobFolder":
        """Return the folder of a run in a state folder."""
        return cls(os.path.join(state, NAME, run))

    @property
    def run(self) -> str:
        """The run's id."""
        return os.path.basename(self.path)

    @property
    def state(self) -> str:
        """The state folder that contains it."""
        return os.path.dirname(os.path.dirname(self.path))

    def file(self, *names: str) -> str:
        """Return a path inside the folder."""
        return os.path.join(self.path, *names)

    def job(self) -> SlurmJob:
        """Read ``job.json``: what the nodes have to start; raises Refused if it is missing or damaged."""
        job = self._record("job.json", read_slurm_job)
        if job is None:
            raise Refused("%s is not there" % self.file("job.json"), "submit the script again")
        return job

    @property
    def secrets_path(self) -> str:
        """The path of the JSON file with the values of the run's secrets."""
        return self.file(SECRETS)

    def write_secrets(self, values: Mapping[str, str]) -> None:
        """Store the values of the run's secrets, by name."""
        write_private(self.secrets_path, json.dumps(values).encode())

    def secrets(self, names: Sequence[str]) -> Dict[str, str]:
        """Read the values of the run's secrets, by name; raises Refused if a value is missing."""
        path = self.secrets_path
        stored = read_json(path) if names else {}
        values = {str(name): str(value) for name, value in stored.items()} if isinstance(stored, dict) else {}
        missing = [name for name in names if name not in values]
        if missing:
            remedy = "submit by clusterddp, or write that file: a JSON object, mode 0600"
            raise Refused("the value of %s is not in %s" % (", ".join(missing), path), remedy)
        return {name: values[name] for name in names}

    def submitted(self) -> Optional[str]:
        """Return Slurm's job id, as recorded at the submission or start; None if unknown."""
        submitted = self._record_if_intact("submitted.json", SubmittedJob)
        return submitted.job or None if submitted else None

    def write_submitted(self, job: str) -> None:
        """Record Slurm's job id."""
        write_json(self.file("submitted.json"), to_fields(SubmittedJob(job)))

    def is_being_submitted(self) -> bool:
        """Whether sbatch still runs for this run, so that its job has no number yet (for seconds, if Slurm is busy)."""
        if self.submitted():
            return False
        try:
            return is_locked(os.path.realpath(self.file(SUBMITTING)))
        except OSError:  # a file system without locks
            return False

    def write_attempt(self, start: str, attempt: int) -> None:
        """Record the attempt's number of a start, whose folder must exist."""
        write_json(self.file(start, "attempt.json"), to_fields(BegunAttempt(attempt)))

    def attempt(self) -> int:
        """Return the attempt's number of the last start, even before its nodes have met; 0: none has begun.

        After a requeue it is the number of the next attempt.
        """
        starts, earlier = self.starts(), max((spool.attempt for spool in self.spools()), default=0)
        if not starts:
            return earlier
        if os.path.exists(self.file(starts[-1], "requeued.json")):
            return earlier + 1
        begun = self._record_if_intact(os.path.join(starts[-1], "attempt.json"), BegunAttempt)
        return max(earlier, begun.attempt) if begun else earlier + 1

    def relaunches(self, start: str, attempt: int = 0) -> int:
        """Return how many relaunches the job has used at a start, and an attempt in it if one has begun.

        The start after a preemption is none. An attempt that hosts have begun by themselves, within a start, is one.
        """
        job, restarts = _numbers(start)
        earlier = [name for name in self.starts() if (job, 0) <= _numbers(name) < (job, restarts)]
        preempted = [name for name in earlier if os.path.exists(self.file(name, "preempted.json"))]
        used = restarts
        for name in (*earlier, start):
            begun = self._record_if_intact(os.path.join(name, "attempt.json"), BegunAttempt)
            if begun:  # the first attempt that is known: of a run submitted again by hand it is not number 1
                used = max(restarts, attempt - begun.attempt + _numbers(name)[1])
                break
        return used - len(preempted)

    def write_preempted(self, start: str) -> None:
        """Record that Slurm has ended a start for another job."""
        write_json(self.file(start, "preempted.json"), {})

    def write_requeued(self, start: str, *, requeued: bool) -> None:
        """Record, or delete the record, that the job is requeued after a start for another attempt."""
        path = self.file(start, "requeued.json")
        write_json(path, {}) if requeued else os.unlink(path)

    def write_notice(self, start: str) -> None:
        """Record the notice that the job's end is near."""
        write_json(self.file(start, "notice.json"), {"time": time.time_ns()})

    def notice(self, start: str) -> bool:
        """Whether a start has received the notice that its end is near."""
        return os.path.exists(self.file(start, "notice.json"))

    def write_notice_handled(self, start: str, member: int) -> None:
        """Record that workers of a node have received the notice and handle it."""
        write_json(self.file(start, "heeded.%d.json" % member), {})

    def notice_handled(self, start: str) -> bool:
        """Whether workers of any node have received the notice and handle it."""
        return any(name.startswith("heeded.") for name in os.listdir(self.file(start)))

    def write_awaits_collection(self, start: str) -> None:
        """Record that a start, after its end or requeueing is recorded, waits for its files to be fetched."""
        write_json(self.file(start, "awaits_collection.json"), {})

    def write_collected(self) -> None:
        """Record that the files of the last start were fetched."""
        for start in self.starts()[-1:]:
            write_json(self.file(start, "collected.json"), {})

    def collected(self, start: str) -> bool:
        """Whether a start's files were fetched."""
        return os.path.exists(self.file(start, "collected.json"))

    def awaits_collection(self) -> bool:
        """Whether the last start is waiting for its files to be fetched."""
        start = next(iter(self.starts()[-1:]), None)
        if start is None or not os.path.exists(self.file(start, "awaits_collection.json")) or self.collected(start):
            return False
        return self.final_verdict() is not None or os.path.exists(self.file(start, "requeued.json"))

    def write_awaiting(self, start: str) -> None:
        """Record that the nodes of a start wait for their code."""
        write_json(self.file(start, "awaiting.json"), {})

    def write_arrived(self, start: str) -> None:
        """Record that the code of a start is on all of its nodes."""
        write_json(self.file(start, "arrived.json"), {})

    def arrived(self, start: str) -> bool:
        """Whether the code of a start is on all of its nodes."""
        return os.path.exists(self.file(start, "arrived.json"))

    def awaiting(self) -> Optional[str]:
        """Return the last start's name, if its nodes wait for their code."""
        for start in self.starts()[-1:]:
            if os.path.exists(self.file(start, "awaiting.json")) and not self.arrived(start):
                return start
        return None

    def remove_code(self) -> None:
        """Remove the code of a run whose nodes share no folder; the next start delivers it again."""
        for name in (OUR_CODE, PROJECT_CODE):
            try:
                os.unlink(self.file(name))
            except FileNotFoundError:
                pass  # none came

    def write_verdict(self, start: str, member: int, verdict: VerdictRecord) -> None:
        """Store the verdict of a node whose spool the others cannot see."""
        write_json(self.file(start, "verdict.%d.json" % member), to_fields(verdict))

    def verdicts(self, start: str) -> Iterator[VerdictRecord]:
        """Iterate over the verdicts stored by such nodes; damaged ones are skipped."""
        for name in sorted(os.listdir(self.file(start))):
            try:
                verdict = self._record(os.path.join(start, name), read_verdict) if name.startswith("verdict.") else None
            except Refused:
                continue
            if verdict:
                yield verdict

    def stop_order(self, start: str = "") -> Optional[StopOrder]:
        """Read the order to stop the run, which later starts obey too, or the order to stop just one ``start``."""
        return self._record(os.path.join(start, "stop.json"), read_stop_order)

    def order_stop(self, reason: str, grace: float) -> None:
        """Order the run to stop: nodes that have started, and those that start later."""
        if self.stop_order() is None:
            write_json(self.file("stop.json"), to_fields(StopOrder(reason, grace)))
        self.remove_secrets()  # a job that is still queued never runs its end step
        self._stop_nodes(reason, grace)

    def order_start_to_stop(self, start: str, reason: str, grace: float) -> None:
        """Order one start of the run to stop; another may follow."""
        write_json(self.file(start, "stop.json"), to_fields(StopOrder(reason, grace)))
        self._stop_nodes(reason, grace)

    def _stop_nodes(self, reason: str, grace: float) -> None:
        for spool in self.spools():
            if not spool.exit_record():
                spool.write_stop_order(reason, grace)

    def final_verdict(self) -> Optional[VerdictRecord]:
        """Read the job's final verdict; None if there is none or it is damaged."""
        try:
            return self._record("end.json", read_verdict)
        except Refused:
            return None

    def write_final_verdict(self, verdict: VerdictRecord) -> None:
        """Store the job's final verdict and remove the secrets."""
        write_json(self.file("end.json"), to_fields(verdict))
        self.remove_secrets()

    def remove_secrets(self) -> None:
        """Remove the run's secrets."""
        try:
            os.unlink(self.secrets_path)
        except FileNotFoundError:
            pass  # there were none

    def spools(self) -> List[Spool]:
        """List the spools of all nodes of the run's last attempt."""
        spools = [spool for spool in all_spools(self.state, self.run) if os.path.isdir(spool.folder)]
        last = max((spool.attempt for spool in spools), default=0)
        return [spool for spool in spools if spool.attempt == last]

    def starts(self) -> List[str]:
        """List the names of the starts' folders, the last start's last."""
        return sorted(filter(START.fullmatch, os.listdir(self.path)), key=_numbers)

    def failures(self) -> Iterator[str]:
        """Iterate over the errors of the last start's nodes that could not begin; nodes that Slurm ended come last."""
        for start in self.starts()[-1:]:
            names = sorted(name for name in os.listdir(self.file(start)) if name.startswith("failed."))
            failures = [self._record_if_intact(os.path.join(start, name), NodeFailure) for name in names]
            for failure in sorted(filter(None, failures), key=lambda failure: failure.ended):
                yield failure.message

    def _record_if_intact(self, name: str, kind: Type[T]) -> Optional[T]:
        """A small record; None if its file is missing, or the record is damaged."""
        stored = read_json(self.file(name))
        try:
            return None if stored is None else read_record(kind, stored, name)
        except DamagedError:
            return None

    def _record(self, name: str, read: Callable[[Any], T]) -> Optional[T]:
        return record_at(self.file(name), read)


def _numbers(start: str) -> Tuple[int, int]:
    """A start's job, and how often that was started before."""
    _, job, restarts = start.split(".")
    return int(job), int(restarts)


def existing_folder(state: str, run: str) -> JobFolder:
    """Return the folder of a run; raises Refused if it does not exist."""
    folder = JobFolder.of(state, run)
    if not os.path.isdir(folder.path):
        raise Refused("run %s was never submitted here" % run)
    return folder


def run_folders(state: str) -> List[JobFolder]:
    """The folders of all runs submitted here that have a job."""
    parent = os.path.join(state, NAME)
    folders = [JobFolder(os.path.join(parent, name)) for name in sorted(names_in(parent))]
    return [folder for folder in folders if os.path.exists(folder.file("job.json"))]
