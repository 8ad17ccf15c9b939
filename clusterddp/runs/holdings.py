"""List and remove all that clusterddp holds in this account on hosts, for ``down`` and ``down --everything``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import RunError
from clusterddp.hosts.answers import PATHS_LIMIT
from clusterddp.hosts.ask import ask
from clusterddp.remote.shared.cleanup.cleanup_records import (
    EverythingAnswer,
    EverythingRequest,
    HoldingsAnswer,
    HoldingsRequest,
    ShownWorkdir,
    WorkdirHeld,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import HostGroup
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


def list_holdings(hosts: HostGroup, project: Project) -> list[Holdings]:
    """Return what each host holds."""

    def list_on(host: Host) -> Holdings:
        request = HoldingsRequest(workdir=_workdir(host.entry, project))
        answer = ask(host, "holdings", request, HoldingsAnswer, timeout=TIMEOUT, limit=PATHS_LIMIT)
        return Holdings(host=host.name, **answer._asdict())

    outcomes = hosts.each(list_on)
    return [outcome.value or Holdings(host=outcome.name, error=str(outcome.error)) for outcome in outcomes]


def refuse_live(shown: Sequence[Holdings]) -> None:
    """Refuse to remove everything while any run of this account is live."""
    for host in shown:
        for run, label, _ in host.live:
            of = f" ({label})" if label else ""
            message = f"run {run}{of} is live on {host.host}, and nothing is removed then"
            raise RunError(message, remedy=f"`clusterddp stop {run}` ends it")


def remove(hosts: HostGroup, project: Project, shown: Sequence[Holdings]) -> list[EverythingRemoved]:
    """Remove the workdirs that ``shown`` lists for each host, and all state folders of this account."""
    listed_workdirs = {host_holdings.host: host_holdings.workdirs for host_holdings in shown if not host_holdings.error}

    def remove_on_host(host: Host) -> EverythingRemoved:
        workdirs = tuple(ShownWorkdir(path=folder.path, ident=folder.ident) for folder in listed_workdirs[host.name])
        request = EverythingRequest(workdir=_workdir(host.entry, project), shown=workdirs)
        answer = ask(host, "remove_everything", request, EverythingAnswer, timeout=TIMEOUT, limit=PATHS_LIMIT)
        return EverythingRemoved(host=host.name, **answer._asdict())

    outcomes = hosts.only(listed_workdirs).each(remove_on_host)
    return [outcome.value or EverythingRemoved(host=outcome.name, error=str(outcome.error)) for outcome in outcomes]


def _workdir(entry: HostEntry, project: Project) -> str:
    """Return the project's workdir on the host: the inventory's, or else the default; empty if neither is known."""
    return entry.workdir or (project.workdir if project.known_id else "")
