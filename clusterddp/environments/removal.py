"""The environments on every host: listed, and those that are old removed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterddp.hosts.fanout import each, reading_answer
from clusterddp.remote.shared.schema.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry

LIMIT = 600.0  # seconds; many thousand files on a slow disk
_MOST = 1 << 16
OLD = 30 * 86400 * 10**9  # ns without a run, after which another project's goes too


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentFound:
    """An environment on a host.

    Attributes:
        host: The host.
        ident: Its digest.
        lock: What it was made of, as the inventory had it; empty where it was never finished.
        bytes: What it takes on disk.
        used: When it was made or a run began in it last, in ns since the epoch; 0: nobody knows.
        live: The runs that are live in it.
        building: Somebody builds it at this moment.
        stays: Why it is not to be removed; empty where it is.
    """

    host: str
    ident: str
    lock: str
    bytes: int
    used: int
    live: tuple[str, ...] = ()
    building: bool = False
    stays: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentsRemoved:
    """What became of a host's environments: how many were removed, what they and their wheels took; or its error."""

    host: str
    removed: int = 0
    bytes: int = 0
    error: str = ""


def listed(
    entries: Sequence[HostEntry],
    host: Callable[[HostEntry], Host],
    project: str | None,
    now: int,
    notify: Callable[[str], None],
    *,
    last_too: bool = False,
) -> list[EnvironmentFound]:
    """The environments on all hosts that answer, each with why it stays if it does.

    What stays: what a run is live in, what the project used last on that host (but with ``last_too``), what another
    project has used within 30 days.
    """

    def one(entry: HostEntry) -> list[tuple[str, EnvironmentFound]]:
        told = host(entry).call("environments", {}, timeout=LIMIT)
        with reading_answer(entry.name):
            all_of_it = Fields({"all": told}, most=_MOST)
            return [_read(entry.name, fields) for fields in all_of_it.each("all", lambda fields: fields)]

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
) -> dict[str, EnvironmentsRemoved]:
    """Remove environments, with the wheels that no other was made of; by host."""

    def one(entry: HostEntry) -> EnvironmentsRemoved:
        idents = [one.ident for one in going if one.host == entry.name]
        told = host(entry).call("remove_environments", {"idents": idents}, timeout=LIMIT)
        with reading_answer(entry.name):
            fields = Fields(told)
            return EnvironmentsRemoved(host=entry.name, removed=fields.number("removed"), bytes=fields.number("bytes"))

    hosts = {one.host for one in going}
    outcomes = each([entry for entry in entries if entry.name in hosts], one)
    return {one.name: one.value or EnvironmentsRemoved(host=one.name, error=str(one.error)) for one in outcomes}


def _read(host: str, fields: Fields) -> tuple[str, EnvironmentFound]:
    found = EnvironmentFound(
        host=host,
        ident=fields.check("ident", str.isalnum, "a digest"),
        lock=fields.text("lock"),
        bytes=fields.number("bytes"),
        used=fields.number("used"),
        live=fields.texts("live"),
        building=fields.flag("building"),
    )
    return fields.text("project"), found
