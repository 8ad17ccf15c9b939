"""The operation ``break_in``: stop a worker that is at no breakpoint where it is, for ``clusterddp debug``.

Python 3.14 can be told from outside to run a file (PEP 768); its main thread does so at its next instruction, and at
the end of some waits. The file is the hook's ``break_in.py``, which stops the worker as ``breakpoint()`` does, unless
the request, an empty file in ``debug/``, is gone: then the operator has given up.
"""

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional

from ..helper.request import Request
from ..shared.processes.debug_records import BreakInRequest, StopReport
from ..shared.schema.record import to_fields
from ..spool.layout import Spool
from ..system.bootstrap import Refused
from ..system.bounded_child import Child
from .debug_stops import stops_of
from .stacks import LiveWorker, live_workers, send_stack_signal

if TYPE_CHECKING:
    from ..shared.run.event_schema import NodeEvent

REQUEST = ".wanted"  # after a worker's name, in debug/; the same is in worker/hook/rank_debugger.py
ASK_TIMEOUT = 5.0  # seconds for the worker's Python to start and to ask
WAKE_AFTER = 1.0  # seconds without a stop, after which a signal ends the wait that the worker may be in
GIVE_UP_AFTER = 2.5  # seconds without a stop
CLAIM_TIMEOUT = 1.0  # seconds that a worker has for its stop once it has taken the request
INTERVAL = 0.02  # seconds between two looks
# Run by the worker's own Python, which has to be of the same version. What it says at its end is shown.
ASK = """
import sys
if not hasattr(sys, "remote_exec"):
    sys.exit("Python %d.%d lets no debugger in, 3.14 and newer do" % sys.version_info[:2])
try:
    sys.remote_exec(int(sys.argv[1]), sys.argv[2])
except PermissionError:
    sys.exit("the host's kernel lets no process into another (sysctl kernel.yama.ptrace_scope)")
except Exception as error:
    sys.exit("Python lets no debugger in: %s" % error)
"""


def break_in(request: Request) -> List[Dict[str, Any]]:
    """Operation: stop the worker of a ``BreakInRequest``; its ``StopReport`` once it waits there, none elsewhere.

    Raises Refused if it cannot be stopped.
    """
    asked = request.read_args(BreakInRequest)
    spool = Spool(asked.spool)
    workers = [worker for worker in live_workers(spool.events()) if worker.rank == asked.rank]
    return [to_fields(_stop(spool, worker)) for worker in workers]


def _stop(spool: Spool, worker: "NodeEvent") -> StopReport:
    target = LiveWorker(spool, worker)
    if target.state == "T":
        raise Refused("it is stopped (SIGSTOP)")
    with _request(spool, worker) as path:
        _ask(spool, target.pid)
        stop = _wait_for_stop(spool, worker, target, path)
    if stop is None:
        raise Refused("it does not come back to its Python code: it is in C code, or waits for a lock")
    return stop


@contextlib.contextmanager
def _request(spool: Spool, worker: "NodeEvent") -> Iterator[str]:
    """The request's path; the worker takes the file away when it stops."""
    path = os.path.join(spool.debug, worker.key + REQUEST)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _ask(spool: Spool, pid: int) -> None:
    """Let the worker's Python ask it to run the hook's file; raises Refused."""
    argv = [spool.plan().python, "-I", "-S", "-c", ASK, str(pid), spool.path("hook", "break_in.py")]
    try:
        result = Child(argv, env=dict(os.environ), timeout=ASK_TIMEOUT).answer()
    except OSError as error:
        raise Refused("its Python does not start: %s" % error) from None
    if result.status != 0:
        raise Refused(result.last_line() or "its Python does not answer")


def _wait_for_stop(spool: Spool, worker: "NodeEvent", target: LiveWorker, path: str) -> Optional[StopReport]:
    began = time.monotonic()
    wake, end = began + WAKE_AFTER, began + GIVE_UP_AFTER
    while True:
        found = [stop for stop in stops_of(spool, [worker]) if not stop.child and not stop.attached]
        now = time.monotonic()
        if found or now > end + CLAIM_TIMEOUT:
            return found[0] if found else None
        if now > wake:
            wake = end + CLAIM_TIMEOUT
            send_stack_signal(target)
        if now > end:
            with contextlib.suppress(FileNotFoundError):  # the worker has taken it: it is about to stop
                os.unlink(path)
                return None
        time.sleep(INTERVAL)
