"""Collects files of several hosts in one local folder: equal files once, differing ones in a folder per host."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote

from clusterddp.errors import ClusterddpError, RunError, SyncError
from clusterddp.hosts import fanout
from clusterddp.remote.shared.workdir.manifest import FILE, on_disk, paths_above_others
from clusterddp.sync.transfer.fetch import (
    ChunkLocation,
    Listing,
    chunk_locations,
    fetch_chunks,
    is_unreadable,
    list_host,
)
from clusterddp.sync.transfer.local_files import OTHER, SAME, LocalFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from clusterddp.hosts.client import Host
    from clusterddp.remote.shared.wire.chunks import Chunk
    from clusterddp.remote.shared.workdir.manifest import Entry
    from clusterddp.sync.transfer.progress_rate import Transfer

_TRIES = 3  # a job may write to a file while it is read


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a host's files are: below its ``path``, or what is new in ``workdir`` since the start of ``run``."""

    host: Host
    workdir: str
    path: str = ""
    run: str = ""

    @property
    def name(self) -> str:
        """The host's name."""
        return self.host.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """What a pull did."""

    folder: Path
    name: str = ""  # of a single file, in ``folder``; empty for a folder's
    hosts: tuple[str, ...] = ()  # the hosts that have any of what is here now
    files: int = 0  # the number of files fetched
    paths: tuple[str, ...] = ()  # their paths, below ``folder``
    bytes: int = 0  # fetched, of file contents
    same: int = 0  # the number of files that were here already
    kept: tuple[str, ...] = ()  # paths here that hold something else, and were not replaced
    # paths that differ between hosts, so that each host's file lies in a folder of the host's name
    differing: tuple[str, ...] = ()
    changing: tuple[str, ...] = ()  # paths that changed each time they were read
    gone: tuple[str, ...] = ()  # paths that were removed while they were read
    skipped: tuple[tuple[str, str, str], ...] = ()  # host, path and reason of each file left out
    others: tuple[str, ...] = ()  # runs that wrote in the same folder
    errors: tuple[ClusterddpError, ...] = ()  # of hosts that failed

    @property
    def whole(self) -> bool:
        """Whether everything the hosts have is here at its own path."""
        unreadable = any(is_unreadable(why) for _, _, why in self.skipped)
        return not (self.kept or self.differing or self.changing or self.gone or self.errors or unreadable)


@dataclass(slots=True)
class _Tally:
    """The results so far: sets of local paths."""

    done: set[str] = field(default_factory=set)
    same: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    differing: set[str] = field(default_factory=set)
    changing: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    bytes: int = 0
    errors: dict[str, ClusterddpError] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)  # the contents that the latest try was for

    @property
    def settled(self) -> set[str]:
        """The paths that are not looked at again when hosts are listed again."""
        return self.done | self.same | self.kept


def collect(
    origins: Sequence[Origin],
    choose_target: Callable[[bool], tuple[Path, str]],
    transfer: Transfer,
    *,
    overwrite: bool = False,
) -> Pulled:
    """Fetch the files of hosts.

    ``choose_target`` returns the local folder and the name of a single file (empty: its own), given whether it is a
    folder on the hosts. ``transfer`` counts the bytes. ``overwrite`` replaces local files that differ. Raises
    ``RunError`` if no host has anything there, ``SyncError`` if it cannot be written here, or is a file on one host and
    a folder on another, ``HostError`` or ``HostsError`` if no host could answer.
    """
    tally, waiting = _Tally(), list(origins)
    found = _list_all(waiting, tally)
    if all(origin.name in tally.errors for origin in origins):
        raise next(iter(tally.errors.values()))
    non_empty = {name: listing for name, listing in found.items() if listing.exists}
    if not non_empty:
        what = f"run {origins[0].run} has" if origins[0].run else f"{origins[0].path}:"
        raise RunError(f"{what} nothing on these hosts")
    kinds = {listing.folder for listing in non_empty.values()}
    if len(kinds) > 1:
        raise SyncError(f"{origins[0].path} is a file on one host and a folder on another", remedy="--host chooses")
    folder, name = choose_target(kinds.pop())
    latest: dict[str, Listing] = {}  # by host; where a host is lost, its last one
    with LocalFolder(folder) as local:
        for number in range(_TRIES):
            if number:
                found = _list_all([origin for origin in waiting if origin.name not in tally.errors], tally)
            renamed = {host: _rename_single_file(item, name) for host, item in found.items()}
            named, disputed = _deduplicate(renamed, latest)
            if number < _TRIES - 1:  # the next try tells whether another host's file there has that path to itself
                named = {host: _without_paths(listing, disputed) for host, listing in named.items()}
            latest |= renamed
            tally.gone |= tally.changing - _possible_targets(latest)
            _fetch_missing(local, waiting, found, _plan_paths(named, tally), tally, transfer, overwrite=overwrite)
            tally.changing |= disputed
            if not tally.changing:
                break
    return Pulled(
        folder=folder,
        name=name,
        hosts=tuple(host for host, item in non_empty.items() if _has_any(host, _rename_single_file(item, name), tally)),
        files=len(tally.done),
        paths=tuple(sorted(tally.done)),
        bytes=tally.bytes,
        same=len(tally.same),
        kept=tuple(sorted(tally.kept)),
        differing=tuple(sorted(tally.differing)),
        changing=tuple(sorted(tally.changing)),
        gone=tuple(sorted(tally.gone - tally.settled - tally.changing)),
        skipped=tuple((host, *item) for host, listing in non_empty.items() for item in listing.skipped),
        others=tuple(sorted({run for listing in non_empty.values() for run in listing.others})),
        errors=tuple(tally.errors.values()),
    )


