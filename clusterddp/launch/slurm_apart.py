"""A run's code where a job's nodes share no folder (``clusterddp_slurm_shared: false``): the job's script carries it.

Slurm itself brings a script to the job's first node, so nobody need be there when the job starts, or starts again. Not
here: how nodes unpack it (slurm/script.py), and place it (remote/slurm/code.py).
"""

from __future__ import annotations

import base64
import io
import re
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.hosts.zipapp import bundle
from clusterddp.remote.shared.slurm_job import OUR_CODE, PROJECT_CODE, SentCode
from clusterddp.slurm.answers import read_config
from clusterddp.sync.upload import Files, Uploads
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from clusterddp.launch.options import RunOptions
    from clusterddp.project import Project
    from clusterddp.slurm.login import Login
    from clusterddp.sync.files import Tree

MOST = 4 << 20  # bytes of a script that Slurm takes where its configuration says nothing else
_SHARE = "a job whose nodes share no folder"


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedCode:
    """The project's code as it goes in with a script.

    Attributes:
        sent: What nodes are told of it.
        workdir: Where it will be, where a node's home is the login host's.
        packed: It and our own code, in base64; empty for a dry run.
    """

    sent: SentCode
    workdir: str
    packed: str


def refuse_together(options: RunOptions, *, inside: str) -> None:
    """Refuse what needs a shared folder.

    Raises:
        UsageError: names the option.
    """
    if options.array:
        raise UsageError(f"--array: {_SHARE} is one run", remedy="start them one by one")
    if inside:
        raise UsageError(
            f"this shell is in Slurm's job {inside}, and {_SHARE} starts by its own script",
            remedy="`unset SLURM_JOB_ID` submits one",
        )


def carried_code(
    login: Login, project: Project, tree: Tree, options: RunOptions, name: str, *, dry: bool
) -> CarriedCode:
    """The project's code for a script, and where nodes put it.

    Args:
        login: The login host.
        project: Whose code.
        tree: The code; with ``--no-sync`` what each node has is taken.
        options: The run's.
        name: Of a folder beside the workdir, in place of it.
        dry: Nothing is packed.
    """
    entry = login.host.entry
    workdir = entry.workdir or project.workdir
    uploads = Uploads(tree.entries, tree.chunks, Files.below(tree.root, tree.entries, tree.chunks))
    sizes = uploads.sizes()
    sent = SentCode(
        workdir=workdir,
        digest="" if options.no_sync else tree.digest,
        name=name,
        folders=(project.subfolder,) * bool(project.subfolder),
        links=dict(entry.links),
        manifest=sizes["manifest"],
        lists=sizes["lists"],
    )
    expected = re.sub("^~(?=/)", str(login.host.hello["home"]), workdir)
    if dry:
        return CarriedCode(sent=sent, workdir=expected, packed="")
    pieces = uploads.pieces(uploads.every, compress=True) if sent.digest else ()
    return CarriedCode(sent=sent, workdir=expected, packed=_packed(b"".join(piece for piece, _ in pieces)))


def refuse_too_large(login: Login, size: int) -> None:
    """Refuse a script that Slurm does not take.

    Raises:
        UsageError: says how large it may be.
    """
    if size <= MOST // 2:
        return
    _, out, _ = login.command("scontrol", "show", "config")
    said = re.search(r"max_script_size=([0-9]{1,12})", read_config(out).get("SchedulerParameters", ""))
    most = int(said[1]) if said else MOST
    if size >= most:
        raise UsageError(
            f"the code makes the job's script {human_size(size)}, and Slurm takes {human_size(most)}",
            remedy="keep data out of it (.gitignore), or let the nodes share clusterddp_state with the login host",
        )


def _packed(stream: bytes) -> str:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as archive:
        for name, data in ((OUR_CODE, bundle().code), (PROJECT_CODE, stream)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
    return base64.encodebytes(out.getvalue()).decode()
