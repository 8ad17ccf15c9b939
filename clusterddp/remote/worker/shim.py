"""The parent of one worker, which torchrun starts in the worker's place (PYTHON_EXEC); it starts the worker.

It opens the worker's output files, records the start, forks, execs the real interpreter with the start-up hook,
forwards signals, records how the worker ended, and then dies the same way, so that torchrun sees no difference. The
worker cannot outlive its agent: the kernel signals the agent's death to the shim, and the shim's to the worker.
"""

import errno
import json
import os
import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, Union

from ..shared.processes.exit_codes import EXIT_CANNOT_START, EXIT_NOT_THE_SCRIPT
from ..shared.run.plan import FORK_SOCKET, PLAN, SECRETS, SUPERVISOR, read_plan, worker_key
from ..system import disk_space, prctl
from ..system.oom_kills import OomKills
from .grace import TIMER, Grace
from .plain_start import Plain, Worker
from .worker_env import original_environment, recorded_variables, script_environment, worker_environment, wrong_size

if TYPE_CHECKING:
    from .fork_client import Forked

# torchrun ends a worker by killpg on the shim. The worker has a group of its own, so the shim signals that whole group,
# DataLoader workers included, as torchrun would.
TO_GROUP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCONT, signal.SIGTSTP)
# "Save a checkpoint": meant for the script alone. By default they would kill its spawned children.
TO_WORKER = (signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
AGENT_DIED = signal.SIGRTMIN + 8  # from the kernel: the group is killed, and that is still recorded
GRACE_OVER = TIMER
OURS = (*TO_GROUP, *TO_WORKER, AGENT_DIED, GRACE_OVER)

DEFAULT_GRACE = 30  # seconds, torchrun's own
ERR_ROOM = 16 << 10  # bytes that a worker can write on stderr when the disk is full: a traceback or two


def main(argv: List[str]) -> int:
    """Run one worker to its end and die as it died.

    ``argv``: the spool, then the interpreter's arguments as torchrun gave them. Returns the worker's exit code; where a
    signal ended the worker, this process ends by that signal instead.
    """
    spool, args = os.path.abspath(argv[0]), argv[1:]
    if not _die_with_agent(spool):
        return EXIT_CANNOT_START
    environment = original_environment(dict(os.environ))
    local_rank = int(environment.get("LOCAL_RANK") or 0)
    try:
        plan = read_plan(_read_json(spool, PLAN))
        python = plan.python
        start, out, err = open_output(spool, local_rank)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write("clusterddp: cannot start a worker from %s: %r; start a new run\n" % (spool, error))
        return EXIT_CANNOT_START
    environment.update(_secrets(spool))
    env = worker_environment(environment, spool, worker_key(start, local_rank))
    worker = Worker(spool, start, local_rank, python, args, env, recorded_variables(environment))
    wrong = wrong_size(plan, worker.record)
    return refuse(worker, err, wrong) if wrong else _die_like(run(worker, out, err))


def refuse(worker: Worker, err: int, reason: str) -> int:
    """Start no worker; write the reason to its output and events."""
    worker.event("worker_started", pid=os.getpid(), **worker.record)
    os.write(err, ("clusterddp: %s\n" % reason).encode())
    ended = {"status": EXIT_NOT_THE_SCRIPT << 8, "exit_code": EXIT_NOT_THE_SCRIPT, "signal": None, "maxrss_kib": None}
    worker.event("worker_exited", rank=worker.record["rank"], pid=os.getpid(), **ended)
    return EXIT_NOT_THE_SCRIPT


def _die_with_agent(spool: str) -> bool:
    """Have the kernel signal this process when the agent dies; False if it died before that."""
    prctl.set_pdeathsig(AGENT_DIED)
    try:
        supervisor = int(_read_json(spool, SUPERVISOR)["pid"])
    except (OSError, ValueError, KeyError):
        return True  # started without a supervisor: the agent's death cannot be checked
    return os.getppid() not in (1, supervisor)


def _read_json(spool: str, name: str) -> Any:
    with open(os.path.join(spool, name), "rb") as file:
        return json.loads(file.read())


def _secrets(spool: str) -> Dict[str, str]:
    try:
        return dict(_read_json(spool, SECRETS))
    except FileNotFoundError:
        return {}


def open_output(spool: str, local_rank: int) -> Tuple[int, int, int]:
    """Open the output files of the worker's next start for appending: (start, descriptor of out, descriptor of err).

    The first start whose files do not exist is ours, so restarts, even two at once, never share a file. Where the disk
    takes no new file, the worker's output goes to /dev/null, rather than that the worker does not start.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    start = 0
    while True:
        stem = os.path.join(spool, "logs", worker_key(start, local_rank))
        try:
            out = os.open(stem + ".out", flags | os.O_EXCL, 0o600)
            return start, out, _open_err(stem + ".err", flags)
        except FileExistsError:
            start += 1
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise
            return start, os.open(os.devnull, os.O_WRONLY), os.open(os.devnull, os.O_WRONLY)


def _open_err(path: str, flags: int) -> int:
    err = os.open(path, flags, 0o600)
    disk_space.preallocate(path, ERR_ROOM)
    return err


def run(worker: Worker, out: int, err: int) -> int:
    """Start the worker, forward signals, wait, record start and end; returns the raw wait status.

    The worker waits until its start is on record: no line of it is read before its rank is known.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, OURS)  # none gets lost between the fork and the handlers
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # some daemons leave it ignored: then no child could be waited for
    kills = OomKills()
    process = _start(worker, out, err)
    received: List[Tuple[int, int]] = []
    grace = Grace(worker.spool, float(os.environ.get("PET_SHUTDOWN_TIMEOUT", DEFAULT_GRACE)))
    _forward_to(process, received, grace)
    worker.event("worker_started", pid=process.pid, forked=process.forked, **worker.record)
    process.release()
    for fd in (out, err):
        os.close(fd)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OURS)
    status = _wait_and_record(worker, process, kills, received)
    _keep_error_records(worker)
    return status


