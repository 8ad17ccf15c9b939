"""The files that a user named for a push, and where each goes below the destination.

A single source becomes the destination; several sources, or any with a destination that ends in ``/``, go below it by
name; of a source that ends in ``/`` only the contents go. No rules leave anything out; links inside a source stay
links.
"""

# Names are bytes, because a file name may be no valid text; pathlib has text only.
# ruff: noqa: PTH110, PTH112, PTH115, PTH118, PTH119, PTH120, PTH208
from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterddp.errors import SyncError, UsageError
from clusterddp.remote.shared.wire.chunks import content_of
from clusterddp.remote.shared.wire.partial_files import PARTS_FOLDER
from clusterddp.remote.shared.workdir import manifest
from clusterddp.remote.shared.workdir.manifest import FILE, Entry, as_text
from clusterddp.sync.hash_cache import HashCache
from clusterddp.sync.project_files.project_tree import Skipped, skipped_lines
from clusterddp.text.paths import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clusterddp.project.project import Project


@dataclass(frozen=True, kw_only=True, slots=True)
class Destination:
    """Where named files go: the folder on the hosts, and the prefix of each source's paths there."""

    folder: str
    prefixes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenFiles:
    """Files chosen for a folder on the hosts."""

    entries: tuple[Entry, ...]  # their manifest, in order
    # the digests of the chunks of each content that has several
    chunks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    local_paths: Mapping[str, bytes] = field(default_factory=dict)  # the file on this machine, for each path
    skipped: tuple[Skipped, ...] = ()  # what is left out

    @property
    def notices(self) -> tuple[str, ...]:
        """One line for each reason why files are left out."""
        return tuple(skipped_lines(self.skipped, "left out"))


def destination(sources: Sequence[tuple[str, bool]], dest: str) -> Destination:
    """Return where the sources go: ``sources`` has path and whether it is a folder of each; raises UsageError."""
    names = ["" if source.endswith("/") else posixpath.basename(posixpath.normpath(source)) for source, _ in sources]
    if any(name in (".", "..") for name in names):
        raise UsageError(f"{sources[0][0]} has no name of its own", remedy="end it with / for its contents")
    if len(sources) == 1 and not dest.endswith("/"):
        if sources[0][1]:
            return Destination(folder=dest, prefixes=("",))
        folder, name = posixpath.split(dest)
        return Destination(folder=folder or ("/" if dest.startswith("/") else "."), prefixes=(name,))
    duplicates = {name for name in names if name and names.count(name) > 1}
    if duplicates:
        raise UsageError(f"two sources are called {min(duplicates)}", remedy="push them one by one")
    return Destination(folder=dest, prefixes=tuple(names))


def with_slash(dest: str) -> str:
    """Return a destination with a slash at its end if it can be a folder only, so that sources go below it by name."""
    return f"{dest}/" if dest in (".", "~") or dest.endswith("/.") else dest


def destination_path(project: Project, sources: Sequence[str], dest: str | None) -> str:
    """Return the destination of a push; by default a single source's own path in the project, or its name."""
    for source in sources:
        if not os.path.exists(source):
            raise UsageError(f"{source}: no such file or folder")
    if dest:
        return with_slash(dest)
    if len(sources) != 1:
        raise UsageError("several sources need a destination", remedy="write it last")
    full = os.path.realpath(sources[0])
    if not full.startswith(f"{project.root}/"):  # else sync brings the link itself
        full = _without_links_above(sources[0])
    return os.path.relpath(full, project.root) if full.startswith(f"{project.root}/") else os.path.basename(full)


def _without_links_above(path: str) -> str:
    """Return the absolute path with all links resolved but the last part, by which the job knows the file."""
    above, name = os.path.split(path.rstrip("/"))
    return os.path.realpath(path) if name in ("", ".", "..") else os.path.join(os.path.realpath(above or "."), name)


