"""The manifest of a synced tree, with one canonical encoding that is the same on both sides.

A manifest is a list of entries sorted by path. A path is text in UTF-8 with surrogateescape, whatever the
locale of either machine, so that every file name Linux allows comes through; on disk it is bytes again.

This module also reads entries back from a disk without following links.
"""

import errno
import itertools
import os
import posixpath
import stat
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ..schema.json_text import from_json, to_json
from ..wire.chunks import content_of, digest_of, hash_file

FILE, LINK, FOLDER, OTHER = "file", "link", "folder", "other"
OWN_PREFIX = ".clusterddp"  # of our own names at the top level
RACY_INTERVAL = (
    20 * 10**6
)  # ns: a file changed this shortly before hashing may have changed again in the same clock tick

_MAX_PATH = 4095  # bytes that Linux takes as a path

Stats = List[int]
Hashes = Dict[str, Tuple[Stats, List[str]]]  # path → stats, digests of its chunks


class Entry(NamedTuple):
    """One file or link; ``content`` is the name of a file's content (wire/chunks.py) or a link's target."""

    path: str
    kind: str
    executable: bool
    size: int
    content: str


class BadManifest(ValueError):
    """The bytes are no manifest, or an entry would lead out of its folder."""


def on_disk(path: str) -> bytes:
    """Encode a path as bytes for the file system."""
    return path.encode("utf-8", "surrogateescape")


def as_text(path: bytes) -> str:
    """Decode a path from the file system; the inverse of ``on_disk``."""
    return path.decode("utf-8", "surrogateescape")


def exists_in(name: bytes, folder: int) -> bool:
    """Whether anything has that name in an open folder, a dangling link too."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def sort_entries(entries: Iterable[Entry]) -> List[Entry]:
    """Sort entries in the manifest's order."""
    return sorted(entries, key=lambda entry: on_disk(entry.path))


def encode(entries: Iterable[Entry]) -> bytes:
    """Encode entries canonically: one JSON array per line, ASCII only, sorted."""
    found = sort_entries(entries)
    whole = to_json(found)[1:-1].encode()
    # A name could look like the end of an entry: one that contains a quote, or that is exactly ],[.
    if any(sign in whole for sign in (b'\\"', b',"],["', b'["],["')):
        return b"".join(to_json(entry).encode() + b"\n" for entry in found)
    return whole.replace(b'"],["', b'"]\n["') + b"\n" * bool(whole)  # five times as fast


def digest(entries: Iterable[Entry]) -> str:
    """Hash a manifest: the sha256 of its canonical bytes in hex."""
    return digest_of(encode(entries))


def decode(data: bytes) -> List[Entry]:
    """Decode and check entries from canonical bytes; raises BadManifest."""
    return checked_together([checked_entry(values) for values in values_of(data)])


def values_of(data: bytes) -> List[Any]:
    """Parse each line as JSON, without checking the values; raises BadManifest if it is malformed."""
    try:
        values = from_json((b"[%s]" % b",".join(data.splitlines())).decode())
    except (ValueError, RecursionError) as error:
        raise BadManifest("not a manifest: %s" % error) from error
    return list(values)


def checked_together(entries: List[Entry]) -> List[Entry]:
    """Return the entries after checking that no path occurs twice or is both a file and a folder."""
    check_together([on_disk(entry.path) for entry in entries])
    return entries


def check_together(paths: List[bytes]) -> None:
    """Like ``checked_together``, from encoded paths alone."""
    if len(set(paths)) != len(paths):
        raise BadManifest("a path stands twice in the manifest")
    for folder in paths_above_others(paths):
        raise BadManifest("%r is a file and a folder" % as_text(folder))


def checked_entry(values: Any) -> Entry:
    """Check a JSON array and convert it to an entry; raises BadManifest."""
    try:
        path, kind, executable, size, content = values
    except (TypeError, ValueError):
        raise BadManifest("not an entry: %r" % (values,)) from None
    entry = Entry(path, kind, executable, size, content)
    texts = isinstance(path, str) and isinstance(content, str)
    if not texts or kind not in (FILE, LINK) or executable not in (True, False) or not isinstance(size, int):
        raise BadManifest("not an entry: %r" % (values,))
    checked_path(path)
    try:
        on_disk(content)
    except UnicodeEncodeError:
        raise BadManifest("%r cannot be on a disk" % content[:80]) from None
    if kind == LINK and not stays_inside(path, content):
        raise BadManifest("the link %r leads out of the folder, to %r" % (path, content))
    return entry


def checked_path(path: str) -> str:
    """Return the path after checking that it stays inside the folder and is not reserved for us; raises BadManifest."""
    parts = path.split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in path or path.startswith(OWN_PREFIX):
        raise BadManifest("the path %r may not be synced" % path)
    if len(on_disk(path)) > _MAX_PATH:
        raise BadManifest("the path %r… is longer than %d bytes" % (path[:80], _MAX_PATH))
    return path


