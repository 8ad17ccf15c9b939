"""Carry out ``push`` and ``pull``: files that a user copies between this machine and the hosts."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.api import find_runs
from clusterddp.errors import RunError, UsageError
from clusterddp.hosts import fanout
from clusterddp.launch import launcher
from clusterddp.launch.launcher import FileQuery
from clusterddp.remote.shared.workdir.manifest import sort_entries
from clusterddp.runs.node_answers import Wanted
from clusterddp.sync import chosen_files
from clusterddp.sync.deliver import Delivered, deliver
from clusterddp.sync.project_files import Skipped
from clusterddp.sync.transfer.between_hosts import TransferOptions
from clusterddp.sync.transfer.collect import Pulled, collect
from clusterddp.sync.transfer.fetch import HostFiles, exists, list_host
from clusterddp.sync.transfer.progress_rate import Transfer
from clusterddp.sync.transfer.upload import Files, Uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry
    from clusterddp.launch.launcher import Launcher
    from clusterddp.project.project import Project
    from clusterddp.runs.run_on_hosts import Site
    from clusterddp.runs.run_view import RunView
    from clusterddp.sync.transfer.upload import ContentSource

_AWAY = re.compile(r"[^/:]+:[^:].*", re.DOTALL)  # HOST:PATH


@dataclass(frozen=True, kw_only=True, slots=True)
class Push:
    """The arguments of a push; see ``Cluster.push``."""

    sources: Sequence[str]
    dest: str | None = None
    overwrite: bool = False
    rate: int | None = None
    spread: str = "auto"


def push(
    wanted: Push,
    project: Project,
    hosts: Callable[[], Sequence[Host]],
    notify: Callable[[str], None],
    progress: Callable[[str], None],
) -> tuple[Delivered, ...]:
    """Bring files to hosts, which are opened once the arguments are known to be valid."""
    away = [one for one in wanted.sources if _AWAY.fullmatch(one) and not Path(one).exists()]
    if away and len(wanted.sources) > 1:
        raise UsageError(f"{away[0]} is the one source of a push", remedy="push them one by one")
    dest = "" if away else chosen_files.destination_path(project, wanted.sources, wanted.dest)
    opened = hosts()
    if away:
        folder, chosen, source = _of_host(away[0], wanted.dest, opened, project, progress)
    else:
        folder, chosen = chosen_files.read_sources(project, wanted.sources, dest, progress)
        source = Files(chosen.entries, chosen.chunks, lambda entry: chosen.local_paths[entry.path])
    for notice in chosen.notices:
        notify(notice)
    return deliver(
        opened,
        Uploads(chosen.entries, chosen.chunks, source),
        chosen.entries,
        folder=folder,
        workdir=project.workdir,
        transfer=Transfer("pushing", progress, rate=wanted.rate),
        overwrite=wanted.overwrite,
        spread=TransferOptions(mode=wanted.spread, rate=wanted.rate, notify=notify),
    )


def _of_host(
    word: str, dest: str | None, hosts: Sequence[Host], project: Project, progress: Callable[[str], None]
) -> tuple[str, chosen_files.ChosenFiles, ContentSource]:
    """Return the folder on the hosts, and the files of ``HOST:PATH`` for it."""
    name, _, path = word.partition(":")
    host = next((host for host in hosts if host.name == name), None)
    if host is None:
        raise UsageError(f"{word}: no such file, and no node or spare is called {name}")
    progress(f"looking at the files of {name}")
    found = list_host(host, host.entry.workdir or project.workdir, path)
    if not found.exists:
        raise RunError(f"{word}: nothing is there")
    destination = chosen_files.destination([(path, found.folder)], dest or path.rstrip("/"))
    prefix = destination.prefixes[0]
    entries = [
        entry._replace(path=posixpath.join(prefix, entry.path) if found.folder else prefix) for entry in found.entries
    ]
    chosen = chosen_files.ChosenFiles(
        entries=tuple(sort_entries(entries)),
        chunks={
            one: tuple(chunk.digest for chunk in chunks) for one, chunks in found.chunks.items() if len(chunks) > 1
        },
        skipped=tuple(Skipped(path=path, reason=why) for path, why in found.skipped),
    )
    return destination.folder, chosen, HostFiles(host, found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pull:
    """The arguments of a pull; see ``Cluster.pull``."""

    what: str | None = None
    dest: str | None = None
    run: str | None = None
    ranks: tuple[int, ...] | None = None
    hosts: str | None = None
    overwrite: bool = False


def pull(wanted: Pull, site: Site) -> Pulled:
    """Bring files of hosts here: those at a path, or what is new since a run's start."""
    managed = site.inventory.managed or not site.inventory.nodes
    entries = () if managed else _entries(wanted, site)
    view = _run_of(wanted, site, entries or site.inventory.submitting)
    name = _folder_of(view) if view else posixpath.basename(str(wanted.what).rstrip("/"))
    with _holder(site, view).files(site, _query(wanted, site, entries, view)) as (origins, failed):
        if not origins:
            raise failed[0]
        transfer = Transfer("pulling", site.progress)
        site.progress("looking at the files there")
        destination = partial(_destination, wanted, name)
        done = collect(origins, lambda folder: destination(folder=folder), transfer, overwrite=wanted.overwrite)
    return replace(done, errors=(*failed, *done.errors))


