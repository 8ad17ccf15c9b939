"""Lists the environments on every host, and removes old ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterddp.hosts.fanout import each, reading_answer
from clusterddp.remote.shared.environment.environment_records import EnvironmentReport, RemoveAnswer, RemoveRequest
from clusterddp.remote.shared.schema.record import read_record, read_records, written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry

LIMIT = 600.0  # seconds; there may be many thousand files on a slow disk
OLD = 30 * 86400 * 10**9  # ns without a run after which another project's environment is removed too


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentFound:
    """An environment on a host."""

    host: str
    ident: str  # its digest
    lock: str  # the lock file as the inventory named it; empty if the environment was never finished
    bytes: int  # the disk space it takes
    used: int  # when it was made, or a run last began in it, in ns since the epoch; 0 if unknown
    live: tuple[str, ...] = ()  # the runs that are live in it
    building: bool = False  # whether it is being built at this moment
    stays: str = ""  # why it is not to be removed; empty if it is


def listed(
    entries: Sequence[HostEntry],
    host: Callable[[HostEntry], Host],
    project: str | None,
    now: int,
    notify: Callable[[str], None],
    *,
    last_too: bool = False,
) -> list[EnvironmentFound]:
    """The environments on all hosts that answer, each with the reason if it is kept.

    Kept are: one in which a run is live, the one that the project used last on that host (unless ``last_too``), and
    those that another project used within 30 days.
    """

    def one(entry: HostEntry) -> list[tuple[str, EnvironmentFound]]:
        answer = host(entry).call("environments", {}, timeout=LIMIT)
        with reading_answer(entry.name):
            return [_found(entry.name, one) for one in read_records(EnvironmentReport, answer, "environments")]

    found: list[EnvironmentFound] = []
    for outcome in each(entries, one):
        if outcome.error:
            notify(str(outcome.error))
        own = [one for whose, one in outcome.value or () if whose == project and one.lock]
        last = max(own, key=lambda one: one.used, default=None)
        for whose, environment in outcome.value or ():
            stays = ""
            if environment.building:
                stays = "it is being built"
            elif environment.live:
                stays = f"run {', '.join(environment.live)} is live in it"
            elif environment is last and not last_too:
                stays = "this project used it last; --purge --environments removes it too"
            elif whose not in {project, ""} and now - environment.used < OLD:
                stays = "another project's"
            found.append(replace(environment, stays=stays))
    return found


def remove(
    entries: Sequence[HostEntry], host: Callable[[HostEntry], Host], going: Sequence[EnvironmentFound]
) -> dict[str, Outcome[RemoveAnswer]]:
    """Remove environments, with the wheels that no other one was made of; the outcome by host."""

    def one(entry: HostEntry) -> RemoveAnswer:
        idents = [one.ident for one in going if one.host == entry.name]
        request = RemoveRequest(idents=tuple(idents))
        answer = host(entry).call("remove_environments", written(request), timeout=LIMIT)
        with reading_answer(entry.name):
            return read_record(RemoveAnswer, answer, "answer")

    hosts = {one.host for one in going}
    return {outcome.name: outcome for outcome in each([entry for entry in entries if entry.name in hosts], one)}


def _found(host: str, report: EnvironmentReport) -> tuple[str, EnvironmentFound]:
    found = EnvironmentFound(
        host=host,
        ident=report.ident,
        lock=report.lock,
        bytes=report.bytes,
        used=report.used,
        live=report.live,
        building=report.building,
    )
    return report.project, found
