"""Files that a user moves between this machine and the hosts: what ``push`` does from its words to its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.sync import chosen_files
from clusterddp.sync.deliver import Delivered, deliver
from clusterddp.sync.transfer import Transfer
from clusterddp.sync.upload import Files, Uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.project import Project


@dataclass(frozen=True, kw_only=True, slots=True)
class Push:
    """What a push is asked for; see ``Cluster.push``."""

    sources: Sequence[str]
    dest: str | None = None
    overwrite: bool = False
    rate: int | None = None


def push(
    wanted: Push,
    project: Project,
    hosts: Callable[[], Sequence[Host]],
    notify: Callable[[str], None],
    progress: Callable[[str], None],
) -> tuple[Delivered, ...]:
    """Bring files to hosts, which are opened once the words are known to mean something.

    Raises:
        UsageError: a source is not there.
        ClusterddpError: a host refuses it or has no room, or a file changes meanwhile.
    """
    dest = chosen_files.named(project, wanted.sources, wanted.dest)
    opened = hosts()
    folder, chosen = chosen_files.choose(project, wanted.sources, dest, progress)
    for notice in chosen.notices:
        notify(notice)
    files = Files(chosen.entries, chosen.chunks, lambda entry: chosen.places[entry.path])
    return deliver(
        opened,
        Uploads(chosen.entries, chosen.chunks, files),
        chosen.entries,
        folder=folder,
        workdir=project.workdir,
        transfer=Transfer("pushing", progress, rate=wanted.rate),
        overwrite=wanted.overwrite,
    )
