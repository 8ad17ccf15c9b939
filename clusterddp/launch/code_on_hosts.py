"""Bring the project's code to the hosts, or find it there, and name the folders that hold it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.text.counted import counted
from clusterddp.runs.difference import CODE_DIGITS
from clusterddp.sync import code_store, send_code
from clusterddp.sync.project_files.project_tree import scan
from clusterddp.sync.result import SyncResult
from clusterddp.sync.transfer.transfer_task import TransferOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.launch.options import RunOptions
    from clusterddp.project.project import Project
    from clusterddp.sync.project_files.project_tree import Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeOnHosts:
    """The project's code on hosts."""

    workdirs: Mapping[str, str]  # host → the folder that holds the code
    digest: str  # the digest of the code there; empty if it is not known
    # host → the paths of data files of which the host has its own version
    own_data: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def provide_code(
    hosts: Sequence[Host],
    project: Project,
    tree: Tree,
    options: RunOptions,
    name: str,
    notify: Callable[[str], None],
    progress: Callable[[str], None],
    *,
    dry: bool,
) -> CodeOnHosts:
    """Sync the code to each host's workdir, or to folder ``name`` beside it; with ``dry`` or --no-sync only find it."""
    if options.no_sync or dry:
        folders = send_code.workdirs_as_they_are(hosts, workdir=project.workdir, name=name)
        for notice in () if dry else dict.fromkeys(line for host in folders for line in host.notices):
            notify(notice)
        digests = {host.digest for host in folders}
        return CodeOnHosts(
            workdirs={host.name: host.workdir for host in folders}, digest=digests.pop() if len(digests) == 1 else ""
        )
    transfer = TransferOptions(mode=options.spread, notify=notify)
    result = sync_code(hosts, project, notify, progress, tree, name, spread=transfer, take=options.take)
    return CodeOnHosts(workdirs=result.workdirs, digest=result.digest, own_data=result.standing)


def sync_code(
    hosts: Sequence[Host],
    project: Project,
    notify: Callable[[str], None],
    progress: Callable[[str], None],
    tree: Tree | None = None,
    name: str = "",
    *,
    spread: TransferOptions | None = None,
    take: str | None = None,
) -> SyncResult:
    """Bring the project's code to the hosts, or to the folder ``name`` beside their workdirs.

    ``tree`` is the result of a scan of the project, if there has been one. Raises ``ClusterddpError`` if the code is
    too large, a run with other code is live there, or a host cannot take it.
    """
    tree = tree or scan(project)
    spread = spread or TransferOptions(notify=notify)
    more: Any = {"name": name, "subfolder": project.subfolder, "spread": spread, "take": take or ""}
    result = send_code.sync(hosts, tree, workdir=project.workdir, progress=progress, **more)
    for notice in (*tree.notices, *result.notices):
        notify(notice)
    return result


def save_code(project: Project, tree: Tree, code: str) -> str:
    """Save the code of a starting run in the project; return its description: ``code 3f9a2c (2 files changed)``."""
    if not code:
        return "code: not known, no sync has filled the folder"
    if code != tree.digest:
        return f"code {code[:CODE_DIGITS]}, as it is on the hosts"
    changes = code_store.keep(project, tree)
    if changes is None:
        return f"code {code[:CODE_DIGITS]} ({_files(len(tree.entries))})"
    return f"code {code[:CODE_DIGITS]} ({f'{_files(changes.count)} changed' if changes.count else 'unchanged'})"


def _files(count: int) -> str:
    return counted(count, "file")


def sync_or_preview(
    hosts: Sequence[Host],
    project: Project,
    notify: Callable[[str], None],
    progress: Callable[[str], None],
    tree: Tree,
    *,
    spread: str,
    rate: int | None,
    take: str | None,
    dry: bool,
) -> SyncResult:
    """Sync the project's code to the hosts; with ``dry``, only report what would change.

    ``rate`` limits the bytes per second to all hosts together. Raises ``ClusterddpError`` if a host cannot take the
    code.
    """
    if not dry:
        progress("syncing")
        transfer = TransferOptions(mode=spread, rate=rate, notify=notify)
        return sync_code(hosts, project, notify, progress, tree, spread=transfer, take=take)
    for notice in tree.notices:
        notify(notice)
    result = SyncResult(
        digest=tree.digest, hosts=send_code.preview(hosts, tree, workdir=project.workdir, take=take or "")
    )
    for notice in result.notices:
        notify(notice)
    return result
