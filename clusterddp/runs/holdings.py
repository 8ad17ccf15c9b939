"""List and remove all that clusterddp holds in this account on hosts, for ``down`` and ``down --everything``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import RunError
from clusterddp.hosts.answers import PATHS
from clusterddp.hosts.fanout import each, reading_answer
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.runs.beside import paths_with_reasons, what_was_removed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry
    from clusterddp.project.project import Project

LIMIT = 600.0  # seconds; workdirs may hold millions of files
_MOST = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkdirHeld:
    """A workdir on a host."""

    path: str
    ident: str  # its random identifier, the same on all hosts that share the folder
    bytes: int  # the disk space it takes
    own: int  # how many of its files are not as a sync left them
    own_bytes: int  # the total size of those files
    largest: tuple[str, ...] = ()  # the largest of those files
    live: tuple[str, ...] = ()  # the live runs that use it


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdings:
    """Everything that a host holds of clusterddp in this account, for all projects."""

    host: str
    states: tuple[tuple[str, int], ...] = ()  # state folders, with the disk space each takes
    runs: int = 0  # how many runs are recorded there
    # live runs: id, the project's name, owner; an empty text for what the host does not know
    live: tuple[tuple[str, str, str], ...] = ()
    workdirs: tuple[WorkdirHeld, ...] = ()
    # folders outside the workdirs that hold pushed files, with the number of those files
    pushed: tuple[tuple[str, int], ...] = ()
    error: str = ""  # why the host could not be asked


@dataclass(frozen=True, kw_only=True, slots=True)
class EverythingRemoved:
    """The result on one host: folders removed, the bytes they took, what stays and why, or an error."""

    host: str
    removed: tuple[str, ...] = ()
    bytes: int = 0
    left: tuple[tuple[str, str], ...] = ()
    error: str = ""


def held(entries: Sequence[HostEntry], host: Callable[[HostEntry], Host], project: Project) -> list[Holdings]:
    """Return what each host holds."""

    def one(entry: HostEntry) -> Holdings:
        answer = host(entry).call("holdings", {"workdir": _workdir(entry, project)}, timeout=LIMIT, limit=PATHS)
        with reading_answer(entry.name):
            fields = Fields(answer, most=_MOST)
            return Holdings(
                host=entry.name,
                states=_sizes(fields, "states"),
                runs=fields.number("runs"),
                live=fields.each("live", lambda run: (run.text("run"), run.text("label"), run.text("operator"))),
                workdirs=fields.each("workdirs", _read),
                pushed=_sizes(fields, "pushed"),
            )

    outcomes = each(entries, one)
    return [outcome.value or Holdings(host=outcome.name, error=str(outcome.error)) for outcome in outcomes]


def refuse_live(shown: Sequence[Holdings]) -> None:
    """Refuse to remove everything while any run of this account is live."""
    for host in shown:
        for run, label, _ in host.live:
            of = f" ({label})" if label else ""
            message = f"run {run}{of} is live on {host.host}, and nothing is removed then"
            raise RunError(message, remedy=f"`clusterddp stop {run}` ends it")


def remove(
    entries: Sequence[HostEntry], host: Callable[[HostEntry], Host], project: Project, shown: Sequence[Holdings]
) -> list[EverythingRemoved]:
    """Remove the listed items of each host, and all state folders of this account."""
    workdirs = {one.host: [[folder.path, folder.ident] for folder in one.workdirs] for one in shown if not one.error}

    def one(entry: HostEntry) -> EverythingRemoved:
        args = {"workdir": _workdir(entry, project), "shown": workdirs[entry.name]}
        answer = host(entry).call("remove_everything", args, timeout=LIMIT, limit=PATHS)
        with reading_answer(entry.name):
            fields = Fields(answer, most=_MOST)
            left = paths_with_reasons(fields, "left")
            return EverythingRemoved(host=entry.name, left=left, **what_was_removed(fields))

    outcomes = each([entry for entry in entries if entry.name in workdirs], one)
    return [one.value or EverythingRemoved(host=one.name, error=str(one.error)) for one in outcomes]


def _workdir(entry: HostEntry, project: Project) -> str:
    return entry.workdir or (project.workdir if project.known_id else "")


def _read(fields: Fields) -> WorkdirHeld:
    return WorkdirHeld(
        path=fields.text("path"),
        ident=fields.text("id"),
        bytes=fields.number("bytes"),
        own=fields.number("own"),
        own_bytes=fields.number("own_bytes"),
        largest=fields.texts("largest"),
        live=fields.texts("live"),
    )


def _sizes(fields: Fields, name: str) -> tuple[tuple[str, int], ...]:
    return fields.each(name, lambda one: (one.text("path"), one.number("size")))
