"""A host's stat cache of a synced folder: its files' stats at the time when their contents were those of a manifest.

It is a file of the state folder: a line of JSON, then paths, stats and the manifest, each as one block of bytes, so
that a folder which nobody changed is checked without parsing any of them. It is valid for one boot: a power loss can
undo writes that the stats show as done.
"""

import os
import struct
import zlib
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..shared.schema.fields import Fields
from ..shared.schema.json_text import to_json
from ..shared.schema.record import bulk, field, read_record, record, to_fields
from ..shared.wire.chunks import content_of, digest_of
from ..shared.wire.frames import parse_json
from ..shared.workdir.manifest import (
    FILE,
    Entry,
    Hashes,
    Stats,
    as_text,
    checked_entry,
    chunk_lists_in,
    on_disk,
    values_of,
)
from ..shared.workdir.manifest_difference import Piece, difference, lines_of, pieces_of, splice
from ..system.bootstrap import private_folder, write_private
from ..system.procfs import boot_id
from ..system.small_files import names_in

_FORMAT = 3
STAT_CACHES, _SUFFIX = "workdirs", ".files"  # the folder of a state folder that has them, and how their names end
_STAT_FORMAT = struct.Struct("<QqqQ")  # size, mtime and ctime in ns, inode


@record
class _Head(NamedTuple):
    """The first line of a stat cache's file. All versions wrote ``workdir``."""

    workdir: str = field(Fields.text)
    format: int = field(Fields.number, default=0)
    digest: str = field(Fields.text, default="")  # of the manifest
    at: int = field(Fields.number, default=0)
    boot: str = field(Fields.text, default="")
    paths: int = field(Fields.number, default=0)  # bytes of the paths, which follow
    stats: int = field(Fields.number, default=0)  # bytes of the stats, which follow them
    chunk_lists: Dict[str, List[str]] = bulk(Fields.raw, default={})  # of StatCache, not checked yet
    check: int = field(Fields.number, default=0)  # of digest, ``at`` and all that follows


pack_stats = _STAT_FORMAT.pack  # raises struct.error for times beyond the year 2262


class StatCache(NamedTuple):
    """Line by line of the manifest of ``digest``: the paths, as on disk, and the packed stats."""

    digest: str
    at: int  # files changed less than RACY before that may have changed once more since
    paths: List[bytes]
    stats: List[bytes]  # an empty one means that the file has to be read again
    chunk_lists: Dict[str, List[str]]  # content with several chunks → their digests
    manifest: bytes

    def hashes(self) -> Hashes:
        """The chunk digests of each file by its path."""
        found: Hashes = {}
        for values, stats in zip(values_of(self.manifest), self.stats):
            entry = checked_entry(values)
            if entry.kind == FILE and stats:
                found[entry.path] = (unpack_stats(stats), self.chunk_lists.get(entry.content, [entry.content]))
        return found


class KnownFiles(NamedTuple):
    """What is known of the files of a manifest that a folder is to hold; the fields are as of ``StatCache``."""

    manifest: bytes
    paths: List[bytes]
    stats: List[bytes]
    at: int
    chunk_lists: Dict[str, List[str]]

    def lines(self) -> List[bytes]:
        """The manifest's lines."""
        return lines_of(self.manifest)

    @classmethod
    def from_cache(cls, cache: Optional[StatCache], manifest: bytes, pieces: Sequence[Piece] = ()) -> "KnownFiles":
        """Make it from a stat cache of this or another manifest; ``pieces`` say how both differ, if known.

        Raises BadManifest if the manifest is damaged.
        """
        if cache is None:
            return cls.from_disk(manifest, [checked_entry(values) for values in values_of(manifest)], {}, 0)
        if cache.manifest is manifest or cache.manifest == manifest:
            return cls(manifest, cache.paths, cache.stats, cache.at, cache.chunk_lists)
        pieces = pieces or pieces_of(difference(cache.manifest, manifest), len(cache.paths))
        paths, stats = splice(cache.paths, pieces, path_of), splice(cache.stats, pieces, lambda _: b"")
        return cls(manifest, paths, stats, cache.at, cache.chunk_lists)

    @classmethod
    def from_disk(cls, manifest: bytes, entries: Sequence[Entry], seen: Hashes, at: int) -> "KnownFiles":
        """Make it from the stats and hashes ``seen`` on disk since ``at``; ``entries`` are the manifest's."""
        stats = [_packed_if_equal(entry, seen.get(entry.path)) for entry in entries]
        chunk_lists = chunk_lists_in(seen)
        return cls(manifest, [on_disk(entry.path) for entry in entries], stats, at, chunk_lists)


