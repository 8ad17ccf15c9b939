"""Lists the project's files as a manifest: which of them are synced, which are not and why, within limits.

In a git project these are the files git knows and the untracked ones it does not ignore, as they are now; elsewhere all
that no .gitignore matches. Code is what git tracks, and files that are code by their names: it is the same on all
hosts. Everything else is data, of which hosts may have versions of their own (remote/workdir/data.py).
"""

# Names are bytes, because a file name may be no valid text; pathlib has text only.
# ruff: noqa: PTH115, PTH118, PTH120, PTH123
from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import SyncError, UsageError
from clusterddp.remote.shared.text.counted import counted
from clusterddp.remote.shared.wire.chunks import content_of, digest_of
from clusterddp.remote.shared.wire.partial_files import PARTS_FOLDER
from clusterddp.remote.shared.workdir import manifest
from clusterddp.remote.shared.workdir.manifest import OWN_PREFIX, Entry, as_text, on_disk
from clusterddp.sync.hash_cache import FILE_NAME, HashCache
from clusterddp.sync.manifest_history import FOLDER, ManifestHistory
from clusterddp.sync.project_files import git
from clusterddp.sync.project_files.gitignore import unreadable, walk
from clusterddp.sync.project_files.ignored import IgnoredData, ignored_data
from clusterddp.sync.project_files.ignored import notice as ignored_notice
from clusterddp.text.folding import few
from clusterddp.text.paths import shown
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from clusterddp.project.project import Project

