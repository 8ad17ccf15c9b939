"""The helper's operations on a login host: ask Slurm, submit, report on submitted runs, order a stop."""

import contextlib
import fcntl
import getpass
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
from typing import Any, Container, Dict, Iterator, List, Mapping, Sequence, Set, Tuple

from ..helper.request import Request
from ..shared.processes.exit_codes import EXIT_NOT_THE_SCRIPT
from ..shared.run.run_state import RunState
from ..shared.schema.record import parse_record, to_fields
from ..shared.slurm.job_record import COMMENT, JOB_ID, SUBMITTED, SubmittedRun, in_array, slurm_verdict
from ..shared.slurm.login_records import (
    CommandAnswer,
    CommandRequest,
    EndRequest,
    OrderedStop,
    RunsRequest,
    RunToSubmit,
    StopCount,
    SubmitRequest,
    read_run_to_submit,
)
from ..shared.verdict.failures import ended_by_manager
from ..system.bootstrap import Refused, private, private_folder, write_private
from ..system.bounded_child import Child
from .code_delivery import keep_code
from .job_folder import SUBMITTING, JobFolder, existing_folder, run_folders

PROGRAMS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "sacctmgr")
NOT_SUBMITTED = "sbatch did not end in time, so nobody knows its job"
USER_ARGUMENT = "user=$USER"  # replaced by the user on the login host
# Our scripts set these themselves: as variables of sbatch they would override the `#SBATCH` lines. By SBATCH_EXPORT
# the login's environment would go into the job, by SBATCH_OUTPUT the job's output where others can read it.
SET_BY_SCRIPTS = frozenset(
    "SBATCH_" + name
    for name in (
        "ARRAY_INX", "ERROR", "EXPORT", "GET_USER_ENV", "INPUT", "JOB_NAME", "NO_REQUEUE", "OPEN_MODE", "OUTPUT",
        "REQUEUE", "SIGNAL", "WAIT", "CLUSTERS",
    )
)  # fmt: skip
# Variables by which a login changes what these programs list or ask: an answer without a job means that it is gone.
_CHANGING_ANSWERS = ("SQUEUE_", "SCANCEL_", "SINFO_", "SACCT_", "SCONTROL_", "SLURM_CLUSTERS")
_VARIABLES = {"time": "TIMELIMIT", "mem": "MEM_PER_NODE"}  # those not named after their options
COMMAND_TIMEOUT = 60.0  # seconds: a busy controller answers late


def slurm_command(request: Request) -> Dict[str, Any]:
    """Run a Slurm command; takes a ``CommandRequest``, returns a ``CommandAnswer``."""
    argv = request.read_args(CommandRequest).argv
    return to_fields(
        run_command(["user=%s" % getpass.getuser() if argument == USER_ARGUMENT else argument for argument in argv])
    )


def run_command(argv: List[str], without: Container[str] = ()) -> CommandAnswer:
    """Run a Slurm command with standard time format and C locale, ``without`` some variables; raises Refused."""
    if argv[0] not in PROGRAMS or shutil.which(argv[0]) is None:
        raise Refused(
            "no %s on this host" % argv[0], "give the host from which jobs are submitted clusterddp_role: login"
        )
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in SET_BY_SCRIPTS and name not in without and not name.startswith(_CHANGING_ANSWERS)
    }
    environment.update(SLURM_TIME_FORMAT="standard", LC_ALL="C")
    result = Child(argv, env=environment, timeout=COMMAND_TIMEOUT, cwd="/").answer()
    return CommandAnswer(status=result.status, out=result.text, err=result.output)


def variables_of(script: str) -> Set[str]:
    """The variables by which a login's environment would override the ``#SBATCH`` lines of a script."""
    lines = re.findall(r"^#SBATCH (--.*)", script, re.MULTILINE)
    options = [word[2:].partition("=")[0] for line in lines for word in shlex.split(line) if word.startswith("--")]
    return {"SBATCH_" + _VARIABLES.get(name, name.upper().replace("-", "_")) for name in options}


def submit(request: Request) -> Dict[str, Any]:
    """Operation: submit a run's batch script by sbatch, or start it inside an existing job; an array is one job.

    Takes a ``SubmitRequest``, returns a ``CommandAnswer``.
    """
    to_submit, code = _receive_run(request)
    keep_code(JobFolder.of(request.state, to_submit.run), code)
    runs = to_submit.runs or {"": to_submit.run}
    folders = {index: JobFolder.of(request.state, run) for index, run in runs.items()}
    with _submission(list(folders.values())):
        answer, is_refused = _submit(to_submit, folders)
    if is_refused:
        for folder in folders.values():  # only now: NFS does not remove a folder in which the lock's file is open
            shutil.rmtree(folder.path)
    return to_fields(answer)


@contextlib.contextmanager
def _submission(folders: Sequence[JobFolder]) -> Iterator[None]:
    """Create the runs' folders, and hold their one lock during the block: it tells that they are not lost."""
    for folder in folders:
        private_folder(os.path.dirname(folder.path))
        private_folder(folder.path)
    first, *others = folders
    with open(first.file(SUBMITTING), "ab", opener=private) as lock:
        with contextlib.suppress(OSError):  # a file system without locks: then a look meanwhile takes it for lost
            fcntl.flock(lock, fcntl.LOCK_EX)
        for folder in others:
            os.symlink(os.path.join("..", first.run, SUBMITTING), folder.file(SUBMITTING))
        yield


