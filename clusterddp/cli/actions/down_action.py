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
    from clusterddp.runs.view.run_view import RunView

_UNUSED_HINT = "--environments removes those that are not used"  # said of those without another reason to stay


@dataclass(frozen=True, kw_only=True, slots=True)
class DownOptions:
    """The options of ``down`` besides those that choose the hosts."""

    purge: bool
    workdirs: bool
    environments: bool
    everything: bool
    yes: bool

    @property
    def flags(self) -> list[str]:
        """The options that were given, as they are typed."""
        return [f"--{name}" for name, on in asdict(self).items() if on]


def act(inventory: Path | None, limit: str | None, **options: bool) -> int:
    """Stop and remove, after a question; return the exit code."""
    options_given = DownOptions(**options)
    if not options_given.yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("down asks before it stops runs and removes files, but nobody is here", remedy="give --yes")
    others = [flag for flag in options_given.flags if flag not in {"--everything", "--yes"}]
    if options_given.everything and others:
        raise UsageError(f"--everything with {others[0]}: it removes that too", remedy=f"leave out {others[0]}")
    # as typed: without an option it would remove less, without --limit more
    retry_command = shlex.join(["clusterddp", "down", *(["--limit", limit] if limit else []), *options_given.flags])
    with open_cluster(inventory, limit) as cluster:
        if options_given.everything:
            return _remove_everything(cluster, retry_command, yes=options_given.yes, all_hosts=limit is None)
        return _remove_old(cluster, retry_command, options_given)


def _remove_old(cluster: Cluster, retry_command: str, given: DownOptions) -> int:
    """Stop this project's runs and remove old files, after a question; return the exit code."""
    live = _announce_runs(cluster, purge=given.purge)
    folders = _announce_workdirs(cluster, live) if given.workdirs else []
    environments = cluster.environments(last_too=given.purge and given.environments)
    removable = announce_environments(environments) if given.environments else []
    held = cluster.holdings()
    if not live and not given.purge and not folders and not removable:
        say("no run of this project is live on these hosts; only what is old is removed")
    elif not given.yes:
        click.confirm("clusterddp: go on?", err=True, abort=True)
    proofs, cleaned = cluster.down(live, purge=given.purge, workdirs=folders, environments=removable)
    codes = [report_proofs(view.run, proofs[view.run]) for view in live]
    workdir = cluster.project.workdir.removeprefix("~") if cluster.project.known_id else ""
    left = [replace(env, stays=env.stays or _UNUSED_HINT) for env in environments if env not in removable]
    rows = rows_of_cleanup(cleaned, retry_command)
    if not rows:
        say(f"nothing to remove on {counted(len(cleaned), 'host')}")
    rows += rows_that_stay(held, left, cleaned, workdir=workdir, stopped=proofs)
    if rows:
        print_rows(rows)
    return max([*codes, *(int(_has_failed(host)) for host in cleaned)], default=0)


def _remove_everything(cluster: Cluster, retry_command: str, *, yes: bool, all_hosts: bool) -> int:
    """Show all that hosts hold of ours in this account, ask, and remove it; ``all_hosts``: no host was left out."""
    held = cluster.holdings()
    print_rows(rows_of_holdings(held))
    refuse_live(held)
    if not yes:
        say("what exists only there is lost: `clusterddp pull` brings it here before")
        click.confirm("clusterddp: remove all of it?", err=True, abort=True)
    removed = cluster.remove_everything(held)
    print_rows(rows_of_everything(removed, held, retry_command))
    failed = [host for host in held if host.error] + [host for host in removed if host.error or host.left]
    chosen = cluster.project.remembered
    if all_hosts and not failed and chosen.inventory and chosen.inventory == cluster.inventory.path:
        cluster.project.remember(None, None)
        say(f"{chosen.inventory} is forgotten, so that no command reaches these hosts; `clusterddp up` begins anew")
    return int(bool(failed))


def _has_failed(host: Cleaned) -> bool:
    """Whether anything that was to be removed from the host is still there."""
    workdirs = host.named_workdirs and (host.named_workdirs.error or host.named_workdirs.kept)
    return bool(host.error or host.left or workdirs or (host.environments and host.environments.error))


def _announce_runs(cluster: Cluster, *, purge: bool) -> list[RunView]:
    """Print which runs will be stopped and removed, and which go on; return the runs to stop."""
    views = cluster.unended_runs()
    to_stop = [view for view in views if cluster.owner.shares_project(view)]
    for view in views:
        if view in to_stop:
            hosts = len(view.record.hosts)
            what = "run" if view.live else "what is left of run"
            say(f"will be stopped: {what} {_run_name(view)} on {counted(hosts, 'host')}")
        else:
            whose = "your run of" if cluster.owner.owns(view) else f"a run of {view.record.operator}, in"
            say(f"goes on: {_run_name(view)}, {whose} another project ({view.record.label})")
    if purge:
        say("will be removed: the output and the run dirs of every ended run of this project")
    return to_stop


def _announce_workdirs(cluster: Cluster, stopping: Sequence[RunView]) -> list[WorkdirBeside]:
    """Say which folders beside the project's will be removed, and which not; return the former."""
    removable = []
    stopping_ids = {view.run for view in stopping}
    found = cluster.workdirs_beside()
    for folder in found:
        others = [run for run in folder.live if run not in stopping_ids]
        size = human_size(folder.bytes)
        written = f"written {_days_ago(folder.written)}" if folder.written else "no file in it"
        what = f"{folded_names(folder.hosts)}: {folder.path} ({size}, {written})"
        if others:
            say(f"stays: {what}: run {', '.join(others)} is live in it")
        else:
            say(f"will be removed with all that is in it: {what}")
            removable.append(folder)
    if not found:
        say("no folder beside the project's on these hosts")
    return removable


def announce_environments(environments: Sequence[EnvironmentFound]) -> list[EnvironmentFound]:
    """Print the environments installed from lock files, and why each stays or goes; return those that go."""
    groups: dict[tuple[str, str, str, str], list[EnvironmentFound]] = {}
    for environment in environments:
        when = f"used {_days_ago(environment.used / 1e9)}" if environment.used else "never used"
        groups.setdefault((environment.ident, environment.lock, when, environment.stays), []).append(environment)
    for (ident, lock, when, stays), group in groups.items():
        what = f"environment {ident[:4]} of {lock}" if lock else f"environment {ident[:4]}, never finished"
        size = human_size(max(environment.bytes for environment in group))
        line = f"{folded_names([environment.host for environment in group])}: {what} ({size}, {when})"
        say(f"stays: {line}: {stays}" if stays else f"will be removed: {line}")
    if not environments:
        say("no environment of a lock on these hosts")
    return [environment for environment in environments if not environment.stays]


def _days_ago(seconds: float) -> str:
    days = max(0, int((time.time() - seconds) // 86400))
    return "today" if days == 0 else f"{counted(days, 'day')} ago"


def _run_name(view: RunView) -> str:
    name = view.record.name
    return f"{view.run} ({name})" if name else view.run