MAX_BYTES = 500 * 10**6
MAX_FILES = 20_000
_MAX_LISTED = 10 * MAX_FILES  # a folder with more files is refused before the rest is listed
_REMEDY = "keep them out with .gitignore, or allow more with --sync-limit SIZE"
_EXCLUDED = frozenset((b".git", b".clusterddp", b"__pycache__"))
_KEY_NAME = re.compile(
    rb"\.env(\..*)?|.*\.(pem|key|p12|pfx|ppk)|id_(rsa|dsa|ecdsa|ed25519|ecdsa_sk|ed25519_sk)"
    rb"|\.netrc|\.pypirc|\.git-credentials",
    re.IGNORECASE,
)
_CODE_NAME = re.compile(r".*\.(py|pyx|sh|toml|yaml|yml|cfg|ini)", re.IGNORECASE | re.DOTALL)
_EXAMPLE_NAME = re.compile(rb"\.env\.(example|sample|template|dist)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """A file of the project that is not synced, and why."""

    path: str
    reason: str


def skipped_lines(skipped: Iterable[Skipped], word: str) -> list[str]:
    """One line for each reason, which begins with ``word`` and names some of the paths."""
    reasons: dict[str, list[str]] = {}
    for item in skipped:
        reasons.setdefault(item.reason, []).append(shown(item.path))
    return [f"{word}, {reason}: {few(paths, 5)}" for reason, paths in reasons.items()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """The files to sync, as they were when scanned."""

    root: Path
    entries: tuple[Entry, ...]  # the code's files, in the manifest's order
    manifest: bytes  # the code's manifest, encoded
    digest: str  # the digest of the code's manifest, which identifies the code of a run
    size: int  # bytes of code and data
    skipped: tuple[Skipped, ...]
    git: dict[str, str | bool | None] | None  # ``{commit, dirty}``, None outside git
    ignored: tuple[IgnoredData, ...] = ()  # data that git ignores
    # for each content with several chunks, their digests
    chunks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    data: tuple[Entry, ...] = ()  # the data, in order
    data_manifest: bytes = b""  # the data's manifest, encoded
    # its digest; empty if the project has no data; None if data on hosts is not to be touched
    data_digest: str | None = None
    history: ManifestHistory = field(default_factory=ManifestHistory)  # the manifests of earlier syncs

    def keep_manifests(self) -> None:
        """Keep the manifests, so that hosts that get them now are sent only the difference next time."""
        self.history.keep(self.digest, self.manifest)
        if self.data_digest:
            self.history.keep(self.data_digest, self.data_manifest)

    @property
    def notices(self) -> tuple[str, ...]:
        """One line for each reason why something is not synced."""
        return (*skipped_lines(self.skipped, "not synced"), *([ignored_notice(self.ignored)] if self.ignored else []))


def is_code(path: str) -> bool:
    """Whether a file is code by its name, whether git tracks it or not."""
    return bool(_CODE_NAME.fullmatch(path))


def new_data(project: Project, folder: Path, paths: Iterable[str]) -> list[str]:
    """The files of ``paths``, below ``folder``, that the next sync would take as data: their paths in the project.

    Empty if the next sync would refuse the project.
    """
    inside = os.path.realpath(os.fsencode(folder))
    root = os.path.realpath(os.fsencode(project.root))
    if inside != root and not inside.startswith(root + b"/"):
        return []
    local_names = [os.path.join(inside, on_disk(path))[len(root) + 1 :] for path in paths]
    within_git = os.path.lexists(os.path.join(root, b".git"))
    try:
        _refuse_home(root)
        listed = git.list_untracked(root) if within_git else walk(root, _EXCLUDED)
        synced = {*_without_environments(listed, root)[0]}
    except SyncError:
        return []
    found = [as_text(name) for name in local_names if name in synced]
    return [path for path in found if not is_code(path) and not path.startswith(OWN_PREFIX)]


def scan(project: Project, limit: int | None = None) -> Tree:
    """List the project's files, and hash those that changed since the last scan.

    ``limit`` is ``--sync-limit`` in bytes; if given, it also lifts the limit on the number of files. Raises
    ``SyncError`` if the folder is a home or ``/``, is too large, or a file cannot be read.
    """
    root = on_disk(as_text(os.fsencode(project.root)))
    _refuse_home(root)
    listed = git.list_files(root)
    names, environments = _without_environments(walk(root, _EXCLUDED) if listed is None else listed.files, root)
    found = _lstat_all(root, names) if listed is None else {name: listed.files[name] for name in names}
    tracked = {as_text(name) for name in listed.tracked} if listed else frozenset[str]()
    _refuse_large(found, MAX_BYTES if limit is None else limit, MAX_FILES if limit is None else None)
    skipped = [Skipped(path=as_text(name), reason="virtual environments") for name in environments]
    chunks: dict[str, tuple[str, ...]] = {}
    all_entries = list(_entries(project, root, dict(sorted(found.items())), skipped, chunks))
    entries = tuple(entry for entry in all_entries if entry.path in tracked or is_code(entry.path))
    encoded = manifest.encode(entries)
    data = tuple(entry for entry in all_entries if not (entry.path in tracked or is_code(entry.path)))
    data_manifest = manifest.encode(data)
    return Tree(
        root=project.root,
        entries=entries,
        manifest=encoded,
        digest=digest_of(encoded),
        size=sum(entry.size for entry in all_entries),
        data=data,
        data_manifest=data_manifest,
        data_digest=digest_of(data_manifest) if data else "",
        skipped=tuple(skipped),
        git=None if listed is None else git.commit_and_dirty(root, listed.repositories),
        ignored=() if listed is None else ignored_data(root),
        chunks=chunks,
        history=ManifestHistory(folder=project.folder / FOLDER),
    )


def _refuse_home(root: bytes) -> None:
    """Refuse a project that contains the home folder."""
    home = os.path.realpath(os.fsencode(Path.home()))
    if (home + b"/").startswith(root.rstrip(b"/") + b"/"):
        what = "the home folder" if root == home else "a folder above the home folder"
        raise SyncError(
            f"the project would be {os.fsdecode(root)}, {what}",
            remedy="go to the project's own folder, or make one there with: git init",
        )


def _without_environments(names: Iterable[bytes], root: bytes) -> tuple[list[bytes], list[bytes]]:
    """Leave out what is never synced: git's own files, clusterddp's, bytecode, virtual environments.

    Returns the names left, and the folders of the environments.
    """
    names_left: list[bytes] = []
    for name in names:
        unfinished = b"/" + PARTS_FOLDER in b"/" + name
        if not unfinished and not _EXCLUDED.intersection(name.split(b"/")) and not name.endswith(b".pyc"):
            names_left.append(name)
        if len(names_left) > _MAX_LISTED:
            raise SyncError(f"{os.fsdecode(root)} holds more than {_MAX_LISTED} files", remedy=_REMEDY)
    environments = {os.path.dirname(name) for name in names_left if name.endswith(b"/pyvenv.cfg")}
    if environments:
        names_left = [name for name in names_left if environments.isdisjoint(_folders_above(name))]
    return names_left, sorted(environments)


def _folders_above(name: bytes) -> Iterator[bytes]:
    """Yield the folders that contain a file, the innermost first."""
    while name:
        name = os.path.dirname(name)
        yield name


def _lstat_all(root: bytes, names: list[bytes]) -> dict[bytes, os.stat_result]:
    """Return the lstat of every file that exists."""
    found = {}
    for name in names:
        try:
            found[name] = os.lstat(os.path.join(root, name))
        except (FileNotFoundError, NotADirectoryError):  # removed since it was listed
            continue
        except OSError as error:
            raise unreadable(name, error) from error
    return found


def _refuse_large(found: dict[bytes, os.stat_result], max_bytes: int, max_files: int | None) -> None:
    """Refuse a project above the limits, and name its largest parts."""
    total = sum(info.st_size for info in found.values())
    if total > max_bytes:
        sizes = _by_folder({name: info.st_size for name, info in found.items()}, total)
        largest = ", ".join(f"{path} ({human_size(size)})" for path, size in sizes)
        raise SyncError(
            f"the project holds {human_size(total)}, more than {human_size(max_bytes)}; largest: {largest}",
            remedy=_REMEDY,
        )
    if max_files is not None and len(found) > max_files:
        counts = _by_folder(dict.fromkeys(found, 1), len(found))
        largest = ", ".join(f"{path} ({counted(count, 'file')})" for path, count in counts)
        raise SyncError(
            f"the project holds {len(found)} files, more than {max_files}; largest: {largest}", remedy=_REMEDY
        )


def _by_folder(weights: dict[bytes, int], total: int) -> list[tuple[str, int]]:
    """The three heaviest files or folders; a folder that contains nearly everything is replaced by its contents.

    But not if its three heaviest hold less than half of it, as where thousands of files lie side by side.
    """
    top = _heaviest(weights, b"")
    while top[0][0].endswith(b"/") and top[0][1] >= 0.9 * total:
        inside = _heaviest(weights, top[0][0])
        if 2 * sum(weight for _, weight in inside) < top[0][1]:
            break
        top = inside
    return [(shown(as_text(name)), weight) for name, weight in top]


def _heaviest(weights: dict[bytes, int], folder: bytes) -> list[tuple[bytes, int]]:
    """The three heaviest files or folders in a folder, whose name ends with a slash; empty: in the project's."""
    sums: Counter[bytes] = Counter()
    for name, weight in weights.items():
        if name.startswith(folder):
            head, slash, _ = name[len(folder) :].partition(b"/")
            sums[folder + head + slash] += weight
    return sums.most_common(3)


def _entries(
    project: Project,
    root: bytes,
    found: dict[bytes, os.stat_result],
    skipped: list[Skipped],
    chunks: dict[str, tuple[str, ...]],
) -> Iterator[Entry]:
    """Yield the files' manifest entries; fill ``skipped`` and ``chunks``, which are as in ``Tree``."""
    cache = HashCache(project.folder)
    real_root = os.path.realpath(root)
    for name, info in found.items():
        path = as_text(name)
        reason = ""
        if path.startswith(OWN_PREFIX):
            reason = f"their names begin with {OWN_PREFIX}"
        elif stat.S_ISLNK(info.st_mode):
            target = _link_target(root, real_root, name)
            reason = "" if target else "links that lead out of the project"
            if target:
                yield manifest.link_entry(path, target)
        elif not stat.S_ISREG(info.st_mode):
            reason = "neither files nor links"
        elif _looks_like_key(root, name):
            reason = "they look like keys"
        else:
            try:
                size, digests = cache.get(root, name, info)
            except OSError as error:
                raise unreadable(name, error) from error
            content = content_of(digests)
            if len(digests) > 1:
                chunks[content] = tuple(digests)
            yield Entry(path, manifest.FILE, bool(info.st_mode & stat.S_IXUSR), size, content)
        if reason:
            skipped.append(Skipped(path=path, reason=reason))
    if project.folder.is_dir() and cache.changed:
        with contextlib.suppress(UsageError):  # in a project that cannot be written, hashes are computed each time
            project.write(FILE_NAME, cache.encoded())


def _link_target(root: bytes, real_root: bytes, name: bytes) -> str | None:
    """The relative target of a link that stays inside the project, else None."""
    full = os.path.join(root, name)
    target = os.readlink(full)
    resolved = os.path.realpath(full)
    if resolved != real_root and not resolved.startswith(real_root + b"/"):
        return None
    if target.startswith(b"/"):
        target = os.path.relpath(resolved, os.path.realpath(os.path.dirname(full)))
    return as_text(target) if manifest.stays_inside(as_text(name), as_text(target)) else None


def _looks_like_key(root: bytes, name: bytes) -> bool:
    """Whether a file may hold a secret: by its name, or as a private key named ``id_…``."""
    base = name[name.rfind(b"/") + 1 :]
    if _KEY_NAME.fullmatch(base):
        return not _EXAMPLE_NAME.fullmatch(base)
    if not base.startswith(b"id_") or base.endswith(b".pub"):
        return False
    try:
        with open(os.path.join(root, name), "rb") as stream:
            return b"PRIVATE KEY" in stream.read(200)
    except OSError as error:
        raise unreadable(name, error) from error
