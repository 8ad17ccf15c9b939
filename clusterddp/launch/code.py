"""The project's code on hosts: brought there, or found as it is; and the folders that hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.runs.difference import CODE
from clusterddp.sync import objects, push
from clusterddp.sync.files import scan
from clusterddp.sync.passed_on import Spread
from clusterddp.sync.result import SyncResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.launch.options import RunOptions
    from clusterddp.project import Project
    from clusterddp.sync.files import Tree


def code_of(
    hosts: Sequence[Host],
    project: Project,
    tree: Tree,
    options: RunOptions,
    name: str,
    notify: Callable[[str], None],
    progress: Callable[[str], None],
    *,
    dry: bool,
) -> tuple[dict[str, str], str]:
    """Each host's workdir, or the folder ``name`` beside it, and the digest of the code there."""
    if options.no_sync or dry:
        found = push.workdirs_as_they_are(hosts, workdir=project.workdir, name=name)
        for notice in () if dry else dict.fromkeys(line for host in found for line in host.told):
            notify(notice)
        digests = {host.digest for host in found}
        return {host.name: host.workdir for host in found}, digests.pop() if len(digests) == 1 else ""
    how = Spread(mode=options.spread, notify=notify)
    result = synced(hosts, project, notify, progress, tree, name, spread=how)
    return dict(result.workdirs), result.digest


def synced(
    hosts: Sequence[Host],
    project: Project,
    notify: Callable[[str], None],
    progress: Callable[[str], None],
    tree: Tree | None = None,
    name: str = "",
    *,
    spread: Spread | None = None,
) -> SyncResult:
    """The project's code brought to the hosts.

    Args:
        hosts: The hosts.
        project: Whose code.
        notify: Takes what a user should know.
        progress: Takes how far it has come.
        tree: What was found here, if somebody has looked already.
        name: Of a folder beside the workdir, in place of it.
        spread: Whether hosts pass it on to each other.

    Raises:
        ClusterddpError: it is too large, a run is live there with other code, or a host cannot take it.
    """
    tree = tree or scan(project)
    inside, place = project.subfolder, project.workdir
    how = spread or Spread(notify=notify)
    more: Any = {"name": name, "subfolder": inside, "progress": progress, "spread": how}
    result = push.sync(hosts, tree, workdir=place, **more)
    for notice in (*tree.notices, *result.notices):
        notify(notice)
    return result


def kept_code(project: Project, tree: Tree, code: str) -> str:
    """Keep the code of a run that begins in the project; what is said of it: ``code 3f9a2c (2 files changed)``."""
    if not code:
        return "code: not known, no sync has filled the folder"
    if code != tree.digest:
        return f"code {code[:CODE]}, as it is on the hosts"
    changes = objects.keep(project, tree)
    if changes is None:
        return f"code {code[:CODE]} ({_files(len(tree.entries))})"
    return f"code {code[:CODE]} ({f'{_files(changes.count)} changed' if changes.count else 'unchanged'})"


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"


def synced_or_previewed(
    hosts: Sequence[Host],
    project: Project,
    notify: Callable[[str], None],
    progress: Callable[[str], None],
    tree: Tree,
    spread: Spread,
    *,
    dry: bool,
) -> SyncResult:
    """``synced``; ``dry``: what it would change, and no more.

    Args:
        hosts: The hosts.
        project: Whose code.
        notify: Takes what a user should know.
        progress: Takes how far it has come.
        tree: The project, as it was scanned.
        spread: Whether hosts pass it on to each other.
        dry: Only look.

    Raises:
        ClusterddpError: a host cannot take it.
    """
    if not dry:
        progress("syncing")
        return synced(hosts, project, notify, progress, tree, spread=spread)
    for notice in tree.notices:
        notify(notice)
    return SyncResult(digest=tree.digest, hosts=push.preview(hosts, tree, workdir=project.workdir))
