"""The project's code where a job's nodes share no folder: how it comes to them, and that each node places it.

It is in the job's script, which Slurm brings to the first node. What is too large for that is kept on the login host,
and sent from there to all nodes (sbcast) at each start of the job, when whoever follows the run sees them wait for it.
"""

import fcntl
import os
import shutil
from typing import BinaryIO, Iterable

from ..helper.request import Request
from ..shared.slurm.job_record import JOB_ID, PROJECT_CODE, START, SentCode, SlurmJob
from ..shared.slurm.login_records import ArrivedRequest, BroadcastRequest
from ..shared.workdir.sync_records import HostChanged
from ..system.bootstrap import Refused, private, private_folder
from ..system.bounded_child import Child
from ..workdir.sync_operations import apply_sync, inspect_workdir
from .job_folder import JobFolder, existing_folder

SEND_TIMEOUT = 3600.0  # seconds for the code to be sent
_PIECE = 1 << 20  # bytes read at once
_NO_OPERATION = -1


def keep_code(folder: JobFolder, pieces: Iterable[bytes]) -> None:
    """Keep a run's code on the login host until its nodes are sent it; if ``pieces`` are empty, nothing is written."""
    waiting = (piece for piece in pieces if piece)
    first = next(waiting, None)
    if first is None:
        return
    private_folder(os.path.dirname(folder.path))
    private_folder(folder.path)
    try:
        with open(folder.file(PROJECT_CODE), "xb", opener=private) as out:
            out.write(first)
            out.writelines(waiting)
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise


def slurm_broadcast(request: Request) -> None:
    """Operation of the login host: send a run's kept code to all nodes of its job; takes a ``BroadcastRequest``."""
    asked = request.read_args(BroadcastRequest)
    folder = existing_folder(request.state, asked.run)
    if not JOB_ID.fullmatch(asked.job) or not START.fullmatch(asked.start):
        raise Refused("this is no start of a job")
    path, sent_marker = folder.file(PROJECT_CODE), folder.file("sent.%s" % asked.start)
    with open(folder.file("sending"), "ab", opener=private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(sent_marker):
            return
        argv = ["sbcast", "--jobid=%s" % asked.job, "--force", path, path]
        try:
            result = Child(argv, env=dict(os.environ, LC_ALL="C"), timeout=SEND_TIMEOUT, cwd="/").answer()
        except OSError as error:
            raise Refused("sbcast: %s" % error.strerror) from None
        if result.status != 0:
            raise Refused("sbcast fails: %s" % (result.last_line() or result.status))
        os.close(os.open(sent_marker, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def slurm_arrived(request: Request) -> None:
    """Operation of a job's first node: record that the code is on all nodes; takes an ``ArrivedRequest``."""
    asked = request.read_args(ArrivedRequest)
    if not START.fullmatch(asked.start):
        raise Refused("this is no start of a job")
    existing_folder(request.state, asked.run).write_arrived(asked.start)


class _FileRequest(Request):
    """A request whose data is a file's."""

    def __init__(self, state: str, stream: BinaryIO) -> None:
        super().__init__(0, {"state": state}, _NO_OPERATION, _NO_OPERATION)
        self._stream = stream

    def read(self) -> bytes:
        """The next piece; empty at the end."""
        return self._stream.read(_PIECE)


def install_code(job: SlurmJob, sent: SentCode, path: str) -> str:
    """Place a job's code on this node from the file at ``path``, and return the workdir; raises Refused."""
    if not sent.order.digest:
        return inspect_workdir(job.state, sent.order).workdir
    try:
        with open(path, "rb") as stream:
            answer = apply_sync(_FileRequest(job.state, stream), sent.order)
    except FileNotFoundError:
        raise Refused("the run's code is not there", "start the run again") from None
    if not isinstance(answer, HostChanged):
        return answer.workdir
    if answer.conflicts:
        named = ", ".join(answer.conflicts[:5])
        remedy = "start the run again with --take project, or --take host"
        raise Refused("the project and this node both changed %s since the last sync" % named, remedy)
    raise Refused("%s changed while the code was placed" % sent.order.workdir, "start the run again")
