"""List and remove the folders that ``run --workdir NAME`` made beside a project's workdir on the hosts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterddp.hosts.answers import PATHS_LIMIT
from clusterddp.hosts.ask import ask
from clusterddp.remote.shared.workdir.named_workdir_records import (
    NamedWorkdirs,
    NamedWorkdirsRequest,
    RemoveWorkdirsAnswer,
    RemoveWorkdirsRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import HostGroup
    from clusterddp.project.project import Project
    from clusterddp.remote.shared.workdir.named_workdir_records import NamedWorkdir

TIMEOUT = 600.0  # seconds; a folder may be many gigabytes on a slow disk


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkdirBeside:
    """A folder that ``run --workdir NAME`` made beside the project's workdir."""

    hosts: tuple[str, ...]  # the hosts that have the folder; several if they share it
    path: str
    bytes: int  # the disk space it takes
    written: float | None  # when a file in it was last written, in seconds since the epoch; None if it has no file
    live: tuple[str, ...] = ()  # the live runs that use it; while there are any, it is kept


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkdirsRemoved:
    """The result on one host: folders removed, the bytes they took, folders kept with the reason, or an error."""

    host: str
    removed: tuple[str, ...] = ()
    bytes: int = 0
    kept: tuple[tuple[str, str], ...] = ()
    error: str = ""


def list_workdirs(hosts: HostGroup, project: Project, notify: Callable[[str], None]) -> list[WorkdirBeside]:
    """Return the folders on all hosts that answer; send the errors of the others to ``notify``."""
    if not project.known_id:  # the project never had a workdir
        return []
    workdir = project.workdir

    def list_on(host: Host) -> list[tuple[str, WorkdirBeside]]:
        request = NamedWorkdirsRequest(host.entry.workdir or workdir)
        answer = ask(host, "workdirs_beside", request, NamedWorkdirs, timeout=TIMEOUT, limit=PATHS_LIMIT)
        return [_convert(host.name, folder) for folder in answer.folders]

    folders: dict[str, WorkdirBeside] = {}
    for outcome in hosts.each(list_on):
        for identity, folder in outcome.value or ():
            shared = folders.get(identity)
            folders[identity] = replace(folder, hosts=(*shared.hosts, *folder.hosts)) if shared else folder
        if outcome.error:
            notify(str(outcome.error))
    return list(folders.values())


def _convert(host: str, folder: NamedWorkdir) -> tuple[str, WorkdirBeside]:
    """Return the folder with an identity, which is the same text on all hosts that share it."""
    converted = WorkdirBeside(
        hosts=(host,),
        path=folder.path,
        bytes=folder.bytes,
        written=folder.written / 1e9 if folder.written else None,
        live=folder.live,
    )
    return f"{folder.ident or host} {folder.path}", converted


def remove(
    hosts: HostGroup,
    workdir: str,
    folders: Sequence[WorkdirBeside],
    stopped: Sequence[str] = (),
) -> dict[str, WorkdirsRemoved]:
    """Remove folders, each on the first of its hosts; return the results by host.

    ``stopped``: runs that were ended just before.
    """

    def remove_on_host(host: Host) -> WorkdirsRemoved:
        paths = tuple(folder.path for folder in folders if host.name == folder.hosts[0])
        request = RemoveWorkdirsRequest(workdir=host.entry.workdir or workdir, paths=paths, stopped=tuple(stopped))
        result = ask(host, "remove_workdirs", request, RemoveWorkdirsAnswer, timeout=TIMEOUT, limit=PATHS_LIMIT)
        kept = tuple((folder.path, folder.why) for folder in result.kept)
        return WorkdirsRemoved(host=host.name, removed=result.removed, bytes=result.bytes, kept=kept)

    outcomes = hosts.only({folder.hosts[0] for folder in folders}).each(remove_on_host)
    return {end.name: end.value or WorkdirsRemoved(host=end.name, error=str(end.error)) for end in outcomes}
