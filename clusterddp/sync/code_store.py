"""The code of runs, kept in the project's ``.clusterddp/objects``, so that runs can be compared and repeated.

``files/3f/9a2c…`` holds a file's content under its digest (chunks.py), ``manifests/DIGEST`` the manifest of a code; its
mtime is the time of its last use. Codes that no run used for a month are removed, and the oldest if all would take more
than a gigabyte. A manifest may outlive the contents of its files: of a code larger than that limit no file is kept.
What a sync leaves out (above all files that look like keys) is in no manifest, so it is never stored here.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.project import project_folder
from clusterddp.project.user_folders import make_private
from clusterddp.remote.shared.wire.chunks import chunk_spans, content_of, digest_of, hash_file
from clusterddp.remote.shared.workdir import manifest
from clusterddp.remote.shared.workdir.manifest import Entry, on_disk
from clusterddp.text.paths import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from clusterddp.project.project import Project
    from clusterddp.sync.project_files.project_tree import Tree

_log = logging.getLogger("clusterddp")
FOLDER = "objects"
MAX_BYTES = 10**9  # of all codes together
MAX_AGE = 30 * 86400.0  # seconds since the last use
_REFRESH_INTERVAL = 86400.0  # seconds after which a code's time is updated, and old codes are looked for
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DIGEST_PREFIX = re.compile(r"[0-9a-f]{2}")
_SUBFOLDERS = ("files", "manifests")
_PREVIOUS = "last"  # the file with the digest of the previous run's code


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeChanges:
    """How one code differs from another: paths, in order."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of files that differ."""
        return len(self.added) + len(self.removed) + len(self.changed)


def changes(old: Iterable[Entry], new: Iterable[Entry]) -> CodeChanges:
    """Return how ``new`` differs from ``old``; a file that became executable has changed too."""
    before, after = ({entry.path: entry for entry in entries} for entries in (old, new))
    return CodeChanges(
        added=tuple(path for path in after if path not in before),
        removed=tuple(path for path in before if path not in after),
        changed=tuple(path for path, entry in after.items() if path in before and before[path] != entry),
    )


def keep(project: Project, tree: Tree) -> CodeChanges | None:
    """Keep the code of a run that starts; return how it differs from the previous run's, or None if that is not kept.

    In a project that cannot be written nothing is kept.
    """
    folder = project.folder / FOLDER
    try:
        for inner in _SUBFOLDERS:
            project_folder.real_folder(project.folder, FOLDER, inner)
        project.write(f"{FOLDER}/.lock", b"") if not folder.is_dir() else None
        with _store_lock(folder):
            return _keep_locked(folder, tree)
    except (OSError, UsageError) as error:
        _log.debug("the code of this run is not kept in %s: %s", folder, error)
        return None


def load(project: Project, digest: str) -> list[Entry] | None:
    """Return the manifest of a code by its digest; None if it is not kept, or damaged."""
    return _load(project.folder / FOLDER, digest)


def content(project: Project, entry: Entry) -> bytes | None:
    """Return a file's content; None if it is not kept, or damaged."""
    try:
        data = project_folder.read(_content_path(project.folder / FOLDER, entry.content))
    except OSError:
        return None
    digests = [digest_of(data[start : start + size]) for start, size in chunk_spans(len(data))]
    return data if content_of(digests) == entry.content else None


def lay_out(project: Project, entries: Sequence[Entry], into: Path) -> dict[str, tuple[str, ...]] | None:
    """Write the files of a code below an empty folder and verify them; return the digests of several chunks by content.

    Return None if not all are kept. Links are left out: the manifest has all of them.
    """
    chunks = {}
    for entry in entries:
        if entry.kind != manifest.FILE:
            continue
        target = os.path.join(os.fsencode(into), on_disk(entry.path))  # noqa: PTH118 - bytes
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - bytes
        try:
            _copy(_content_path(project.folder / FOLDER, entry.content), target)
        except OSError:
            return None
        _, digests = hash_file(target)
        if content_of(digests) != entry.content:
            return None
        if len(digests) > 1:
            chunks[entry.content] = tuple(digests)
    return chunks