def _packed_if_equal(entry: Entry, read_file: Optional[Tuple[Stats, List[str]]]) -> bytes:
    """Packed stats of a file that was read, empty if its content is not the entry's."""
    # The mode is not among the stats: whether a file is executable is checked each time.
    if read_file is None or content_of(read_file[1]) != entry.content:
        return b""
    try:
        return pack_stats(*read_file[0])
    except struct.error:
        return b""


def path_of(line: bytes) -> bytes:
    """The path in a manifest's line, as on disk; raises BadManifest if the line is damaged."""
    (values,) = values_of(line + b"\n")
    return on_disk(checked_entry(values).path)


def unpack_stats(stats: bytes) -> Stats:
    """Packed stats as ``manifest.stats_of`` returns them."""
    return list(_STAT_FORMAT.unpack(stats))


def read_stat_cache(state: str, root: bytes) -> Optional[StatCache]:
    """The stat cache of a folder, if it is of this boot; None where there is none, or it is damaged."""
    try:
        with open(stat_cache_path(state, root), "rb") as stream:
            head = _read_head(stream.readline())
            if head.format != _FORMAT or head.boot != boot_id():
                return None
            body = stream.read()
            if _checksum(head.digest, head.at, body) != head.check:
                return None
        end = head.paths + head.stats
        paths, stats, manifest = body[: head.paths], body[head.paths : end], body[end:]
        chunk_lists = _chunk_lists(head)
        if any(content_of(digests) != content for content, digests in chunk_lists.items()):
            return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    size = _STAT_FORMAT.size
    no_stats = bytes(size)  # zeros on disk: the file has to be read again
    stats_of_files = [stats[begin : begin + size] for begin in range(0, len(stats), size)]
    names = paths.split(b"\0")[:-1]
    if len(names) != len(stats_of_files) or len(stats) % size or manifest.count(b"\n") != len(stats_of_files):
        return None
    if no_stats in stats_of_files:
        stats_of_files = [b"" if stats == no_stats else stats for stats in stats_of_files]
    return StatCache(head.digest, head.at, names, stats_of_files, chunk_lists, manifest)


def _read_head(line: bytes) -> _Head:
    return read_record(_Head, parse_json(line), "head")


def _chunk_lists(head: _Head) -> Dict[str, List[str]]:
    return {str(content): [str(one) for one in digests] for content, digests in head.chunk_lists.items()}


def _checksum(digest: str, at: int, body: bytes) -> int:
    """A checksum that detects a damaged file; no other user can write it."""
    return zlib.crc32(body, zlib.crc32(b"%s %d" % (digest.encode(errors="replace"), at)))


def chunk_lists_of(state: str, root: bytes) -> Dict[str, List[str]]:
    """The chunks of each content of several chunks that a folder held when it was last checked."""
    try:
        with open(stat_cache_path(state, root), "rb") as stream:
            return _chunk_lists(_read_head(stream.readline()))
    except (OSError, ValueError, TypeError, RecursionError):  # missing or damaged: all files are read again
        return {}


def write_stat_cache(state: str, root: bytes, cache: StatCache) -> None:
    """Write the stat cache of a folder."""
    no_stats = bytes(_STAT_FORMAT.size)
    paths = b"".join(path + b"\0" for path in cache.paths)
    stats = b"".join(one or no_stats for one in cache.stats)
    path, body = stat_cache_path(state, root), paths + stats + cache.manifest
    head = _Head(
        workdir=as_text(root),
        format=_FORMAT,
        digest=cache.digest,
        at=cache.at,
        boot=boot_id(),
        paths=len(paths),
        stats=len(stats),
        chunk_lists=cache.chunk_lists,
        check=_checksum(cache.digest, cache.at, body),
    )
    private_folder(os.path.dirname(path))
    line = to_json(to_fields(head)).encode() + b"\n"
    write_private(path, line + body, durable=False)  # for one boot


def remove_stat_cache(state: str, root: bytes) -> None:
    """Remove the stat cache of a folder."""
    try:
        os.unlink(stat_cache_path(state, root))
    except FileNotFoundError:  # it was removed already
        pass


def stat_caches(state: str) -> List[Tuple[str, Optional[str]]]:
    """The files of a state folder's stat caches, each with the folder that it describes; None if it is damaged."""
    folder = os.path.join(state, STAT_CACHES)
    return [(path, _folder_of(path)) for path in (os.path.join(folder, name) for name in sorted(names_in(folder)))]


def _folder_of(path: str) -> Optional[str]:
    try:
        if not path.endswith(_SUFFIX):
            return None
        with open(path, "rb") as stream:
            return _read_head(stream.readline()).workdir
    except (OSError, ValueError):
        return None


def stat_cache_path(state: str, root: bytes) -> str:
    """The path of a folder's stat cache."""
    return os.path.join(state, STAT_CACHES, digest_of(root)[:24]) + _SUFFIX
