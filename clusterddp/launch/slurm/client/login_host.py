"""The host from which jobs are submitted (a login host over SSH, or this machine), and the requests to it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError, InventoryError, RunError, UnreachableError, UsageError
from clusterddp.hosts.ask import ask, ask_list, reading_answer
from clusterddp.inventory import HostEntry
from clusterddp.launch.slurm.client.answers import (
    ACCOUNTING_FORMAT,
    QUEUE_FORMAT,
    QueuedJob,
    last_error,
    read_accounting,
    read_queue,
    read_scontrol_line,
)
from clusterddp.remote.shared.schema.record import read_record, to_fields
from clusterddp.remote.shared.slurm.job_record import JOB_ID, SubmittedRun
from clusterddp.remote.shared.slurm.login_records import (
    BroadcastRequest,
    CollectRequest,
    CommandAnswer,
    CommandRequest,
    EndRequest,
    OrderedStop,
    RunsRequest,
    RunToSubmit,
    StopCount,
    SubmitRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import Inventory
    from clusterddp.remote.shared.verdict.judge import VerdictRecord

DEFAULT_STATE = "~/.clusterddp"  # of the state folder; all nodes of a job have to see it
LOCAL_NAME = "localhost"  # the name of this machine as the login host
SUBMIT_TIMEOUT = 210.0  # seconds; enough for three commands if the first gets no answer
SEND_TIMEOUT = 3600.0  # seconds to send code that is not in the script
COLLECT_TIMEOUT = 60.0  # seconds to fetch a run's files
COMMAND_TIMEOUT = 90.0  # seconds for one of Slurm's commands, which the login host ends after 60


def login_entry(inventory: Inventory) -> HostEntry:
    """Return the inventory's login host, else this machine; ``InventoryError`` if there are several."""
    logins = inventory.logins
    if len(logins) > 1:
        names = " and ".join(entry.name for entry in logins[:2])
        raise InventoryError(
            f"{names} both have clusterddp_role: login", remedy="leave it to one, or choose by --limit"
        )
    python = None if inventory.path else next((entry.python for entry in inventory.hosts), None)
    local = HostEntry(name=LOCAL_NAME, address=LOCAL_NAME, connection="local", role="login", python=python)
    entry = logins[0] if logins else local
    return replace(entry, state=entry.state or DEFAULT_STATE)


def step_command(job: str, node: str) -> list[str]:
    """Return the command on the login host that reaches a node of a running job, as one more step of the job."""
    return [
        "srun", f"--jobid={job}", "--overlap", f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--quiet",
        "--unbuffered", "--mpi=none", "--cpu-bind=none", "--export=PATH,HOME,USER,LOGNAME", "--chdir=/",
    ]  # fmt: skip


