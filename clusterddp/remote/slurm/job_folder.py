"""The folder of a run that Slurm starts, which all its nodes and the login host share: its files."""

import os
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, TypeVar

from ..helper.request import Request
from ..shared.run.spool_records import StopOrder, read_stop_order
from ..shared.schema.record import written
from ..shared.slurm.job_record import OUR_CODE, PROJECT_CODE, START, SlurmJob, read_slurm_job
from ..shared.verdict.verdict_record import VerdictRecord, read_verdict
from ..spool.layout import Spool, all_spools, record_at
from ..system.bootstrap import Refused, read_json, write_json

T = TypeVar("T")
NAME = "slurm"  # of the folder in the state folder that holds those of all runs


class JobFolder:
    """One run's folder."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    @classmethod
    def of(cls, state: str, run: str) -> "JobFolder":
        """The folder of a run."""
        return cls(os.path.join(state, NAME, run))

    @property
    def run(self) -> str:
        """The run's id."""
        return os.path.basename(self.path)

    @property
    def state(self) -> str:
        """The state folder it is in."""
        return os.path.dirname(os.path.dirname(self.path))

    def file(self, *names: str) -> str:
        """A path inside."""
        return os.path.join(self.path, *names)

    def job(self) -> SlurmJob:
        """What is to be started.

        Raises:
            Refused: that is not there, or damaged.
        """
        found = self._record("job.json", read_slurm_job)
        if found is None:
            raise Refused("%s is not there" % self.file("job.json"), "submit the script again")
        return found

    def secrets(self, names: Sequence[str]) -> Dict[str, str]:
        """The values of the run's secrets, by name.

        Raises:
            Refused: one is not there.
        """
        path = self.file("secrets.json")
        found = read_json(path) if names else {}
        known = {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
        missing = [name for name in names if name not in known]
        if missing:
            remedy = "submit by clusterddp, or write that file: a JSON object, mode 0600"
            raise Refused("the value of %s is not in %s" % (", ".join(missing), path), remedy)
        return {name: known[name] for name in names}

    def submitted(self) -> Optional[str]:
        """Slurm's number of the job, as it was submitted or is running; None where nobody knows."""
        found = read_json(self.file("submitted.json"))
        return str(found.get("job")) if isinstance(found, dict) and found.get("job") else None

    def write_submitted(self, job: str) -> None:
        """Keep Slurm's number of the job."""
        write_json(self.file("submitted.json"), {"job": job})

    def write_attempt(self, start: str, attempt: int) -> None:
        """Keep which attempt a start is; the folder is there."""
        write_json(self.file(start, "attempt.json"), {"attempt": attempt})

    def attempt(self) -> int:
        """The run's attempt that its last start is, or will be when its nodes have met; 0: none has begun.

        Once the job was requeued for another one, that.
        """
        starts, earlier = self.starts(), max((spool.attempt for spool in self.spools()), default=0)
        if not starts:
            return earlier
        if os.path.exists(self.file(starts[-1], "requeued.json")):
            return earlier + 1
        found = read_json(self.file(starts[-1], "attempt.json"))
        known = isinstance(found, dict) and type(found.get("attempt")) is int
        return max(earlier, int(found["attempt"])) if known else earlier + 1

    def write_requeued(self, start: str, *, requeued: bool) -> None:
        """Whether the job goes into the queue again after a start, for another attempt."""
        path = self.file(start, "requeued.json")
        write_json(path, {}) if requeued else os.unlink(path)

    def write_notice(self, start: str) -> None:
        """The job's end is near."""
        write_json(self.file(start, "notice.json"), {"time": time.time_ns()})

    def notice(self, start: str) -> bool:
        """Whether that was said to a start."""
        return os.path.exists(self.file(start, "notice.json"))

    def write_heeded(self, start: str, place: int) -> None:
        """Workers of a node have got the notice, and handle it."""
        write_json(self.file(start, "heeded.%d.json" % place), {})

    def heeded(self, start: str) -> bool:
        """Whether workers of any node have."""
        return any(name.startswith("heeded.") for name in os.listdir(self.file(start)))

    def write_parting(self, start: str) -> None:
        """A start will wait for its files to be fetched, from when it says how it ended, or is requeued."""
        write_json(self.file(start, "parting.json"), {})

    def write_collected(self) -> None:
        """What there is of the last start was fetched."""
        for start in self.starts()[-1:]:
            write_json(self.file(start, "collected.json"), {})

    def collected(self, start: str) -> bool:
        """Whether a start's files were fetched."""
        return os.path.exists(self.file(start, "collected.json"))

    def parting(self) -> bool:
        """Whether the last start waits for that."""
        start = next(iter(self.starts()[-1:]), None)
        if start is None or not os.path.exists(self.file(start, "parting.json")) or self.collected(start):
            return False
        return self.end() is not None or os.path.exists(self.file(start, "requeued.json"))

    def write_awaiting(self, start: str) -> None:
        """The nodes of a start wait for their code."""
        write_json(self.file(start, "awaiting.json"), {})

    def write_arrived(self, start: str) -> None:
        """The code of a start is on all of its nodes."""
        write_json(self.file(start, "arrived.json"), {})

    def arrived(self, start: str) -> bool:
        """Whether it is."""
        return os.path.exists(self.file(start, "arrived.json"))

    def awaiting(self) -> Optional[str]:
        """The last start, if it waits for its code."""
        for start in self.starts()[-1:]:
            if os.path.exists(self.file(start, "awaiting.json")) and not self.arrived(start):
                return start
        return None

    def remove_code(self) -> None:
        """Remove the code of a run whose nodes share no folder: the next start brings it again."""
        for name in (OUR_CODE, PROJECT_CODE):
            try:
                os.unlink(self.file(name))
            except FileNotFoundError:
                pass  # none came

    def write_told(self, start: str, place: int, verdict: VerdictRecord) -> None:
        """Keep what a node whose spool nobody else sees says of the run's end."""
        write_json(self.file(start, "verdict.%d.json" % place), written(verdict))

    def told(self, start: str) -> Iterator[VerdictRecord]:
        """What such nodes say of it; damaged ones are left out."""
        for name in sorted(os.listdir(self.file(start))):
            try:
                found = self._record(os.path.join(start, name), read_verdict) if name.startswith("verdict.") else None
            except Refused:
                continue
            if found:
                yield found

    def stop_order(self, start: str = "") -> Optional[StopOrder]:
        """The order to end the run, which every later start refuses; of a ``start`` the one to end that alone."""
        return self._record(os.path.join(start, "stop.json"), read_stop_order)

    def order_stop(self, reason: str, grace: float) -> None:
        """Order the run to end: whoever has begun, and whoever begins later."""
        if self.stop_order() is None:
            write_json(self.file("stop.json"), written(StopOrder(reason, grace)))
        self.remove_secrets()  # a job that still waits never comes to its end
        self._stop_nodes(reason, grace)

    def order_end(self, start: str, reason: str, grace: float) -> None:
        """Order one start of it to end: another may follow."""
        write_json(self.file(start, "stop.json"), written(StopOrder(reason, grace)))
        self._stop_nodes(reason, grace)

    def _stop_nodes(self, reason: str, grace: float) -> None:
        for spool in self.spools():
            if not spool.exit_record():
                spool.write_stop_order(reason, grace)

    def end(self) -> Optional[VerdictRecord]:
        """What the job said in the end; None where it said nothing, or that is damaged."""
        try:
            return self._record("end.json", read_verdict)
        except Refused:
            return None

    def write_end(self, verdict: VerdictRecord) -> None:
        """Keep what the job says in the end; nothing of the secrets is needed any more."""
        write_json(self.file("end.json"), written(verdict))
        self.remove_secrets()

    def remove_secrets(self) -> None:
        """Remove the secrets of a run that nothing starts again."""
        try:
            os.unlink(self.file("secrets.json"))
        except FileNotFoundError:
            pass  # there were none

    def spools(self) -> List[Spool]:
        """The spools of all nodes of the run's last attempt."""
        found = [spool for spool in all_spools(self.state, self.run) if os.path.isdir(spool.folder)]
        last = max((spool.attempt for spool in found), default=0)
        return [spool for spool in found if spool.attempt == last]

    def starts(self) -> List[str]:
        """The folders in which the nodes of a start meet, the last start's last."""
        found = [START.fullmatch(name) for name in os.listdir(self.path)]
        return [one[0] for one in sorted(filter(None, found), key=lambda one: (int(one[1]), int(one[2])))]

    def failures(self) -> Iterator[str]:
        """Why a node of the last start could not begin, if one could not: each by its host, consequences last."""
        for start in self.starts()[-1:]:
            names = sorted(name for name in os.listdir(self.file(start)) if name.startswith("failed."))
            told = [read_json(self.file(start, name)) for name in names]
            found = [one for one in told if isinstance(one, dict)]
            for failed in sorted(found, key=lambda one: bool(one.get("ended"))):
                yield str(failed.get("message"))

    def _record(self, name: str, read: Callable[[Any], T]) -> Optional[T]:
        return record_at(self.file(name), read)


def known_run(request: Request) -> JobFolder:
    """The folder of ``run``; raises Refused."""
    folder = JobFolder.of(request.args["state"], str(request.args["run"]))
    if not os.path.isdir(folder.path):
        raise Refused("run %s was never submitted here" % request.args["run"])
    return folder