def _submit(to_submit: RunToSubmit, folders: Mapping[str, JobFolder]) -> Tuple[CommandAnswer, bool]:
    """Write the job's files into its runs' folders (by array index) and submit it; return whether it was refused."""
    for index, folder in folders.items():
        _write_files(folder, index, to_submit)
    script = next(iter(folders.values())).file("script")
    if to_submit.inside:
        return _start_inside_job(folders[""], script, to_submit.inside), False
    answer = run_command(["sbatch", "--parsable", script, SUBMITTED], without=variables_of(to_submit.script))
    job = answer.out.strip().partition(";")[0]
    is_taken = answer.status == 0 and JOB_ID.fullmatch(job) is not None
    is_unknown = answer.status is None or (answer.status != 0 and "timed out" in answer.err)
    for index, folder in folders.items():
        if is_taken:
            number = "%s_%s" % (job, index) if index else job
            folder.write_submitted(number)
            if folder.stop_order():  # it was stopped before anybody knew its number
                run_command(["scancel", number])
        elif is_unknown:  # Slurm may have taken it all the same
            folder.order_stop(NOT_SUBMITTED, 0.0)
            folder.write_final_verdict(slurm_verdict(1, RunState.FAILED, EXIT_NOT_THE_SCRIPT, NOT_SUBMITTED))
    if is_unknown:
        _cancel_by_comment(next(iter(folders.values())), all_runs=True)
    return answer, not is_taken and not is_unknown


def _receive_run(request: Request) -> Tuple[RunToSubmit, Iterator[bytes]]:
    """Receive the run to submit, and return it with the pieces of the project's code, which follow it."""
    data, size = b"", request.read_args(SubmitRequest).message
    while len(data) < size:
        piece = request.read()
        if not piece:
            raise Refused("the run to submit arrived incomplete", "submit it again")
        data += piece
    return parse_record(data[:size], read_run_to_submit), itertools.chain([data[size:]], iter(request.read, b""))


def _write_files(folder: JobFolder, index: str, to_submit: RunToSubmit) -> None:
    """Write the files that a run's job needs into the run's folder."""
    write_private(folder.file("script"), to_submit.script.encode(), 0o700)
    job = in_array(json.dumps(to_submit.job), to_submit.run, index, folder.run)
    write_private(folder.file("job.json"), job.encode())
    if to_submit.secrets:
        folder.write_secrets(to_submit.secrets)


def _start_inside_job(folder: JobFolder, script: str, job: str) -> CommandAnswer:
    """Start a run's script inside an existing job, detached from this connection."""
    folder.write_submitted(job)
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    slurm_conf = {"SLURM_CONF": os.environ["SLURM_CONF"]} if "SLURM_CONF" in os.environ else {}
    with open(folder.path + ".out", "ab", opener=private) as out:
        subprocess.run(
            ["setsid", "--fork", "bash", script],
            check=True,
            env=dict(env, SLURM_JOB_ID=job, **slurm_conf),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    return CommandAnswer(status=0, out=job, err="")


def _cancel_by_comment(folder: JobFolder, *, all_runs: bool = False) -> None:
    """Cancel a run's job, found by its comment, or its whole array: sbatch was cut off, so the number is unknown."""
    record = folder.job().plan.record
    index = "" if all_runs else record.array_and_index[1]
    answer = run_command(["squeue", "--me", "--all", "--noheader", "--format=%F|%k"])
    for line in {*answer.out.splitlines()} if answer.status == 0 else ():
        number, _, comment = line.strip().partition("|")
        job = "%s_%s" % (number, index) if index else number
        if comment == COMMENT + (record.array or folder.run) and JOB_ID.fullmatch(job):
            run_command(["scancel", job])


def slurm_runs(request: Request) -> List[Dict[str, Any]]:
    """List the runs submitted here that a ``RunsRequest`` means; damaged ones are left out."""
    prefix = request.read_args(RunsRequest).run
    runs = []
    for folder in run_folders(request.state):
        if folder.run.startswith(prefix):
            try:
                runs.append(to_fields(_describe_run(folder)))
            except Refused:
                pass  # its job says so
    return runs


def _describe_run(folder: JobFolder) -> SubmittedRun:
    order, job = folder.stop_order(), folder.job()
    return SubmittedRun(
        run=folder.run,
        plan=job.plan,
        inside=job.inside,
        job=folder.submitted(),
        stopped=order.reason if order else None,
        starts=len(folder.starts()),
        attempt=folder.attempt(),
        end=folder.final_verdict(),
        secrets=os.path.exists(folder.secrets_path),
        unshared=job.sent_code is not None,
        awaits_collection=folder.awaits_collection(),
        awaiting=folder.awaiting(),
        submitting=folder.is_being_submitted(),
    )


def slurm_stop(request: Request) -> Dict[str, Any]:
    """Order a run to stop, now and at every later start; takes an ``OrderedStop``, returns a ``StopCount``.

    If the submission was interrupted before sbatch printed the job's number, the job is cancelled by its comment.
    """
    order = request.read_args(OrderedStop)
    folder = existing_folder(request.state, order.run)
    folder.order_stop(order.reason, order.grace)
    if folder.submitted() is None:
        _cancel_by_comment(folder)
    return to_fields(StopCount(spools=len(folder.spools())))


def slurm_ended(request: Request) -> None:
    """Store the end of a run if one is given, and remove the run's secrets and code; takes an ``EndRequest``."""
    request_args = request.read_args(EndRequest)
    folder, verdict = existing_folder(request.state, request_args.run), request_args.verdict
    recorded = folder.final_verdict()
    by_manager = recorded is not None and recorded.line.endswith(ended_by_manager(folder.job().plan.manager))
    if verdict and (
        recorded is None or recorded.attempt < verdict.attempt or by_manager
    ):  # else the job has its own verdict
        folder.write_final_verdict(verdict)
    folder.remove_secrets()
    folder.remove_code()
    for spool in folder.spools():
        spool.drop_secrets()
