"""Fetch a run's files from nodes without a shared folder to the login host, before their job ends.

A node cannot be reached once its job is over. So at its end the script waits while a client follows the run, which has
the login host fetch the spools; from then on the login host reports on the run.
"""

import fcntl
import os
import re
import shutil
import subprocess
import tarfile
import threading
from typing import IO, Any, Dict, List

from ..helper.request import Request
from ..shared.run.plan import SECRETS
from ..shared.slurm.job_record import JOB_ID, OUR_CODE, PROJECT_CODE
from ..shared.slurm.login_records import CollectedRequest, CollectRequest, SecretsRequest
from ..system.bootstrap import Refused, private, private_folder
from .job_folder import NAME, JobFolder, existing_folder

NODE_TIMEOUT = 45.0  # seconds for one node's files; the script waits for a minute
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_TAR_END = bytes(1024)  # the end of a tar archive
EXCLUDED = (SECRETS, "control.key", "remote.pyz", "hook", "torch", OUR_CODE, PROJECT_CODE, "*.tmp")


def slurm_secrets(request: Request) -> None:
    """Operation: store the values of a run's secrets, for which its nodes wait; takes a ``SecretsRequest``."""
    given = request.read_args(SecretsRequest)
    existing_folder(request.state, given.run).write_secrets(given.secrets)


def slurm_collected(request: Request) -> None:
    """Operation: record that a run's files were fetched, so that its job may end; takes a ``CollectedRequest``."""
    existing_folder(request.state, request.read_args(CollectedRequest).run).write_collected()


def slurm_collect(request: Request) -> Dict[str, str]:
    """Operation: fetch a run's files from the nodes of its running job; takes a ``CollectRequest``.

    Returns: the error of each node whose files were not fetched, by name. Raises Refused if the job's number or a
    node's name is invalid.
    """
    asked = request.read_args(CollectRequest)
    folder = existing_folder(request.state, asked.run)
    if not JOB_ID.fullmatch(asked.job) or not all(map(NODE_NAME.fullmatch, asked.nodes)):
        raise Refused("these are no nodes of a job")
    with open(folder.file("collecting"), "ab", opener=private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed: Dict[str, str] = {}
        threads = []
        for index, node in enumerate(asked.nodes):
            is_first = index == 0  # it also sends the run's folder
            threads.append(threading.Thread(target=_fetch_or_note, args=(folder, asked.job, node, is_first, failed)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if folder.final_verdict():
        folder.remove_code()  # no later start needs it
    return failed


def _fetch_or_note(folder: JobFolder, job: str, node: str, is_first: bool, failed: Dict[str, str]) -> None:
    """Fetch a node's files, or add its error to ``failed``."""
    try:
        _fetch_files(folder, job, node, is_first)
    except (OSError, tarfile.TarError, Refused) as error:
        failed[node] = str(error)


def _fetch_files(folder: JobFolder, job: str, node: str, is_first: bool) -> None:
    """Fetch the run's spool from a node, and from the job's first node the run's folder too."""
    paths = ["runs/%s" % folder.run] + ["%s/%s" % (NAME, folder.run)] * is_first
    argv = [
        "srun", "--jobid=%s" % job, "--overlap", "--nodelist=%s" % node, "--nodes=1", "--ntasks=1", "--quiet",
        "--mpi=none", "--cpu-bind=none", "--export=PATH", "--chdir=/",
        "tar", "-C", folder.state, "--ignore-failed-read", *("--exclude=" + name for name in EXCLUDED), "-cf", "-",
        *paths,
    ]  # fmt: skip
    step = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    archive: Any = step.stdout
    timeout = threading.Timer(NODE_TIMEOUT, step.terminate)
    timeout.start()
    try:
        unpack(archive, folder)
    finally:
        timeout.cancel()
        archive.close()
        step.terminate()
        step.wait()


def unpack(stream: IO[bytes], folder: JobFolder) -> None:
    """Unpack an archive below the state folder: only files of this run's spools and starts.

    Raises Refused if a name would lead elsewhere; TarError or OSError if the archive is damaged or cut off, or a file
    cannot be written.
    """
    ours = re.compile(
        r"(?:runs/%s(?:/[^/]+)*|%s/%s(?:/end\.json|/start\.[0-9]+\.[0-9]+(?:/[a-z.0-9]+)?)?)"
        % (folder.run, NAME, folder.run)
    )
    source = _TailReader(stream)
    with tarfile.open(fileobj=source, mode="r|") as archive:  # type: ignore[call-overload] # it only reads
        for member in archive:
            name = member.name.rstrip("/")
            parts: List[str] = name.split("/")
            if ".." in parts or "." in parts or name.startswith("/") or "\0" in name:
                raise Refused("it names %r" % name[:80])
            path = os.path.join(folder.state, name)
            data: Any = archive.extractfile(member) if member.isreg() else None
            if not ours.fullmatch(name) or not (member.isdir() or data):
                continue
            if member.isdir():
                private_folder(path)
                continue
            private_folder(os.path.dirname(path))
            handle = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb") as out:
                shutil.copyfileobj(data, out, 1 << 20)
            os.utime(path + ".tmp", (member.mtime, member.mtime))
            os.rename(path + ".tmp", path)
    while source.read(1 << 16):
        pass
    if source.last != _TAR_END:  # tarfile accepts a stream that is cut off right behind a file
        raise tarfile.ReadError("it was cut")


class _TailReader:
    """A stream that remembers its last bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.last = b""

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self.last = (self.last + data)[-len(_TAR_END) :]
        return data
