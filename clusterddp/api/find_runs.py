"""Find runs on the hosts of a cluster: all, those of a query, or the one that a command names."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.inventory import built_in_path
from clusterddp.launch.make_record import operator
from clusterddp.launch.options import option_values
from clusterddp.project.project import short_path
from clusterddp.runs import local_cache
from clusterddp.runs.choose import Requester, UnknownRunError, choose_run, is_called
from clusterddp.runs.run import Run
from clusterddp.runs.run_on_hosts import BRIEF, Wanted, current_spools, gather, unheard_hosts
from clusterddp.runs.view.run_view import RunView, run_views

if TYPE_CHECKING:
    from clusterddp.project.project import Project
    from clusterddp.runs.difference import Difference
    from clusterddp.runs.run_on_hosts import Site
    from clusterddp.runs.watch_hosts import Top
    from clusterddp.sync.code_diff import FileDiff


def list_runs(site: Site, wanted: Wanted = BRIEF) -> list[RunView]:
    """Return every run that hosts know of, or those ``wanted``, oldest first."""
    replaced = local_cache.replaced_hosts(site.project, wanted.reference)  # were off at its start, and are not in it
    hosts = [one.name for one in site.inventory.run_hosts if one.name not in replaced] if replaced else None
    nodes, silent = gather(site, "", hosts, wanted)
    begun = local_cache.recent_starts(site.project) if silent else ()
    return run_views(nodes, silent, local_cache.finished_runs(site.project), begun)


def owner(project: Project) -> Requester:
    """Return whose runs are ours: this user's, in this project."""
    return Requester(operator=operator(), project=project.known_id)


def attach(site: Site, view: RunView) -> Run:
    """Return a handle of a view's run: it can ask the hosts about the run, stop it and follow it."""
    last_spools = current_spools(view, site.inventory)  # of the last attempt, by host
    return Run(
        site,
        view.run,
        view.attempt,
        spools=last_spools,
        record=view.record,
        attempts=view.spools,
        unheard=unheard_hosts(view),
        live=view.live,
    )


def find(site: Site, reference: str | None = None, *, reading: bool = True) -> RunView:
    """Return the run of an id, a unique prefix of one, or a name, in brief; without: the live one, else the last."""
    option_values.read("reference", option_values.optional(option_values.text), reference)
    found = list_runs(site, Wanted(reference=reference, brief=True))
    try:
        return choose_run(found, reference, owner(site.project), ending=not reading, notify=site.notify)
    except UnknownRunError as error:
        elsewhere = _other_inventory(site, str(reference))
        if elsewhere is None:
            raise
        remedy = f"it was started on the hosts of another inventory: -i {shlex.quote(short_path(elsewhere))}"
        raise UnknownRunError(error.message, remedy=remedy) from error


def _other_inventory(site: Site, reference: str) -> Path | None:
    """Return the inventory on whose hosts this project started the run, if that is not the site's; else None."""
    for record in reversed(site.project.runs(own=True)):
        if is_called(record, reference):
            path, current = Path(record.inventory or built_in_path()), site.inventory.path or built_in_path()
            return None if path.resolve() == current.resolve() else path
    return None


def find_view(site: Site, reference: str | None = None, *, reading: bool = True) -> RunView:
    """Return ``find``'s run with processes and evidence, as its hosts report it now."""
    view = find(site, reference, reading=reading)
    return local_cache.save_if_new(site.project, attach(site, view).detailed(view))


def top(site: Site, reference: str | None = None) -> Top:
    """Return a ``Top``, which samples a run's ranks and hosts: the named run, else the live one; else all hosts."""
    from clusterddp.runs.watch_hosts import Top  # noqa: PLC0415 - only for `top`

    own = owner(site.project)
    live = [] if reference else [view for view in list_runs(site) if view.live and own.shares_project(view)]
    if not reference and not live:
        return Top(site)
    view = find_view(site, reference) if reference else choose_run(live, None, own, notify=site.notify)
    return Top(site, view, attach(site, view))


def diff(site: Site, a: str, b: str) -> tuple[list[Difference], tuple[FileDiff, ...] | None]:
    """Compare two runs: recorded settings and results, and source files if the project still stores both versions."""
    from clusterddp.runs.difference import differences  # noqa: PLC0415 - only for `runs --diff`
    from clusterddp.sync.code_diff import code_diff  # noqa: PLC0415 - likewise

    for name, reference in (("a", a), ("b", b)):
        option_values.read(name, option_values.text, reference)
    views = list_runs(site)
    first, second = (choose_run(views, reference, owner(site.project)).record for reference in (a, b))
    return differences(first, second), code_diff(site.project, first.code, second.code)
