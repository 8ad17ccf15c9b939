"""Prove that a folder holds the files of a manifest: by stats where they are as remembered, else by content.

Each file is checked once, and so is each folder above one. What was remembered holds while size, times and inode are
the same: no program can write to a file and leave its ctime as it was.
"""

import os
import stat
import struct
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from ..shared.schema.json_text import from_json
from ..shared.wire.chunks import content_of
from ..shared.workdir.manifest import LINK, RACY, Disk, Entry, checked_entry, folders_above, stats_of
from .stat_cache import packed

_OFTEN = 256  # files between two heartbeats of the lock


class VerifiedFiles(NamedTuple):
    """The result: the packed stats for each line of the manifest, empty where the file is not as the line says."""

    stats: List[bytes]
    differs: Dict[int, Optional[Entry]]  # number of a line → what is at its path
    read: int  # how many files were read
    chunk_lists: Dict[str, List[str]]  # the chunks of each of their contents that has several


def prove(
    root: bytes,
    lines: Callable[[], Sequence[bytes]],
    paths: Sequence[bytes],
    known: Sequence[bytes],
    known_at: int,
    hold: Callable[[], None] = lambda: None,
) -> VerifiedFiles:
    """Check each file of a manifest in the folder ``root``; if that is missing, every file differs.

    ``lines`` returns the manifest's lines, each a file or link; it is called only if a file has to be read. ``paths``
    are those of the lines, as on disk. ``known`` are the files' packed stats when they were as the lines say, empty
    where that is not known; a ctime of 0 matches any. ``known_at`` is when that was known, in ns; files changed shortly
    before are read again. ``hold`` is called from time to time and raises if the folder's lock was lost.
    """
    try:
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        handle = -1
    try:
        if handle < 0 or not _all_real(handle, paths):
            found, doubtful = [b""] * len(paths), list(range(len(paths)))
        else:
            found, doubtful = _by_stats(handle, paths, known, known_at - RACY, hold)
    finally:
        if handle >= 0:
            os.close(handle)
    return _by_bytes(root, lines, found, doubtful, hold)


def _all_real(handle: int, paths: Sequence[bytes]) -> bool:
    """Return whether all folders above the paths are folders and not links."""
    try:
        modes = [os.stat(path, dir_fd=handle, follow_symlinks=False).st_mode for path in folders_above(paths)]
    except (FileNotFoundError, NotADirectoryError):
        return False
    return all(map(stat.S_ISDIR, modes))


def _by_stats(
    handle: int, paths: Sequence[bytes], known: Sequence[bytes], sure: int, hold: Callable[[], None]
) -> "tuple[List[bytes], List[int]]":
    """Return the stats of each path, and the numbers of those that are not as known or changed after ``sure``."""
    lstat, pack = os.lstat, packed
    found: List[bytes] = []
    doubtful: List[int] = []
    for number, path in enumerate(paths):
        if not number % _OFTEN:
            hold()
        if not known[number]:
            found.append(b"")
            doubtful.append(number)
            continue
        try:
            info = lstat(path, dir_fd=handle)
            changed = info.st_ctime_ns
            stats = pack(info.st_size, info.st_mtime_ns, changed, info.st_ino)
        except (FileNotFoundError, NotADirectoryError, struct.error):
            changed, stats = sure, b""
        found.append(stats)
        if changed >= sure or (stats != known[number] and _without_ctime(stats) != known[number]):
            doubtful.append(number)
    return found, doubtful


def _without_ctime(stats: bytes) -> bytes:
    """Return the stats with ctime 0, as they are known of a file that was renamed to its path since."""
    return stats[:16] + bytes(8) + stats[24:]


def _by_bytes(
    root: bytes,
    lines: Callable[[], Sequence[bytes]],
    found: List[bytes],
    doubtful: Sequence[int],
    hold: Callable[[], None],
) -> VerifiedFiles:
    """Read the files in doubt, and return the result for all."""
    differs: Dict[int, Optional[Entry]] = {}
    disk = Disk(root)
    there = lines() if doubtful else ()
    for number in doubtful:
        hold()
        wanted = checked_entry(from_json(there[number].decode()))
        # A link's stats are from before it is read, as a file's are: a change since then shows the next time.
        link = disk.info(wanted.path) if wanted.kind == LINK else None
        now = disk.entry(wanted.path)
        if now != wanted:
            found[number], differs[number] = b"", now
            continue
        stats = stats_of(link) if link else disk.seen[wanted.path][0]
        try:
            found[number] = packed(*stats)
        except struct.error:
            found[number] = b""
    chunk_lists = {content_of(digests): digests for _, digests in disk.seen.values() if len(digests) > 1}
    return VerifiedFiles(found, differs, disk.hashed, chunk_lists)
