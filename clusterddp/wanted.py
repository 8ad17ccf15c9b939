"""What a user can say about a run, and its script held against the project.

Not here: how the words are written on a command line (cli/), what hosts make of them (prepare.py).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import SyncError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterddp.project import Project
    from clusterddp.tree import Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """What a user can say about a run.

    Attributes:
        script: Path in the project; with ``module`` a module's name.
        args: The script's arguments, untouched.
        module: Run it as ``python -m``.
        name: The run's name.
        nnodes: Use the first so many nodes that can be reached; None is all, and each must be.
        nproc: Workers a host; None leaves it to the inventory and the GPUs.
        gpus: ``all``, ``free``, ``free:N`` or indices; None leaves it to the inventory.
        share_gpus: Nodes may take the same GPUs.
        env: Variables for all workers; above the inventory's.
        secrets: Names of variables of ours whose values workers get; they are written nowhere else.
        time_limit: Seconds.
        max_restarts: How often torchrun starts failed workers again.
        rdzv_backend: torchrun's.
        torchrun_args: More options for torchrun.
        debug_comm: Let NCCL and torch tell what they do.
        no_doctor: Do not refuse hosts whose GPUs are not what they seem.
        no_sync: Use what is on the hosts.
        sync_limit: Bytes that a sync may hold; None is the default.
        limit: The host pattern that chose the hosts, for the record.
    """

    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    name: str | None = None
    nnodes: int | None = None
    nproc: int | None = None
    gpus: str | None = None
    share_gpus: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    time_limit: float | None = None
    max_restarts: int = 0
    rdzv_backend: str = "c10d"
    torchrun_args: tuple[str, ...] = ()
    debug_comm: bool = False
    no_doctor: bool = False
    no_sync: bool = False
    sync_limit: int | None = None
    limit: str | None = None


def script_of(options: RunOptions, project: Project) -> str:
    """The script as the workers' cwd sees it: the same relative path, never an absolute one of ours.

    Raises:
        UsageError: it is not there, not readable, or outside the project.
    """
    if options.module and (not options.script or "/" in options.script or options.script.endswith(".py")):
        raise UsageError(f"-m {options.script!r} is no module's name", remedy="write it as pkg.train, or leave -m out")
    if options.module or options.no_sync:
        return options.script
    cwd = project.root / project.subfolder
    path = cwd / options.script
    if not path.is_file():
        what = "is a folder" if options.script and path.is_dir() else "is not there"
        raise UsageError(f"script {options.script or repr('')} {what}", remedy=f"paths are relative to {cwd}")
    if not os.access(path, os.R_OK):
        raise UsageError(f"script {options.script} cannot be read", remedy="chmod u+r it")
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - a link stays the name the user gave
    if not absolute.is_relative_to(project.root):
        raise UsageError(
            f"script {options.script} is outside the project {project.root}", remedy="start from the folder it is in"
        )
    return os.path.relpath(absolute, cwd)


def check_synced(script: str, options: RunOptions, project: Project, tree: Tree) -> None:
    """Refuse a script that a sync would leave out.

    Raises:
        SyncError: it is not among the files; says why.
    """
    if options.module or options.no_sync:
        return
    inside = os.path.normpath(os.path.join(project.subfolder, script))  # noqa: PTH118 - a path on hosts
    if not any(entry.path == inside for entry in tree.entries):
        why = next((item.reason for item in tree.skipped if item.path == inside), "git ignores it")
        raise SyncError(f"script {inside} would not be synced: {why}", remedy="take it out of .gitignore")