def _list_all(origins: Sequence[Origin], tally: _Tally) -> dict[str, Listing]:
    """What the hosts have; errors are recorded in the tally."""
    outcomes = fanout.each(origins, lambda origin: list_host(origin.host, origin.workdir, origin.path, origin.run))
    tally.errors.update({outcome.name: outcome.error for outcome in outcomes if outcome.error})
    return {outcome.name: outcome.value for outcome in outcomes if outcome.value}


def _deduplicate(
    found: Mapping[str, Listing], before: Mapping[str, Listing] = MappingProxyType({})
) -> tuple[dict[str, Listing], set[str]]:
    """In folders that several hosts share, keep each file on one host; return the paths on which they disagree.

    That they share a folder is each host's own claim, so no host may hide another's file, or stand in for it: if they
    differ on a path, it changed between two readings. If each has what it had ``before``, the claim is wrong, as of
    machines that are copies of one image: such a file is each host's own.
    """
    reports: dict[tuple[str, str], dict[Entry, str]] = {}  # folder, path → each reported file, its first host
    for host, listing in found.items():
        for entry in listing.entries if listing.shared else ():
            reports.setdefault((listing.shared or "", entry.path), {}).setdefault(entry, host)
    differing = {key for key, entries in reports.items() if len(entries) > 1}
    changed = {
        (listing.shared or "", entry.path)
        for host, listing in found.items()
        for entry in {*listing.entries}.difference(before[host].entries if host in before else ())
    }
    disputed = {path for _, path in differing & changed}

    def once(host: str, listing: Listing) -> Listing:
        def is_taken(entry: Entry) -> bool:
            key = listing.shared or "", entry.path
            return key not in changed if key in differing else reports[key][entry] == host

        return replace(listing, entries=tuple(filter(is_taken, listing.entries)))

    return {host: once(host, listing) if listing.shared else listing for host, listing in found.items()}, disputed


def _without_paths(found: Listing, paths: Collection[str]) -> Listing:
    return replace(found, entries=tuple(entry for entry in found.entries if entry.path not in paths))


def _rename_single_file(found: Listing, name: str) -> Listing:
    """The listing of a single file with its local name."""
    return found if not name else replace(found, entries=tuple(entry._replace(path=name) for entry in found.entries))


def _plan_paths(found: Mapping[str, Listing], tally: _Tally) -> dict[str, tuple[Entry, Sequence[Chunk]]]:
    """Return the file for each local path: its own path if all hosts that have it agree, else below a host's name."""
    versions: dict[str, dict[Entry, list[str]]] = {}
    for host, listing in found.items():
        for entry in listing.entries:
            versions.setdefault(entry.path, {}).setdefault(entry, []).append(host)
    hosts_folders = [_folder_of(host) for host in {*found, *tally.errors}]
    settled = tally.settled
    placed = {path for path in tally.differing if any(f"{one}/{path}" in settled for one in hosts_folders)}
    separate = _separate_paths(versions, placed & versions.keys())  # also where only one host still has it
    tally.differing = placed | separate
    plan: dict[str, tuple[Entry, Sequence[Chunk]]] = {}
    for path, by_entry in versions.items():
        for entry, hosts in by_entry.items():
            for host in hosts if path in separate else hosts[:1]:
                target = f"{_folder_of(host)}/{path}" if path in separate else path
                chunks = found[host].chunks.get(entry.content, ()) if entry.kind == FILE else ()
                plan[target] = (entry._replace(path=target), chunks)
    return plan