def read_sources(
    project: Project, sources: Sequence[str], dest: str, progress: Callable[[str], None]
) -> tuple[str, ChosenFiles]:
    """Return the folder on the hosts, and the files for it, hashed.

    ``sources`` are paths on this machine; a source that is a link is followed. ``dest`` is the destination as written.
    Raises ``UsageError`` if two files get the same path, ``SyncError`` if a file cannot be read.
    """
    target = destination([(source, os.path.isdir(source)) for source in sources], dest)
    key = hashlib.sha256(repr([os.path.abspath(source) for source in sources]).encode()).hexdigest()[:16]  # noqa: PTH100
    cache = HashCache(project.folder, f"pushed-{key}.json")
    own_folder = os.path.realpath(os.fsencode(project.folder))  # this very function writes there
    progress("reading the files")
    entries: list[Entry] = []
    chunks: dict[str, tuple[str, ...]] = {}
    local_paths: dict[str, bytes] = {}
    skipped: list[Skipped] = []
    for source, prefix in zip(sources, target.prefixes, strict=True):
        root = os.path.realpath(os.fsencode(source))
        for path, full, info in _files(root, prefix, own_folder, skipped):
            entry, digests = _entry(root, path, full, info, cache) or (None, ())
            if entry is None:
                skipped.append(Skipped(path=path, reason=_reason(info)))
                continue
            entries.append(entry)
            local_paths[path] = full
            if len(digests) > 1:
                chunks[entry.content] = tuple(digests)
    if cache.changed:
        with contextlib.suppress(UsageError):  # in a project that cannot be written, hashes are computed each time
            project.write(f"pushed-{key}.json", cache.encoded())
    _refuse_duplicates(entries)
    chosen = ChosenFiles(
        entries=tuple(manifest.sort_entries(entries)), chunks=chunks, local_paths=local_paths, skipped=tuple(skipped)
    )
    return target.folder, chosen


def _files(
    root: bytes, prefix: str, own_folder: bytes, skipped: list[Skipped]
) -> Iterator[tuple[str, bytes, os.stat_result]]:
    """Yield destination path, local path and lstat of every file in a source; a file contains itself.

    ``own_folder`` is left out, and so is what is ours where a source's contents go to the destination itself.
    """
    pending = [(root, prefix)]
    while pending:
        full, path = pending.pop()
        try:
            info = os.lstat(full)
            names = sorted(os.listdir(full), reverse=True) if stat.S_ISDIR(info.st_mode) else []
        except OSError as error:
            raise _unreadable(full, error) from error
        if not stat.S_ISDIR(info.st_mode):
            yield path, full, info
        for name in names:
            inside, source = posixpath.join(path, as_text(name)), os.path.join(full, name)
            is_ours = source == own_folder or name.startswith(PARTS_FOLDER)
            if is_ours or inside.split("/")[0].startswith(".clusterddp"):
                skipped.append(Skipped(path=inside, reason="clusterddp's own"))
            else:
                pending.append((source, inside))


def _entry(
    root: bytes, path: str, full: bytes, info: os.stat_result, cache: HashCache
) -> tuple[Entry, Sequence[str]] | None:
    """Return a path's manifest entry and chunk digests; None if it cannot be sent."""
    if stat.S_ISLNK(info.st_mode):
        target = os.readlink(full)
        inside = os.path.normpath(os.path.join(os.path.dirname(full), target))
        if target.startswith(b"/") or not inside.startswith(root + b"/"):
            return None
        return manifest.link_entry(path, as_text(target)), ()
    if not stat.S_ISREG(info.st_mode):
        return None
    try:
        size, digests = cache.get(b"", full, info)
    except OSError as error:
        raise _unreadable(full, error) from error
    return Entry(path, FILE, bool(info.st_mode & stat.S_IXUSR), size, content_of(digests)), digests


def _reason(info: os.stat_result) -> str:
    """Why a file that has no entry cannot be sent."""
    return "links that lead out of it" if stat.S_ISLNK(info.st_mode) else "neither files nor links"


def _refuse_duplicates(entries: Sequence[Entry]) -> None:
    paths: set[str] = set()
    for entry in entries:
        if entry.path in paths:
            raise UsageError(f"{shown(entry.path)} comes from two sources", remedy="push them one by one")
        paths.add(entry.path)


def _unreadable(full: bytes, error: OSError) -> SyncError:
    return SyncError(
        f"{shown(as_text(full))}: cannot be read ({error.strerror})", remedy="make it readable, or leave it out"
    )
