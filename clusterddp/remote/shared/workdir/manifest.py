"""The manifest of a synced tree: a pure value with one canonical encoding, the same on both sides.

A manifest is a list of entries sorted by path. A path is text in UTF-8 with surrogateescape, whatever the
locale of either machine, so that every file name Linux allows comes through; on disk it is bytes again.

Also here: reading an entry back from a disk without following a link.
"""

import errno
import itertools
import os
import posixpath
import stat
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ..schema.json_text import from_json, to_json
from ..wire.chunks import content_of, digest_of, hash_file

FILE, LINK, FOLDER, OTHER = "file", "link", "folder", "other"
RACY = 20 * 10**6  # ns: a file changed this shortly before it was hashed may have changed once more in the same tick

_OURS = ".clusterddp"  # how names of ours at the top begin

Stats = List[int]
Hashes = Dict[str, Tuple[Stats, List[str]]]  # path → stats, digests of its chunks


class Entry(NamedTuple):
    """One file or link. ``content``: the name of a file's content (chunks.py), the target of a link."""

    path: str
    kind: str
    executable: bool
    size: int
    content: str


class BadManifest(ValueError):
    """The bytes are no manifest, or one that would leave its folder."""


def on_disk(path: str) -> bytes:
    """The bytes of a path."""
    return path.encode("utf-8", "surrogateescape")


def as_text(path: bytes) -> str:
    """The text of a path; the inverse of ``on_disk``."""
    return path.decode("utf-8", "surrogateescape")


def ordered(entries: Iterable[Entry]) -> List[Entry]:
    """The entries in the manifest's order."""
    return sorted(entries, key=lambda entry: on_disk(entry.path))


def encode(entries: Iterable[Entry]) -> bytes:
    """The canonical bytes: one JSON array a line, ASCII only, in order."""
    found = ordered(entries)
    whole = to_json(found)[1:-1].encode()
    # Where an entry might seem to end in a name: one with a quote, and one that is just ],[ by itself.
    if any(sign in whole for sign in (b'\\"', b',"],["', b'["],["')):
        return b"".join(to_json(entry).encode() + b"\n" for entry in found)
    return whole.replace(b'"],["', b'"]\n["') + b"\n" * bool(whole)  # five times as fast


def digest(entries: Iterable[Entry]) -> str:
    """The sha256 in hex of the canonical bytes."""
    return digest_of(encode(entries))


def decode(data: bytes) -> List[Entry]:
    """The entries from their canonical bytes, every one checked.

    Raises:
        BadManifest: it is malformed, or a path or link would lead out of the folder.
    """
    return checked_together([checked_entry(values) for values in values_of(data)])


def values_of(data: bytes) -> List[Any]:
    """What stands in each line, unchecked.

    Raises:
        BadManifest: it is malformed.
    """
    try:
        values = from_json((b"[%s]" % b",".join(data.splitlines())).decode())
    except (ValueError, RecursionError) as error:
        raise BadManifest("not a manifest: %s" % error) from error
    return list(values)


def checked_together(entries: List[Entry]) -> List[Entry]:
    """The entries themselves, when each path stands once and none is a file and a folder.

    Raises:
        BadManifest: they cannot lie in one folder.
    """
    check_together([on_disk(entry.path) for entry in entries])
    return entries


def check_together(paths: List[bytes]) -> None:
    """``checked_together`` by paths alone, as on disk."""
    once = set(paths)
    if len(once) != len(paths):
        raise BadManifest("a path stands twice in the manifest")
    for folder in folders_above(paths) & once:
        raise BadManifest("%r is a file and a folder" % as_text(folder))


def checked_entry(values: Any) -> Entry:
    """The entry of a JSON array.

    Raises:
        BadManifest: it is malformed, or its path or link would lead out of the folder.
    """
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
    """The path itself, when it names something inside the folder and nothing of ours.

    Raises:
        BadManifest: it is absolute, climbs, is not normal, or is reserved.
    """
    parts = path.split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in path or path.startswith(_OURS):
        raise BadManifest("the path %r may not be synced" % path)
    on_disk(path)
    return path


def stays_inside(path: str, target: str) -> bool:
    """Whether a link at ``path`` with this target leads to a place inside the folder, read as text."""
    if not target or target.startswith("/") or "\0" in target:
        return False
    place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return place != ".." and not place.startswith("../")


def leads_down(path: str, target: str) -> bool:
    """Whether a link leads to a place inside the folder whatever other links are there: no ``..`` follows a name."""
    parts = target.split("/")
    climbs = len(parts) - len(list(itertools.dropwhile(lambda part: part in ("..", ".", ""), parts)))
    return stays_inside(path, target) and ".." not in parts[climbs:]


def parents(path: str) -> List[str]:
    """The folders above a path, outermost first, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def folders_above(paths: Iterable[bytes]) -> Set[bytes]:
    """All folders above these paths, without the root."""
    found: Set[bytes] = set()
    new = {path.rpartition(b"/")[0] for path in paths}
    while new:
        found |= new
        new = {path.rpartition(b"/")[0] for path in new} - found
    return found - {b""}


def stats_of(info: os.stat_result) -> Stats:
    """What changes whenever a file's content does."""
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]


class Disk:
    """What lies under a folder now, looked at without following any link.

    Args:
        root: The folder.
        known: Of files hashed earlier; trusted while the stats are the same.
        known_at: When they were hashed, in ns; younger files are hashed again.
    """

    def __init__(self, root: bytes, known: Optional[Hashes] = None, known_at: int = 0) -> None:
        self.root = root
        self.seen: Hashes = {}
        self.hashed = 0
        self._known = known or {}
        self._known_at = known_at
        self._real = {""}

    def full(self, path: str) -> bytes:
        """The path on disk."""
        return b"%s/%s" % (self.root, on_disk(path))

    def entry(self, path: str) -> Optional[Entry]:
        """What stands at ``path``; None if nothing does, or if a folder above it is none."""
        if not self._is_real(path.rpartition("/")[0]):
            return None
        info = self.info(path)
        if info is None:
            return None
        if stat.S_ISREG(info.st_mode):
            content = self._content(path, info)
            return Entry(path, FILE, bool(info.st_mode & stat.S_IXUSR), info.st_size, content)
        if stat.S_ISLNK(info.st_mode):
            return link_entry(path, as_text(os.readlink(self.full(path))))
        return Entry(path, FOLDER if stat.S_ISDIR(info.st_mode) else OTHER, False, 0, "")

    def info(self, path: str) -> Optional[os.stat_result]:
        """lstat, or None if there is nothing."""
        try:
            return os.lstat(self.full(path))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise

    def _content(self, path: str, info: os.stat_result) -> str:
        stats = stats_of(info)
        known = self._known.get(path)
        if known and list(known[0]) == stats and info.st_ctime_ns < self._known_at - RACY:
            digests = list(known[1])
        else:
            digests = hash_file(self.full(path))[1]
            self.hashed += 1
        self.seen[path] = (stats, digests)
        return content_of(digests)

    def _is_real(self, folder: str) -> bool:
        """Whether ``folder`` and all above it are folders and no links."""
        if folder in self._real:
            return True
        info = self.info(folder)
        if info is None or not stat.S_ISDIR(info.st_mode) or not self._is_real(posixpath.dirname(folder)):
            return False
        self._real.add(folder)
        return True


def link_entry(path: str, target: str) -> Entry:
    """The entry of a link; two links are the same when their targets are."""
    return Entry(path, LINK, False, 0, target)