def _separate_paths(versions: Mapping[str, Mapping[Entry, Sequence[str]]], placed: Collection[str]) -> set[str]:
    """Return the paths at which each host's file lies below the host's name: no two files get one path here.

    ``placed`` are paths of which a host's file is there already. A path that one host chose may be, or lie in, the
    folder of another: then all such paths are separate, too.
    """
    folders = paths_above_others(map(on_disk, versions))
    differing = {path for path, by_entry in versions.items() if len(by_entry) > 1 or on_disk(path) in folders}
    separate = differing.union(placed)
    targets = {f"{_folder_of(host)}/{path}" for path in separate for hosts in versions[path].values() for host in hosts}
    common = {path for path in versions if path not in separate}
    if not targets.isdisjoint(common) or paths_above_others(map(on_disk, targets | common)):
        named = {_folder_of(host) for by_entry in versions.values() for hosts in by_entry.values() for host in hosts}
        separate.update(path for path in common if path.partition("/")[0] in named)
    return separate


def _possible_targets(found: Mapping[str, Listing]) -> set[str]:
    """Return every local path that a listed file may get."""
    listed = [(host, entry.path) for host, listing in found.items() for entry in listing.entries]
    return {target for host, path in listed for target in (path, f"{_folder_of(host)}/{path}")}


def _has_any(host: str, listing: Listing, tally: _Tally) -> bool:
    """Whether any of the host's files is here now, or it had none."""
    paths = [entry.path for entry in listing.entries]
    targets = {f"{_folder_of(host)}/{path}" if path in tally.differing else path for path in paths}
    return not targets or not targets.isdisjoint(tally.settled)


def _folder_of(host: str) -> str:
    """Return the folder of a host's own files."""
    return quote(host, safe="")


def _fetch_missing(
    local: LocalFolder,
    origins: Sequence[Origin],
    found: Mapping[str, Listing],
    plan: Mapping[str, tuple[Entry, Sequence[Chunk]]],
    tally: _Tally,
    transfer: Transfer,
    *,
    overwrite: bool,
) -> None:
    """Fetch and place what is not settled; record files that changed meanwhile."""
    missing: list[tuple[Entry, Sequence[Chunk]]] = []
    settled = tally.settled  # made anew at each call
    for path, (entry, chunks) in plan.items():
        if path in settled:
            continue
        state = local.state(entry)
        if state == SAME:
            tally.same.add(path)
        elif state == OTHER and not overwrite:
            tally.kept.add(path)
        else:
            missing.append((entry, chunks))
    uses = Counter(entry.content for entry, _ in missing)
    contents = {entry.content: chunks for entry, chunks in missing if entry.kind == FILE}
    outdated = set[str]() if tally.errors else tally.wanted - contents.keys()  # the next pull may want a lost host's
    lacking = local.want(contents, uses, outdated)
    tally.wanted = set(contents)
    transfer.expect(sum(lacking.values()))
    tally.bytes += _fetch(local, origins, found, lacking, tally, transfer)
    tally.changing.clear()
    for entry, _ in missing:
        uses[entry.content] -= 1
        if entry.kind == FILE and not local.whole(entry.content):
            tally.changing.add(entry.path)
        elif local.move_into_place(entry, last=not uses[entry.content], overwrite=overwrite):
            tally.done.add(entry.path)
        else:
            tally.kept.add(entry.path)


def _fetch(
    local: LocalFolder,
    origins: Sequence[Origin],
    found: Mapping[str, Listing],
    lacking: Mapping[str, int],
    tally: _Tally,
    transfer: Transfer,
) -> int:
    """Fetch each chunk from one host that has it, from all hosts at once; the bytes fetched."""
    locations = {host: chunk_locations(listing.entries, listing.chunks) for host, listing in found.items()}
    loads = dict.fromkeys(locations, 0)
    shares: dict[str, list[ChunkLocation]] = {host: [] for host in locations}
    for digest, size in lacking.items():
        having = [host for host in locations if digest in locations[host]]
        host = min(having, key=lambda name: loads[name])
        loads[host] += size
        shares[host].append(locations[host][digest])

    def fetch(origin: Origin) -> int:
        size_fetched = 0
        for digest, data in fetch_chunks(origin.host, found[origin.name].root, shares[origin.name], transfer.add):
            local.put(digest, data)
            size_fetched += len(data)
        return size_fetched

    outcomes = fanout.each([origin for origin in origins if shares.get(origin.name)], fetch)
    for outcome in outcomes:
        if isinstance(outcome.error, SyncError):  # of this machine
            raise outcome.error
        if outcome.error:
            tally.errors[outcome.name] = outcome.error
    return sum(outcome.value or 0 for outcome in outcomes)