def _holder(site: Site, view: RunView | None) -> Launcher:
    """The launcher that knows where the files are: the run's or, for a path, that of the hosts."""
    if view:
        return launcher.of_record(view.record)
    if site.inventory.logins and not site.inventory.nodes:
        return launcher.choosing_hosts()
    return launcher.of_hosts(site.inventory)


def _entries(wanted: Pull, site: Site) -> tuple[HostEntry, ...]:
    """Return the nodes and spares that the pull is from."""
    entries = site.inventory.nodes + site.inventory.spares
    if wanted.hosts:
        names = {entry.name for entry in site.inventory.limit(wanted.hosts).hosts}
        entries = tuple(entry for entry in entries if entry.name in names)
    if not entries:
        raise UsageError(f"--host {wanted.hosts}: no node or spare matches")
    return entries


def _query(wanted: Pull, site: Site, entries: Sequence[HostEntry], view: RunView | None) -> FileQuery:
    """Return the query that the launcher answers, as it knows where the files are."""
    about = view or (find_runs.find_view(site) if wanted.ranks is not None else None)
    return FileQuery(
        path=None if view else str(wanted.what),
        view=about,
        entries=entries,
        pattern=wanted.hosts,
        names=None if about is None or wanted.ranks is None else _holding(wanted.ranks, about),
        last_run=lambda: find_runs.find_view(site),
    )


def _run_of(wanted: Pull, site: Site, entries: Sequence[HostEntry]) -> RunView | None:
    """Return the run that the pull names; None if it names a path."""
    if wanted.run is None and wanted.what is None:
        return find_runs.find_view(site)
    if wanted.run is None and ("/" in str(wanted.what) or str(wanted.what).startswith((".", "~"))):
        return None
    reference = wanted.run or wanted.what
    found = find_runs.list_runs(site, Wanted(reference=reference, brief=True))
    exact = [view for view in found if reference in (view.run, view.record.name)]
    if wanted.run is not None:
        if not exact:
            remedy = "`clusterddp runs --all` lists them; the beginning of an id is not enough here"
            raise RunError(f"no run is called {reference}", remedy=remedy)
        return exact[-1]
    if not exact:
        return None
    usual = site.project.workdir
    hosts = [one.value for one in site.connect(entries) if one.value]
    if any(fanout.values(fanout.each(hosts, lambda one: exists(one, one.entry.workdir or usual, str(reference))))):
        raise UsageError(
            f"{reference} is a run, and a path in the workdir", remedy=f"write ./{reference}, or --run {reference}"
        )
    return exact[-1]


def _holding(ranks: Sequence[int], view: RunView) -> set[str]:
    """Return the hosts that held these ranks."""
    hosts = {host.name: host.ranks for host in view.hosts()}
    missing = set(ranks).difference(*hosts.values())
    if missing:
        raise RunError(f"run {view.run} has no rank {min(missing)}")
    return {name for name, held in hosts.items() if set(held).intersection(ranks)}


def _folder_of(view: RunView) -> str:
    """Return the name of the folder here: the run's, as hosts report it, if that cannot lie outside the destination."""
    plain = "/" not in view.name and not view.name.startswith(".") and view.name.isprintable()
    return view.name if plain else view.run


def _destination(wanted: Pull, name: str, *, folder: bool) -> tuple[Path, str]:
    """Return the folder here, and the name of a single file: the destination itself, or below one with a slash."""
    dest = wanted.dest or ""
    below = not dest or dest in (".", "..") or dest.endswith(("/", "/.", "/.."))
    if folder:
        contents = str(wanted.what or "").endswith("/") and dest
        return Path(dest) / name if below and not contents else Path(dest), ""
    if below or Path(dest).is_dir():
        return Path(dest), name
    return Path(dest).parent, Path(dest).name
