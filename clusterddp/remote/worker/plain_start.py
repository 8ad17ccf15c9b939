"""Start a worker plainly: the shim's own child, which execs the real interpreter with the start-up hook."""

import os
import signal
from typing import Any, Dict, List, NamedTuple, NoReturn, Tuple

from ..shared.processes.exit_codes import EXIT_CANNOT_START
from ..shared.run.plan import worker_key
from ..spool.events import agent_bytes, append_event
from ..system import prctl
from ..system.oom_kills import OOM_SCORE


class Worker(NamedTuple):
    """One worker: its spool, its start and local rank, and the command to execute."""

    spool: str
    start: int
    local_rank: int
    python: str
    args: List[str]
    env: Dict[str, str]
    record: Dict[str, Any]

    @property
    def key(self) -> str:
        """``<start>.<local_rank>``, which names the worker's files."""
        return worker_key(self.start, self.local_rank)

    def event(self, name: str, **fields: Any) -> None:
        """Append an event about this worker; on a full disk it is lost."""
        fields.update(start=self.start, local_rank=self.local_rank, agent_bytes=agent_bytes(self.spool))
        append_event(os.path.join(self.spool, "events.jsonl"), name, **fields)


class Plain:
    """A worker that is this process's own child. ``out`` and ``err`` are the descriptors of its output files."""

    forked = False

    def __init__(self, worker: Worker, out: int, err: int) -> None:
        parent = os.getpid()
        released, self._release = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._release)
            _exec_worker(worker, parent, released, out, err)
        os.close(released)
        os.setpgid(self.pid, self.pid)

    def release(self) -> None:
        """Let the worker begin."""
        os.close(self._release)

    def lives(self) -> bool:
        """Whether the worker has not ended yet."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None

    def wait(self) -> None:
        """Return when the worker has ended."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def reap(self) -> Tuple[int, int]:
        """Wait status and maxrss (KiB) of the worker."""
        _, status, usage = os.wait4(self.pid, 0)
        return status, usage.ru_maxrss


def _exec_worker(worker: Worker, parent: int, released: int, out: int, err: int) -> NoReturn:
    """In the child: wait for the release, then become the worker."""
    try:
        os.setpgid(0, 0)
        prctl.set_pdeathsig(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(EXIT_CANNOT_START)  # the shim died in between; nobody wants this worker
        prctl.set_oom_score_adj(OOM_SCORE)
        os.read(released, 1)
        os.dup2(out, 1)
        os.dup2(err, 2)
        _reset_signals()
        os.execve(worker.python, [worker.python, *worker.args], worker.env)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        text = "clusterddp: cannot start %s: %s; check clusterddp_python\n" % (worker.python, reason)
        os.write(2, os.fsencode(text))
    finally:
        os._exit(EXIT_CANNOT_START)


def _reset_signals() -> None:
    """Set signal dispositions and mask as at a login; Python and daemons ignore some signals."""
    for number in signal.valid_signals():
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # SIGKILL, SIGSTOP and the C library's own
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
