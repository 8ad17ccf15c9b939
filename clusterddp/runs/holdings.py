"""List and remove all that clusterddp holds in this account on hosts, for ``down`` and ``down --everything``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import RunError
from clusterddp.hosts.answers import PATHS_LIMIT
from clusterddp.hosts.fanout import each, reading_answer
from clusterddp.remote.shared.cleanup.cleanup_records import (
    EverythingAnswer,
    EverythingRequest,
    HoldingsAnswer,
    HoldingsRequest,
    ShownWorkdir,
    WorkdirHeld,
)
from clusterddp.remote.shared.schema.record import read_record, to_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry
    from clusterddp.project.project import Project

TIMEOUT = 600.0  # seconds; workdirs may hold millions of files


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


def list_holdings(entries: Sequence[HostEntry], host: Callable[[HostEntry], Host], project: Project) -> list[Holdings]:
    """Return what each host holds."""

    def ask(entry: HostEntry) -> Holdings:
        request = HoldingsRequest(workdir=_workdir(entry, project))
        answer = host(entry).call("holdings", to_fields(request), timeout=TIMEOUT, limit=PATHS_LIMIT)
        with reading_answer(entry.name):
            return Holdings(host=entry.name, **read_record(HoldingsAnswer, answer, "answer")._asdict())

    outcomes = each(entries, ask)
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
    """Remove the workdirs that ``shown`` lists for each host, and all state folders of this account."""
    listed_workdirs = {host_holdings.host: host_holdings.workdirs for host_holdings in shown if not host_holdings.error}

    def remove_on_host(entry: HostEntry) -> EverythingRemoved:
        workdirs = tuple(ShownWorkdir(path=folder.path, ident=folder.ident) for folder in listed_workdirs[entry.name])
        request = EverythingRequest(workdir=_workdir(entry, project), shown=workdirs)
        answer = host(entry).call("remove_everything", to_fields(request), timeout=TIMEOUT, limit=PATHS_LIMIT)
        with reading_answer(entry.name):
            return EverythingRemoved(host=entry.name, **read_record(EverythingAnswer, answer, "answer")._asdict())

    outcomes = each([entry for entry in entries if entry.name in listed_workdirs], remove_on_host)
    return [outcome.value or EverythingRemoved(host=outcome.name, error=str(outcome.error)) for outcome in outcomes]


def _workdir(entry: HostEntry, project: Project) -> str:
    """Return the project's workdir on the host: the inventory's, or else the default; empty if neither is known."""
    return entry.workdir or (project.workdir if project.known_id else "")
