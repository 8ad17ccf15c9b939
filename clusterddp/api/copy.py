"""Carry out ``push`` and ``pull``: files that a user copies between this machine and the hosts."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.api import code_and_commands, find_runs
from clusterddp.errors import RunError, SyncError, UsageError
from clusterddp.hosts import fanout
from clusterddp.launch import launcher
from clusterddp.launch.launcher import FileQuery
from clusterddp.remote.shared.workdir.manifest import sort_entries
from clusterddp.runs.run_on_hosts import Wanted
from clusterddp.sync import chosen_files
from clusterddp.sync.deliver import Delivered, deliver, kept_lines
from clusterddp.sync.project_files.project_tree import Skipped
from clusterddp.sync.transfer.collect import Pulled, collect
from clusterddp.sync.transfer.fetch import HostFiles, exists, is_unreadable, list_host
from clusterddp.sync.transfer.progress_rate import Transfer
from clusterddp.sync.transfer.transfer_task import TransferOptions
from clusterddp.sync.transfer.upload import Files, Uploads
from clusterddp.text.paths import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry
    from clusterddp.launch.launcher import Launcher
    from clusterddp.project.project import Project
    from clusterddp.runs.run_on_hosts import Site
    from clusterddp.runs.view.run_view import RunView
    from clusterddp.sync.transfer.upload import ContentSource

_HOST_PATH = re.compile(r"[^/:]+:[^:].*", re.DOTALL)  # HOST:PATH


def push(
    site: Site, sources: Sequence[str], to: str | None, *, overwrite: bool, rate: int | None, spread: str
) -> tuple[Delivered, ...]:
    """Copy files to all hosts; see ``Cluster.push``. No host is connected to if an argument is wrong."""
    project, notify, progress = site.project, site.notify, site.progress
    _refuse_empty(*sources, to)
    on_host = [one for one in sources if _HOST_PATH.fullmatch(one) and not Path(one).exists()]
    if on_host and len(sources) > 1:
        raise UsageError(f"{on_host[0]} is the one source of a push", remedy="push them one by one")
    dest = "" if on_host else chosen_files.destination_path(project, sources, to)
    hosts = code_and_commands.reached(site)
    if on_host:
        folder, chosen, source = _files_of_host(on_host[0], to, hosts, project, progress)
    else:
        folder, chosen = chosen_files.read_sources(project, sources, dest, progress)
        source = Files(chosen.entries, chosen.chunks, lambda entry: chosen.local_paths[entry.path])
    for notice in chosen.notices:
        notify(notice)
    done = deliver(
        hosts,
        Uploads(chosen.entries, chosen.chunks, source),
        chosen.entries,
        folder=folder,
        workdir=project.workdir,
        transfer=Transfer("pushing", progress, rate=rate),
        overwrite=overwrite,
        spread=TransferOptions(mode=spread, rate=rate, notify=notify),
    )
    for line in kept_lines(done):
        notify(line)
    return done


def _files_of_host(
    source: str, dest: str | None, hosts: Sequence[Host], project: Project, progress: Callable[[str], None]
) -> tuple[str, chosen_files.ChosenFiles, ContentSource]:
    """Return the folder on the hosts, and the files of ``HOST:PATH`` for it."""
    name, _, path = source.partition(":")
    host = next((host for host in hosts if host.name == name), None)
    if host is None:
        raise UsageError(f"{source}: no such file, and no node or spare is called {name}")
    progress(f"looking at the files of {name}")
    found = list_host(host, host.entry.workdir or project.workdir, path, bytecode=True)
    if not found.exists:
        raise RunError(f"{source}: nothing is there")
    for inside, why in found.skipped:
        if is_unreadable(why):
            where = shown(posixpath.join(found.root, inside))
            raise SyncError(f"{name}:{where}: {why}", remedy="make it readable, or leave it out")
    path = "~/" if path == "~" else path  # the home folder has no name of its own
    target = chosen_files.with_slash(dest) if dest else path.rstrip("/")
    destination = chosen_files.destination([(path, found.folder)], target)
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


def _refuse_empty(*paths: str | None) -> None:
    """Refuse an empty word, as which a shell hands over a variable that is not set."""
    if "" in paths:
        raise UsageError("a path is an empty word", remedy="write the path; . names the folder itself")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pull:
    """The arguments of a pull; see ``Cluster.pull``."""

    what: str | None = None
    dest: str | None = None
    run: str | None = None
    ranks: tuple[int, ...] | None = None
    hosts: str | None = None
    overwrite: bool = False


def pull(request: Pull, site: Site) -> Pulled:
    """Bring files of hosts here: those at a path, or what is new since a run's start."""
    _refuse_empty(request.what, request.dest)
    managed = site.inventory.managed or not site.inventory.nodes
    entries = () if managed else _entries(request, site)
    view = _named_run(request, site, entries or site.inventory.submitting)
    name = _local_name(view) if view else _name_of_path(str(request.what))
    with _launcher_of_files(site, view).files(site, _query(request, site, entries, view)) as (origins, failed):
        if not origins:
            raise failed[0]
        transfer = Transfer("pulling", site.progress)
        site.progress("looking at the files there")
        destination = partial(_destination, request, name)
        done = collect(origins, lambda folder: destination(folder=folder), transfer, overwrite=request.overwrite)
    return replace(done, errors=(*failed, *done.errors))


