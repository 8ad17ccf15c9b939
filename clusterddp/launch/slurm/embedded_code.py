"""Put a run's code into the job's script, for nodes that share no folder (``clusterddp_slurm_shared: false``).

Slurm itself sends the script to the job's first node, so no operator is needed when the job starts, or starts again.
Code too large for a script is kept on the login host, and sent when a process follows the run.
"""

from __future__ import annotations

import base64
import io
import re
import tarfile
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.hosts.zipapp import bundle
from clusterddp.launch.slurm.client.answers import read_config
from clusterddp.remote.shared.slurm.job_record import OUR_CODE, PROJECT_CODE, SentCode
from clusterddp.remote.shared.workdir.sync_records import SyncRequest
from clusterddp.sync.transfer.progress_rate import Transfer
from clusterddp.sync.transfer.upload import Files, Uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from clusterddp.launch.options import RunOptions
    from clusterddp.launch.slurm.client.login_host import LoginHost
    from clusterddp.project.project import Project
    from clusterddp.remote.shared.slurm.job_record import SlurmJob
    from clusterddp.sync.project_files.project_tree import Tree

MAX_SCRIPT_BYTES = 4 << 20  # bytes; the largest script that Slurm accepts by default
SMALL_CODE_BYTES = 1 << 20  # bytes of packed code that fit in any script
CODE_SHARE = (
    0.7  # the project's code's share of a script; the rest is for base64, our own code and the job's description
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddedCode:
    """The project's code inside a job's script, for nodes that share no folder with the login host."""

    sent: SentCode  # the description of it that nodes get
    workdir: str  # where it will be, if a node's home is the same path as the login host's
    packed: str  # our own code, and the project's where it is not too large, in base64; empty for a dry run
    code: Iterable[bytes] = ()  # the project's code as a stream, if it is too large for the script


def refuse_shared_folder_options(options: RunOptions, *, inside: str) -> None:
    """Refuse an array, and a start inside an existing job: both need a shared folder. Raises UsageError."""
    if options.array:
        raise UsageError("--array: a job whose nodes share no folder is one run", remedy="start them one by one")
    if inside:
        raise UsageError(
            f"this shell is in Slurm's job {inside}, and one whose nodes share no folder starts by its own script",
            remedy="`unset SLURM_JOB_ID` submits one",
        )


def refuse_detached(job: SlurmJob, secrets: Mapping[str, str]) -> None:
    """Refuse to detach from a run whose nodes need secrets or code brought to them when they begin."""
    code = job.sent_code is not None and job.sent_code.broadcast
    if code or secrets:
        what = ", ".join([*sorted(secrets), *["the code, more than a job's script holds,"] * code])
        raise UsageError(
            f"--detach: nobody could bring {what} to nodes that share no folder",
            remedy="stay attached until the run has begun, then detach (Ctrl-\\)",
        )


def embed_code(
    login: LoginHost,
    project: Project,
    tree: Tree,
    options: RunOptions,
    name: str,
    progress: Callable[[str], None],
    *,
    dry: bool,
) -> EmbeddedCode:
    """Pack the project's code into a script, or prepare it for the login host to send.

    With ``--no-sync`` the nodes use the code they have. ``name`` is that of a folder beside the workdir, to use instead
    of it; ``progress`` is called while a large code is sent to the login host; with ``dry`` nothing is packed.
    """
    entry = login.host.entry
    workdir = entry.workdir or project.workdir
    entries = (*tree.entries, *tree.data)
    manifests = tree.manifest + tree.data_manifest
    uploads = Uploads(entries, tree.chunks, Files.below(tree.root, entries, tree.chunks), manifests)
    sizes = uploads.sizes()
    order = SyncRequest(
        workdir=workdir,
        digest="" if options.no_sync else tree.digest,
        name=name,
        folders=(project.subfolder,) * bool(project.subfolder),
        links=dict(entry.links),
        manifest=sizes.manifest,
        data=tree.data_digest,
        data_size=len(tree.data_manifest),
        take=options.take or "",
        chunk_lists=sizes.chunk_lists,
    )
    sent = SentCode(order)
    expected = re.sub("^~(?=/)", login.host.hello.home, workdir)
    if dry:
        return EmbeddedCode(sent=sent, workdir=expected, packed="")
    if not order.digest:
        return EmbeddedCode(sent=sent, workdir=expected, packed=_pack(b""))
    transfer = Transfer(f"sending the code to {login.host.name}", progress)
    transfer.expect(sum(chunk.size for chunk in uploads.all_chunks))
    pieces = transfer.counted(uploads.pieces(uploads.all_chunks, compress=True))
    packed = _read_up_to(SMALL_CODE_BYTES, pieces)
    if len(packed) > SMALL_CODE_BYTES:
        limit = int(CODE_SHARE * _script_size(login))
        packed += _read_up_to(limit - len(packed), pieces)
        if len(packed) > limit:
            sent = sent._replace(broadcast=True)
            return EmbeddedCode(sent=sent, workdir=expected, packed=_pack(b""), code=chain([packed], pieces))
    return EmbeddedCode(sent=sent, workdir=expected, packed=_pack(packed))


def _read_up_to(size: int, pieces: Iterator[bytes]) -> bytes:
    """Return the next pieces until they exceed ``size`` bytes, or all of them."""
    data = bytearray()
    while len(data) <= size and (piece := next(pieces, None)) is not None:
        data += piece
    return bytes(data)


def _script_size(login: LoginHost) -> int:
    """Return the largest script that Slurm accepts, in bytes."""
    _, out, _ = login.command("scontrol", "show", "config")
    limit = re.search(r"max_script_size=([0-9]{1,12})", read_config(out).get("SchedulerParameters", ""))
    return int(limit[1]) if limit else MAX_SCRIPT_BYTES


def _pack(stream: bytes) -> str:
    """Return an archive of our own code and of the project's (``stream``, if any), gzipped, in base64."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as archive:
        for name, data in ((OUR_CODE, bundle().code), *([(PROJECT_CODE, stream)] if stream else [])):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
    return base64.encodebytes(out.getvalue()).decode()