def is_reserved(name: str) -> bool:
    """Whether a file or folder of this name is git's or ours, on a disk that ignores case too."""
    return name.lower() == ".git" or name.lower().startswith(OWN_PREFIX)


def stays_inside(path: str, target: str) -> bool:
    """Whether a link at ``path`` with this target points inside the folder, judged by text alone."""
    if not target or target.startswith("/") or "\0" in target:
        return False
    resolved = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return resolved != ".." and not resolved.startswith("../")


def leads_down(path: str, target: str) -> bool:
    """Whether a link points inside the folder whatever other links exist: ``..`` only at the target's start."""
    parts = target.split("/")
    climbs = len(parts) - len(list(itertools.dropwhile(lambda part: part in ("..", ".", ""), parts)))
    return stays_inside(path, target) and ".." not in parts[climbs:]


def parents(path: str) -> List[str]:
    """List the folders above a path, outermost first, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def folders_above(paths: Iterable[bytes]) -> Set[bytes]:
    """Collect all folders above these paths, without the root."""
    found: Set[bytes] = set()
    new = {path.rpartition(b"/")[0] for path in paths}
    while new:
        found |= new
        new = {path.rpartition(b"/")[0] for path in new} - found
    return found - {b""}


def paths_above_others(paths: Iterable[bytes]) -> Set[bytes]:
    """Return the paths that are parent folders of other given paths; takes memory in proportion to their length."""
    ordered = sorted(path + b"/" for path in set(paths))  # what is below a folder follows it at once
    return {path[:-1] for path, following in zip(ordered, ordered[1:]) if following.startswith(path)}


def stats_of(info: os.stat_result) -> Stats:
    """Return the stat fields that change whenever a file's content does."""
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]


def chunk_lists_in(seen: Hashes) -> Dict[str, List[str]]:
    """Return the chunks of each content among these that has several."""
    return {content_of(digests): digests for _, digests in seen.values() if len(digests) > 1}


class Disk:
    """Reads the current entries of a folder without following any link.

    ``known`` are digests from earlier hashing, used while a file's stats are unchanged; ``known_at`` is when they were
    hashed, in ns: files changed since are hashed again. ``check`` is called before each chunk of a file is read.
    """

    def __init__(self, root: bytes, known: Optional[Hashes] = None, known_at: int = 0) -> None:
        self.root = root
        self.seen: Hashes = {}
        self.hashed = 0
        self.check: Callable[[], None] = lambda: None
        self._known = known or {}
        self._known_at = known_at
        self._real = {""}

    def chunks(self) -> Set[str]:
        """Return the digests of all chunks that were seen."""
        return {digest for _, digests in self.seen.values() for digest in digests}

    def chunk_lists(self) -> Dict[str, List[str]]:
        """Return the chunks of each content that was seen and has several."""
        return chunk_lists_in(self.seen)

    def full(self, path: str) -> bytes:
        """Return the full path on disk."""
        return b"%s/%s" % (self.root, on_disk(path))

    def entry(self, path: str) -> Optional[Entry]:
        """Read the entry at ``path``; None if there is nothing, or if a parent is no real folder."""
        if not self._is_real(path.rpartition("/")[0]):
            return None
        info = self.info(path)
        if info is None:
            return None
        if stat.S_ISREG(info.st_mode):
            size, content = self._content(path, info)
            return Entry(path, FILE, bool(info.st_mode & stat.S_IXUSR), size, content)
        if stat.S_ISLNK(info.st_mode):
            return link_entry(path, as_text(os.readlink(self.full(path))))
        return Entry(path, FOLDER if stat.S_ISDIR(info.st_mode) else OTHER, False, 0, "")

    def info(self, path: str) -> Optional[os.stat_result]:
        """Return lstat of a path, or None if there is nothing."""
        try:
            return os.lstat(self.full(path))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise

    def _content(self, path: str, info: os.stat_result) -> Tuple[int, str]:
        """The size of a file's content and its name, from earlier digests if its stats are unchanged.

        A file that is being written may have another size than its stats by the time it is read.
        """
        size, stats = info.st_size, stats_of(info)
        known = self._known.get(path)
        if known and list(known[0]) == stats and info.st_ctime_ns < self._known_at - RACY_INTERVAL:
            digests = list(known[1])
        else:
            size, digests = hash_file(self.full(path), self.check)
            self.hashed += 1
        self.seen[path] = (stats, digests)
        return size, content_of(digests)

    def _is_real(self, folder: str) -> bool:
        """Whether ``folder`` and all its parents are folders and not links."""
        if folder in self._real:
            return True
        info = self.info(folder)
        if info is None or not stat.S_ISDIR(info.st_mode) or not self._is_real(posixpath.dirname(folder)):
            return False
        self._real.add(folder)
        return True


def link_entry(path: str, target: str) -> Entry:
    """Make the entry of a link; links with equal targets are equal."""
    return Entry(path, LINK, False, 0, target)
