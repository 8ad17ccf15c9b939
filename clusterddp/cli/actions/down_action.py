"""``clusterddp down``: stop this project's runs, and remove old files of ours from its hosts."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import click

from clusterddp.cli.down_tables import print_rows, rows_of_cleanup, rows_of_everything, rows_of_holdings, rows_that_stay
from clusterddp.cli.output import report_proofs, say
from clusterddp.cli.session import open_cluster
from clusterddp.errors import UsageError
from clusterddp.remote.shared.text.counted import counted
from clusterddp.runs.holdings import refuse_live
from clusterddp.text.folding import folded_names
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from clusterddp.api.cluster import Cluster
    from clusterddp.environments.removal import EnvironmentFound
    from clusterddp.runs.cleanup import Cleaned
    from clusterddp.runs.named_workdirs import WorkdirBeside
    from clusterddp.runs.run_view import RunView

_STAYS = "--environments removes those that are not used"


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options of ``down`` besides those that choose the hosts."""

    purge: bool
    workdirs: bool
    environments: bool
    everything: bool
    yes: bool

    @property
    def flags(self) -> list[str]:
        """Those that were given, as they are typed."""
        return [f"--{name}" for name, on in asdict(self).items() if on]


def act(inventory: Path | None, limit: str | None, **options: bool) -> int:
    """Stop and remove, after a question; return the exit code."""
    given = Options(**options)
    if not given.yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("down asks before it stops runs and removes files, but nobody is here", remedy="give --yes")
    others = [flag for flag in given.flags if flag not in {"--everything", "--yes"}]
    if given.everything and others:
        raise UsageError(f"--everything with {others[0]}: it removes that too", remedy=f"leave out {others[0]}")
    # as typed: without an option it would remove less, without --limit more
    again = shlex.join(["clusterddp", "down", *(["--limit", limit] if limit else []), *given.flags])
    with open_cluster(inventory, limit) as cluster:
        if given.everything:
            return _remove_everything(cluster, again, yes=given.yes, whole=limit is None)
        return _remove_old(cluster, again, given)


def _remove_old(cluster: Cluster, again: str, given: Options) -> int:
    live = _announce(cluster, purge=given.purge)
    folders = _announce_workdirs(cluster, live) if given.workdirs else []
    found = cluster.environments(last_too=given.purge and given.environments)
    going = announce_environments(found) if given.environments else []
    held = cluster.holdings()
    if not live and not given.purge and not folders and not going:
        say("no run of this project is live on these hosts; only what is old is removed")
    elif not given.yes:
        click.confirm("clusterddp: go on?", err=True, abort=True)
    proofs, cleaned = cluster.down(live, purge=given.purge, workdirs=folders, environments=going)
    codes = [report_proofs(view.run, proofs[view.run]) for view in live]
    workdir = cluster.project.workdir.removeprefix("~") if cluster.project.known_id else ""
    left = [replace(one, stays=one.stays or _STAYS) for one in found if one not in going]
    rows = rows_of_cleanup(cleaned, again)
    if not rows:
        say(f"nothing to remove on {counted(len(cleaned), 'host')}")
    rows += rows_that_stay(held, left, cleaned, workdir=workdir, stopped=proofs)
    if rows:
        print_rows(rows)
    return max([*codes, *(int(_failed(host)) for host in cleaned)], default=0)


def _remove_everything(cluster: Cluster, again: str, *, yes: bool, whole: bool) -> int:
    """Show all that hosts hold of ours in this account, ask, and remove it; ``whole``: no host was left out."""
    held = cluster.holdings()
    print_rows(rows_of_holdings(held))
    refuse_live(held)
    if not yes:
        say("what exists only there is lost: `clusterddp pull` brings it here before")
        click.confirm("clusterddp: remove all of it?", err=True, abort=True)
    gone = cluster.remove_everything(held)
    print_rows(rows_of_everything(gone, held, again))
    failed = [host for host in held if host.error] + [host for host in gone if host.error or host.left]
    chosen = cluster.project.remembered
    if whole and not failed and chosen.inventory and chosen.inventory == cluster.inventory.path:
        cluster.project.remember(None, None)
        say(f"{chosen.inventory} is forgotten, so that no command reaches these hosts; `clusterddp up` begins anew")
    return int(bool(failed))


def _failed(host: Cleaned) -> bool:
    beside = host.beside and (host.beside.error or host.beside.kept)
    return bool(host.error or beside or (host.environments and host.environments.error))


def _announce(cluster: Cluster, *, purge: bool) -> list[RunView]:
    """Say what will be stopped and removed, and what not; return the runs to stop."""
    left = {found.run for found in cluster.orphans()}
    found = [view for view in cluster.list_runs() if view.live or view.run in left]
    mine = [view for view in found if cluster.owner.shares_project(view)]
    for view in found:
        if view in mine:
            hosts = len(view.record.hosts)
            what = "run" if view.live else "what is left of run"
            say(f"will be stopped: {what} {_named(view)} on {counted(hosts, 'host')}")
        else:
            whose = "your run of" if cluster.owner.owns(view) else f"a run of {view.record.operator}, in"
            say(f"goes on: {_named(view)}, {whose} another project ({view.record.label})")
    if purge:
        say("will be removed: the output and the run dirs of every ended run of this project")
    return mine


def _announce_workdirs(cluster: Cluster, stopping: Sequence[RunView]) -> list[WorkdirBeside]:
    """Say which folders beside the project's will be removed, and which not; return the former."""
    going = []
    stopped = {view.run for view in stopping}
    found = cluster.workdirs_beside()
    for folder in found:
        others = [run for run in folder.live if run not in stopped]
        size = human_size(folder.bytes)
        written = f"written {_days_ago(folder.written)}" if folder.written else "no file in it"
        what = f"{folded_names(folder.hosts)}: {folder.path} ({size}, {written})"
        if others:
            say(f"stays: {what}: run {', '.join(others)} is live in it")
        else:
            say(f"will be removed with all that is in it: {what}")
            going.append(folder)
    if not found:
        say("no folder beside the project's on these hosts")
    return going


def announce_environments(found: Sequence[EnvironmentFound]) -> list[EnvironmentFound]:
    """Say which environments of locks are on the hosts, and which will be removed; return the latter."""
    alike: dict[tuple[str, str, str, str], list[EnvironmentFound]] = {}
    for one in found:
        when = f"used {_days_ago(one.used / 1e9)}" if one.used else "never used"
        alike.setdefault((one.ident, one.lock, when, one.stays), []).append(one)
    for (ident, lock, when, stays), some in alike.items():
        what = f"environment {ident[:4]} of {lock}" if lock else f"environment {ident[:4]}, never finished"
        size = human_size(max(one.bytes for one in some))
        line = f"{folded_names([one.host for one in some])}: {what} ({size}, {when})"
        say(f"stays: {line}: {stays}" if stays else f"will be removed: {line}")
    if not found:
        say("no environment of a lock on these hosts")
    return [one for one in found if not one.stays]


def _days_ago(seconds: float) -> str:
    days = max(0, int((time.time() - seconds) // 86400))
    return "today" if days == 0 else f"{counted(days, 'day')} ago"


def _named(view: RunView) -> str:
    name = view.record.name
    return f"{view.run} ({name})" if name else view.run
