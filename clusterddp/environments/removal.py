"""Lists the environments on every host, and removes old ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.hosts.ask import ask, reading_answer
from clusterddp.remote.shared.environment.environment_records import EnvironmentReport, RemoveAnswer, RemoveRequest
from clusterddp.remote.shared.schema.record import read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import HostGroup, Outcome

TIMEOUT = 600.0  # seconds; there may be many thousand files on a slow disk
UNUSED_TIME = 30 * 86400 * 10**9  # ns without a run after which another project's environment is removed too


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
    stays: str = ""  # why it is kept; empty if it may be removed


def list_environments(
    hosts: HostGroup,
    project: str | None,
    now: int,
    notify: Callable[[str], None],
    *,
    last_too: bool = False,
) -> list[EnvironmentFound]:
    """The environments on all hosts that answer, each with the reason if it is kept.

    Environments are kept while a run is live in them or they are built, while another project has made or used them
    within 30 days, and if this project used them last on that host (unless ``last_too``). ``now`` is in ns.
    """

    def list_on(host: Host) -> tuple[EnvironmentReport, ...]:
        answer = host.call("environments", {}, timeout=TIMEOUT)
        with reading_answer(host.name):
            return read_records(EnvironmentReport, answer, "environments")

    environments: list[EnvironmentFound] = []
    for outcome in hosts.each(list_on):
        if outcome.error:
            notify(str(outcome.error))
        reports = outcome.value or ()
        of_project = [report for report in reports if report.lock and project in report.used]
        last = max(of_project, key=lambda report: report.used[project or ""], default=None)
        for report in reports:
            by_others = [when for owner, when in report.used.items() if owner not in {project, ""}]
            stays = ""
            if report.building:
                stays = "it is being built"
            elif report.live:
                stays = f"run {', '.join(report.live)} is live in it"
            elif report is last and not last_too:
                stays = "this project used it last; --purge --environments removes it too"
            elif report.lock and now - max(by_others, default=0) < UNUSED_TIME:
                stays = "another project's"
            environments.append(_found(outcome.name, report, stays))
    return environments


def remove(hosts: HostGroup, to_remove: Sequence[EnvironmentFound]) -> dict[str, Outcome[RemoveAnswer]]:
    """Remove environments, with the wheels that no other one was made of; the outcome by host."""

    def remove_from(host: Host) -> RemoveAnswer:
        idents = tuple(environment.ident for environment in to_remove if environment.host == host.name)
        return ask(host, "remove_environments", RemoveRequest(idents=idents), RemoveAnswer, timeout=TIMEOUT)

    with_some = hosts.only({environment.host for environment in to_remove})
    return {outcome.name: outcome for outcome in with_some.each(remove_from)}


def _found(host: str, report: EnvironmentReport, stays: str) -> EnvironmentFound:
    return EnvironmentFound(
        host=host,
        ident=report.ident,
        lock=report.lock,
        bytes=report.bytes,
        used=max(report.used.values(), default=0),
        live=report.live,
        building=report.building,
        stays=stays,
    )
