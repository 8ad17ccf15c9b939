"""List and remove the folders that ``run --workdir NAME`` made beside a project's workdir on the hosts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterddp.hosts.answers import PATHS
from clusterddp.hosts.fanout import each, reading_answer
from clusterddp.remote.shared.schema.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry
    from clusterddp.project.project import Project

LIMIT = 600.0  # seconds; a folder may be many gigabytes on a slow disk
_MOST = 1 << 16  # folders of a host


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


def listed(
    entries: Sequence[HostEntry], host: Callable[[HostEntry], Host], project: Project, notify: Callable[[str], None]
) -> list[WorkdirBeside]:
    """Return the folders on all hosts that answer; send the errors of the others to ``notify``."""
    if not project.known_id:  # the project never had a workdir
        return []
    workdir = project.workdir

    def one(entry: HostEntry) -> list[tuple[str, WorkdirBeside]]:
        answer = host(entry).call("workdirs_beside", {"workdir": entry.workdir or workdir}, timeout=LIMIT, limit=PATHS)
        with reading_answer(entry.name):
            return [
                _read(entry.name, fields) for fields in Fields({"all": answer}, most=_MOST).each("all", lambda f: f)
            ]

    outcomes = each(entries, one)
    found: dict[str, WorkdirBeside] = {}
    for outcome in outcomes:
        for ident, folder in outcome.value or ():
            before = found.get(ident)
            hosts = (*before.hosts, *folder.hosts) if before else folder.hosts
            found[ident] = replace(folder, hosts=hosts)
        if outcome.error:
            notify(str(outcome.error))
    return list(found.values())


def _read(host: str, fields: Fields) -> tuple[str, WorkdirBeside]:
    path, written = fields.text("path"), fields.number("written")
    folder = WorkdirBeside(
        hosts=(host,),
        path=path,
        bytes=fields.number("bytes"),
        written=written / 1e9 if written else None,
        live=fields.texts("live"),
    )
    return f"{fields.text('id') or host} {path}", folder


def remove(
    entries: Sequence[HostEntry],
    host: Callable[[HostEntry], Host],
    workdir: str,
    folders: Sequence[WorkdirBeside],
    stopped: Sequence[str] = (),
) -> dict[str, WorkdirsRemoved]:
    """Remove folders, each on the first of its hosts; return the results by host.

    ``stopped``: runs that were ended just before.
    """

    def one(entry: HostEntry) -> WorkdirsRemoved:
        paths = [folder.path for folder in folders if entry.name == folder.hosts[0]]
        args: dict[str, Any] = {"workdir": entry.workdir or workdir, "paths": paths, "stopped": list(stopped)}
        answer = host(entry).call("remove_workdirs", args, timeout=LIMIT, limit=PATHS)
        with reading_answer(entry.name):
            fields = Fields(answer, most=_MOST)
            return WorkdirsRemoved(host=entry.name, kept=paths_with_reasons(fields, "kept"), **what_was_removed(fields))

    first = {folder.hosts[0] for folder in folders}
    outcomes = each([entry for entry in entries if entry.name in first], one)
    return {one.name: one.value or WorkdirsRemoved(host=one.name, error=str(one.error)) for one in outcomes}


def what_was_removed(fields: Fields) -> dict[str, Any]:
    """Return the folders that a host removed (``removed``) and the disk space they took (``bytes``)."""
    return {"removed": fields.texts("removed"), "bytes": fields.number("bytes")}


def paths_with_reasons(fields: Fields, name: str) -> tuple[tuple[str, str], ...]:
    """Return the paths that a host did not remove, each with the reason."""
    return tuple((path, why) for path, why in fields.items(name, lambda item: item.texts("item")))