class LoginHost:
    """The open connection to the login host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.state = host.hello.state

    def command(self, *argv: str) -> tuple[int, str, str]:
        """Run one of Slurm's commands: its exit status, stdout, and the end of its stderr; raises HostError."""
        answer = self.host.call("slurm_command", to_fields(CommandRequest(argv=argv)), timeout=COMMAND_TIMEOUT)
        return self._read_ended(answer, argv[0])

    def submit(
        self,
        run: str,
        script: str,
        job: dict[str, Any],
        secrets: dict[str, str],
        *,
        inside: str | None = None,
        runs: Mapping[int, str] = {},
        code: Iterable[bytes] = (),
    ) -> str:
        """Submit a run's script, or start it ``inside`` an existing job, and return Slurm's number of the job.

        ``runs``: the ids of an array's runs, by index; ``run`` is the array's then. ``code``: kept on the login host
        until the job's nodes are sent it (``broadcast``). Raises ``UsageError`` with Slurm's reason if Slurm refuses
        it, ``HostError`` if Slurm does not answer.
        """
        ids = {str(index): run_id for index, run_id in runs.items()}
        order = RunToSubmit(run=run, script=script, job=job, secrets=secrets, inside=inside, runs=ids)
        message = json.dumps(to_fields(order)).encode()
        limit = SEND_TIMEOUT if code else SUBMIT_TIMEOUT
        request = SubmitRequest(message=len(message))
        answer = self.host.upload("slurm_submit", to_fields(request), chain([message], code), timeout=limit)
        status, out, err = self._read_ended(answer, "sbatch")
        if status:
            raise refusal(last_error(err))
        number = out.strip().partition(";")[0]
        if not JOB_ID.fullmatch(number):
            problem = f"sbatch tells no job's number: {last_error(out)}"
            raise HelperError(self.host.name, problem, remedy="see `squeue --me` there: the job may wait")
        return number

    def jobs(self, numbers: Iterable[str]) -> dict[str, QueuedJob]:
        """Slurm's report on these jobs, by number; one that Slurm has forgotten is missing."""
        wanted = set(numbers)
        if not wanted:
            return {}
        arguments = ("--noheader", "--me", "--all", "--array", "--states=all", f"--format={QUEUE_FORMAT}")
        status, out, err = self.command("squeue", *arguments)
        if status:
            raise UnreachableError(self.host.name, f"Slurm does not answer: {last_error(err)}")
        jobs = {job.job: job for job in read_queue(out) if job.job in wanted}
        if missing := sorted(wanted - jobs.keys()):
            options = ["--noheader", "--parsable2", "--allocations", f"--format={ACCOUNTING_FORMAT}"]
            # It fails if Slurm has no accounting.
            _, out, _ = self.command("sacct", *options, f"--jobs={','.join(missing)}")
            jobs |= {job.job: job for job in read_accounting(out) if job.job in missing}
        return jobs

    def number_for_steps(self, number: str) -> str:
        """Return the number by which ``srun`` finds a running job: a job of an array (``7_1``) has another one."""
        if "_" not in number:
            return number
        own_number: str | None = self.host.memory.get(("own number", number))
        if own_number is None:
            _, out, err = self.command("squeue", "--noheader", f"--jobs={number}", "--format=%A")
            own_number = out.strip()
            if not JOB_ID.fullmatch(own_number):
                raise HelperError(self.host.name, f"Slurm tells no number of job {number}: {last_error(err)}")
            self.host.memory["own number", number] = own_number
        return own_number

    def exit_status(self, number: str) -> str:
        """Return how a job's script ended, as Slurm writes it: ``CODE:SIGNAL``; empty if Slurm has forgotten it."""
        status, out, _ = self.command("scontrol", "show", "job", "-o", number)
        if not status:
            return read_scontrol_line(out).get("ExitCode", "")
        _, out, _ = self.command(
            "sacct", "--noheader", "--parsable2", "--allocations", "--format=ExitCode", "-j", number
        )
        return out.strip()

    def runs(self, prefix: str) -> list[SubmittedRun]:
        """Return the runs submitted there whose ids begin with this prefix."""
        return list(ask_list(self.host, "slurm_runs", RunsRequest(run=prefix), SubmittedRun))

    def run(self, run: str) -> SubmittedRun | None:
        """Return the run submitted there that has this id, if there is one."""
        return next((entry for entry in self.runs(run) if entry.run == run), None)

    def job_of(self, run: str) -> tuple[SubmittedRun, str]:
        """Return a run and its job's number; raises RunError if no job of it is known."""
        submitted = self.run(run)
        if submitted is None or submitted.job is None:
            raise RunError(f"run {run} has no job of Slurm's that is known")
        return submitted, submitted.job

    def order_stop(self, run: str, reason: str, grace: float) -> int:
        """Order a run to end; the number of its nodes that have a spool."""
        order = OrderedStop(run=run, reason=reason, grace=grace)
        return ask(self.host, "slurm_stop", order, StopCount).spools

    def collect(self, run: str, job: str, nodes: Sequence[str]) -> dict[str, str]:
        """Fetch a run's files from nodes that share no folder; for each node that failed, why."""
        request = CollectRequest(run=run, job=job, nodes=tuple(nodes))
        answer = self.host.call("slurm_collect", to_fields(request), timeout=COLLECT_TIMEOUT)
        with reading_answer(self.host.name):
            return {str(name): str(why) for name, why in answer.items()}

    def broadcast(self, run: str, job: str, start: str) -> None:
        """Send a run's code, kept on the login host, once to all nodes of its job, which has begun as ``start``."""
        request = BroadcastRequest(run=run, job=job, start=start)
        self.host.call("slurm_broadcast", to_fields(request), timeout=SEND_TIMEOUT)

    def record_end(self, run: str, verdict: VerdictRecord | None) -> None:
        """Record how a run ended, by Slurm's report if its job reported nothing, and delete its secrets."""
        self.host.call("slurm_ended", to_fields(EndRequest(run=run, verdict=verdict)))

    def _read_ended(self, answer: Any, program: str) -> tuple[int, str, str]:
        """Return a command's exit status, stdout and stderr; raises UnreachableError if it did not end in time."""
        with reading_answer(self.host.name):
            ended = read_record(CommandAnswer, answer, "answer")
        if ended.status is None:
            raise UnreachableError(self.host.name, f"{program} did not end in time: Slurm's controller may be down")
        return ended.status, ended.out, ended.err


_REFUSALS = (  # part of Slurm's message → the remedy
    ("Invalid partition", "`sinfo` lists the partitions; set clusterddp_slurm_partition to one of them"),
    ("not permitted to use this partition", "set clusterddp_slurm_partition to one that is open to you"),
    ("Invalid account", "set clusterddp_slurm_account to one of yours (`sacctmgr show associations user=$USER`)"),
    ("Invalid qos", "set clusterddp_slurm_qos to one of yours"),
    ("accounting/QOS policy", "a limit of your account or QOS: `sacctmgr show associations user=$USER` lists them"),
    ("node configuration is not available", "no node of the partition has that; `sinfo -o '%N %c %m %G'` lists them"),
    ("Invalid feature", "`sinfo -o '%N %f'` lists the features that clusterddp_slurm_constraint may name"),
    ("Requested time limit", "ask for less time: --time-limit, or clusterddp_slurm_time"),
    ("Node count specification", "ask for fewer nodes: --nnodes"),
    ("More processors requested", "ask for fewer nodes or CPUs"),
    ("timed out", "its controller is down or busy; should it take the job all the same, nothing of the run starts"),
    ("Unable to contact slurm controller", "ask who runs the cluster: its controller is down"),
    ("authentication error", "ask who runs the cluster: munge does not work on the login host"),
    ("Zero Bytes were transmitted", "`clusterddp doctor` tells more: clocks, or keys of munge, differ"),
)


def refusal(reason: str) -> UsageError:
    """Return the error for a job that Slurm refuses, with Slurm's own reason and the remedy if it is known."""
    remedy = next((remedy for part, remedy in _REFUSALS if part.lower() in reason.lower()), "")
    return UsageError(f"Slurm refuses the job: {reason.removeprefix('Batch job submission failed: ')}", remedy=remedy)