@contextlib.contextmanager
def _store_lock(folder: Path) -> Iterator[None]:
    """Lock the store, so that no cleanup removes the files of a code that is being kept."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(folder / ".lock", flags, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _keep_locked(folder: Path, tree: Tree) -> CodeChanges | None:
    """Do what ``keep`` does, while the store is locked."""
    previous = folder / _PREVIOUS
    digest = project_folder.read(previous, 100).decode(errors="replace") if previous.exists() else ""
    target = folder / "manifests" / tree.digest
    old = _load(folder, digest) if digest else None
    if not target.exists() or time.time() - target.stat().st_mtime > _REFRESH_INTERVAL:
        encoded = manifest.encode(tree.entries)
        stored = tree.entries if sum(entry.size for entry in tree.entries) <= MAX_BYTES else ()
        size = len(encoded) + sum(_store(folder, tree.root, entry) for entry in stored if entry.kind == manifest.FILE)
        _write(folder, target, [encoded])
        _clean_up_if_due(folder, size)
    _write(folder, previous, [tree.digest.encode()])
    return None if old is None else changes(old, tree.entries)


def _store(folder: Path, root: Path, entry: Entry) -> int:
    """Keep a file's content; return how many bytes were written."""
    target = _content_path(folder, entry.content)
    if target.parent.is_symlink():
        raise OSError(f"{target.parent} is a link")
    if target.exists():
        return 0
    _write(folder, target, _verified_bytes(root, entry))
    return entry.size


def _verified_bytes(root: Path, entry: Entry) -> Iterator[bytes]:
    """Yield the bytes of a file, and check that they are those that were hashed; raises OSError."""
    digests = []
    with open(os.path.join(os.fsencode(root), on_disk(entry.path)), "rb") as stream:  # noqa: PTH118, PTH123 - bytes
        for _, size in chunk_spans(entry.size):
            data = stream.read(size)
            digests.append(digest_of(data))
            yield data
    if content_of(digests) != entry.content:
        raise OSError(f"{shown(entry.path)} changed meanwhile")


def _write(folder: Path, target: Path, pieces: Iterable[bytes]) -> None:
    """Write a file whole, 0600, under a temporary name first."""
    make_private(target.parent)
    with project_folder.unfinished_file(folder.parent, pieces, durable=False) as new:
        new.replace(target)


def _content_path(folder: Path, digest: str) -> Path:
    return folder / "files" / digest[:2] / digest[2:]


def _load(folder: Path, digest: str) -> list[Entry] | None:
    """Do what ``load`` does, given the store's folder."""
    if not _DIGEST.fullmatch(digest):  # it may come from a host
        return None
    try:
        entries = manifest.decode(project_folder.read(folder / "manifests" / digest))
    except (OSError, manifest.BadManifest):  # removed since, or damaged
        return None
    return entries if manifest.digest(entries) == digest else None


def _clean_up_if_due(folder: Path, written: int) -> None:
    """Clean up once a day, and when the ``written`` bytes may exceed the limit."""
    path, now = folder / "cleared", time.time()
    with contextlib.suppress(OSError, ValueError):
        size, cleaned_at = map(int, project_folder.read(path, 100).split())
        if size + written <= MAX_BYTES and 0 <= now - cleaned_at < _REFRESH_INTERVAL:
            _write(folder, path, [f"{size + written} {cleaned_at}".encode()])
            return
    _write(folder, path, [f"{_clean_up(folder, now)} {int(now)}".encode()])


def _clean_up(folder: Path, now: float) -> int:
    """Remove codes that are too old or too many, and contents that no other code has; return the bytes that remain.

    The newest code stays whatever its size.
    """
    used: set[str] = set()
    total = 0
    manifests = sorted((folder / "manifests").iterdir(), key=lambda path: -path.stat().st_mtime)
    for path in manifests:
        contents = {entry.content for entry in _load(folder, path.name) or () if entry.kind == manifest.FILE} - used
        more = path.stat().st_size + sum(_size(_content_path(folder, name)) for name in contents)
        if path is manifests[0] or (total + more <= MAX_BYTES and now - path.stat().st_mtime <= MAX_AGE):
            total += more
            used |= contents
        else:
            path.unlink()
    for path in _stored_contents(folder):
        if path.parent.name + path.name not in used:
            path.unlink()
    return total


def _stored_contents(folder: Path) -> Iterator[Path]:
    """Yield the contents that are kept; a file that is not ours, or is behind a link, is ignored."""
    for inner in (folder / "files").iterdir():
        if _DIGEST_PREFIX.fullmatch(inner.name) and inner.is_dir() and not inner.is_symlink():
            yield from (path for path in inner.iterdir() if _DIGEST.fullmatch(inner.name + path.name))


def _copy(source: Path, target: bytes) -> None:
    """Copy a content; from a regular file only, as a pipe or a device may never end."""
    with os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(source)
        with open(target, "wb") as out:  # noqa: PTH123 - bytes
            shutil.copyfileobj(file, out)


def _size(path: Path) -> int:
    """The bytes of a file; 0 if it is missing."""
    try:
        return path.stat().st_size
    except FileNotFoundError:  # the code was too large to keep its files
        return 0