def _launcher_of_files(site: Site, view: RunView | None) -> Launcher:
    """Return the launcher that knows where the files are: the run's or, for a path, that of the hosts."""
    if view:
        return launcher.of_record(view.record)
    if site.inventory.logins and not site.inventory.nodes:
        return launcher.choosing_hosts()
    return launcher.of_hosts(site.inventory)


def _entries(request: Pull, site: Site) -> tuple[HostEntry, ...]:
    """Return the nodes and spares that the pull is from."""
    entries = site.inventory.run_hosts
    if request.hosts:
        names = {entry.name for entry in site.inventory.limit(request.hosts).hosts}
        entries = tuple(entry for entry in entries if entry.name in names)
    if not entries:
        raise UsageError(f"--host {request.hosts}: no node or spare matches")
    return entries


def _query(request: Pull, site: Site, entries: Sequence[HostEntry], view: RunView | None) -> FileQuery:
    """Return the query that the launcher answers, as it knows where the files are."""
    view_of_ranks = view or (find_runs.find_view(site) if request.ranks is not None else None)
    holders = view_of_ranks.holders(request.ranks) if view_of_ranks and request.ranks is not None else None
    return FileQuery(
        path=None if view else str(request.what),
        view=view_of_ranks,
        entries=entries,
        pattern=request.hosts,
        names=None if holders is None else {*holders.values()},
        last_run=lambda: find_runs.find_view(site),
    )


def _named_run(request: Pull, site: Site, entries: Sequence[HostEntry]) -> RunView | None:
    """Return the run that the pull names; None if it names a path."""
    if request.run is None and request.what is None:
        return find_runs.find_view(site)
    if request.run is None and (str(request.what).startswith(("/", ".", "~")) or str(request.what).endswith("/")):
        return None
    reference = request.run or request.what
    views = find_runs.list_runs(site, Wanted(reference=reference, brief=True))
    exact = [view for view in views if reference in (view.run, view.record.name)]
    if request.run is not None:
        if not exact:
            remedy = "`clusterddp runs --all` lists them; the beginning of an id is not enough here"
            raise RunError(f"no run is called {reference}", remedy=remedy)
        return exact[-1]
    if not exact:
        return None
    workdir = site.project.workdir
    hosts = [host.value for host in site.connect(entries) if host.value]
    if any(fanout.values(fanout.each(hosts, lambda host: exists(host, host.entry.workdir or workdir, str(reference))))):
        raise UsageError(
            f"{reference} is a run, and a path in the workdir", remedy=f"write ./{reference}, or --run {reference}"
        )
    return exact[-1]


def _local_name(view: RunView) -> str:
    """Return the name of the folder here: the run's name, or its id if the name could lead out of the destination."""
    plain = "/" not in view.name and not view.name.startswith(".") and view.name.isprintable()
    return view.name if plain else view.run


def _name_of_path(path: str) -> str:
    """Return the local name for a path on hosts: its last part, or no name for the home folder.

    Raises UsageError if that would lead out of the destination.
    """
    plain = path.rstrip("/")
    name = "" if plain == "~" else posixpath.basename(plain)
    if name == "..":
        raise UsageError(f"{path} has no name of its own", remedy="write the folder's own path")
    return name


def _destination(request: Pull, name: str, *, folder: bool) -> tuple[Path, str]:
    """Return the folder here, and the name of a single file: the destination itself, or below one with a slash."""
    dest = request.dest or ""
    below = not dest or dest in (".", "..") or dest.endswith(("/", "/.", "/.."))
    if folder:
        contents = str(request.what or "").endswith("/") and dest
        return Path(dest) / name if below and not contents else Path(dest), ""
    if below or Path(dest).is_dir():
        return Path(dest), name
    return Path(dest).parent, Path(dest).name