def _start(worker: Worker, out: int, err: int) -> "Union[Forked, Plain]":
    """A worker forked by the run's fork server, or where there is none or it refuses, one started plainly."""
    if os.path.exists(os.path.join(worker.spool, FORK_SOCKET)):
        from .fork_client import NotForkedError, fork_worker  # most workers need none of its modules

        argv = [worker.python, *worker.args]
        try:
            return fork_worker(worker.spool, worker.key, argv, script_environment(worker.env), (0, out, err))
        except NotForkedError as error:
            worker.event("not_forked", reason=str(error))
    return Plain(worker, out, err)


def _forward_to(process: "Union[Forked, Plain]", received: List[Tuple[int, int]], grace: Grace) -> None:
    """Forward signals to the worker; ignore the terminal's stop signals.

    When the ``grace`` after a SIGTERM is over, the worker's group is killed: torchrun applies the run's grace only when
    it ends itself, and a fixed 30 s before a restart. Signals that order the worker to end while it lives are appended
    to ``received`` as (signal, ns), as evidence for the verdict.
    """
    pid = process.pid

    def to_group(number: int, _frame: Optional[FrameType]) -> None:
        if number == GRACE_OVER and not grace.is_over():
            return
        deadly = signal.SIGKILL if number in (AGENT_DIED, GRACE_OVER) else number
        if deadly in ENDING and process.lives():
            received.append((int(deadly), time.time_ns()))
        _send_signal(os.killpg, pid, deadly)
        if number == signal.SIGTERM:
            grace.begin()

    def to_worker(number: int, _frame: Optional[FrameType]) -> None:
        _send_signal(os.kill, pid, number)

    for number in (*TO_GROUP, AGENT_DIED, GRACE_OVER):
        signal.signal(number, to_group)
    for number in TO_WORKER:
        signal.signal(number, to_worker)
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)


def _send_signal(call: Any, pid: int, number: int) -> None:
    try:
        call(pid, number)
    except OSError:
        pass  # it has just ended by itself


def _wait_and_record(
    worker: Worker, process: "Union[Forked, Plain]", kills: OomKills, received: List[Tuple[int, int]]
) -> int:
    """Wait until the worker has ended, and record how."""
    process.wait()
    signal.pthread_sigmask(signal.SIG_BLOCK, OURS)  # once it is reaped, its pid may be reused
    ended = process.reap()
    if ended is None:  # its worker parent was killed, and so was the worker: the supervisor adopts and records it
        return signal.SIGKILL
    status, maxrss = ended
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    worker.event(
        "worker_exited",
        rank=worker.record["rank"],
        pid=process.pid,
        status=status,
        exit_code=128 + number if number else os.WEXITSTATUS(status),
        signal=number,
        maxrss_kib=maxrss,
        oom_kills=kills.since() if status else 0,
        signals_received=received,
    )
    return status


def _keep_error_records(worker: Worker) -> None:
    """Copy the record that torch's ``record`` wrote, if the hook wrote none (``os._exit`` after a caught exception).

    Secret values are removed from both records before the agent, which waits for this process, logs torch's.
    """
    own = os.path.join(worker.spool, "errors", worker.key + ".json")
    source = worker.env["TORCHELASTIC_ERROR_FILE"]
    if os.path.exists(os.path.join(worker.spool, SECRETS)):
        from ..spool.quoted import redact_record, redaction_of  # most runs have none

        for path in (source, own):
            redact_record(path, redaction_of(worker.spool))
    if source == own or os.path.exists(own):
        return
    try:
        with open(source, "rb") as file:
            body = file.read()
        with open(own + ".new", "wb", opener=_private) as copy:
            copy.write(body)
        os.replace(own + ".new", own)
    except OSError:
        return  # there is none, or no space for it


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _die_like(status: int) -> int:
    """The worker's exit code; if a signal ended the worker, end by it too, without a core file of this process."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    prctl.forbid_core_dump()
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    return 128 + number  # not reached: a signal that ended the worker ends this process
