"""Prove that a folder holds the files of a manifest: by stats where they are as remembered, else by content.

Each file is checked once, and so is each folder above one. What was remembered holds while size, times and inode are
the same: no program can write to a file and leave its ctime as it was.
"""

import os
import stat
import struct
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from ..shared.schema.json_text import from_json
from ..shared.workdir.manifest import LINK, RACY_INTERVAL, Disk, Entry, checked_entry, folders_above, stats_of
from .stat_cache import pack_stats

_FILES_PER_CHECK = 256  # files between two calls of ``check_lock``


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
    remembered: Sequence[bytes],
    remembered_at: int,
    check_lock: Callable[[], None] = lambda: None,
) -> VerifiedFiles:
    """Check each file of a manifest in the folder ``root``; if that is missing, every file differs.

    ``lines`` returns the manifest's lines, each a file or link; it is called only if a file has to be read. ``paths``
    are those of the lines, as on disk. ``remembered`` are the files' packed stats when they were as the lines say,
    empty where that is not known; a ctime of 0 matches any. They are as of ``remembered_at`` (ns); files changed
    shortly before are read again. ``check_lock`` is called from time to time and raises if the folder's lock was lost.
    """
    try:
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        handle = -1
    try:
        if handle < 0 or not _folders_are_real(handle, paths):
            stats, doubtful = [b""] * len(paths), list(range(len(paths)))
        else:
            stats, doubtful = _compare_stats(handle, paths, remembered, remembered_at - RACY_INTERVAL, check_lock)
    finally:
        if handle >= 0:
            os.close(handle)
    return _compare_contents(root, lines, stats, doubtful, check_lock)


def _folders_are_real(handle: int, paths: Sequence[bytes]) -> bool:
    """Return whether all folders above the paths are folders and not links."""
    try:
        modes = [os.stat(path, dir_fd=handle, follow_symlinks=False).st_mode for path in folders_above(paths)]
    except (FileNotFoundError, NotADirectoryError):
        return False
    return all(map(stat.S_ISDIR, modes))


def _compare_stats(
    handle: int, paths: Sequence[bytes], remembered: Sequence[bytes], racy_from: int, check_lock: Callable[[], None]
) -> "tuple[List[bytes], List[int]]":
    """Return each path's packed stats, and the numbers of those that differ from the remembered ones or may be stale.

    A file whose ctime is ``racy_from`` (ns) or later may have changed once more within the clock's resolution.
    """
    lstat, pack = os.lstat, pack_stats
    found_stats: List[bytes] = []
    doubtful: List[int] = []
    for number, path in enumerate(paths):
        if not number % _FILES_PER_CHECK:
            check_lock()
        if not remembered[number]:
            found_stats.append(b"")
            doubtful.append(number)
            continue
        try:
            info = lstat(path, dir_fd=handle)
            changed = info.st_ctime_ns
            stats = pack(info.st_size, info.st_mtime_ns, changed, info.st_ino)
        except (FileNotFoundError, NotADirectoryError, struct.error):
            changed, stats = racy_from, b""
        found_stats.append(stats)
        if changed >= racy_from or (stats != remembered[number] and _without_ctime(stats) != remembered[number]):
            doubtful.append(number)
    return found_stats, doubtful


def _without_ctime(stats: bytes) -> bytes:
    """Return the stats with ctime 0, as remembered of a file that was renamed into place afterwards."""
    return stats[:16] + bytes(8) + stats[24:]


def _compare_contents(
    root: bytes,
    lines: Callable[[], Sequence[bytes]],
    stats: List[bytes],
    doubtful: Sequence[int],
    check_lock: Callable[[], None],
) -> VerifiedFiles:
    """Read the files numbered in ``doubtful``, correct their ``stats``, and return the result for all files."""
    differs: Dict[int, Optional[Entry]] = {}
    disk = Disk(root)
    manifest_lines = lines() if doubtful else ()
    for number in doubtful:
        check_lock()
        expected = checked_entry(from_json(manifest_lines[number].decode()))
        # A link's stats are from before it is read, as a file's are: a change since then shows the next time.
        link = disk.info(expected.path) if expected.kind == LINK else None
        present = disk.entry(expected.path)
        if present != expected:
            stats[number], differs[number] = b"", present
            continue
        read_stats = stats_of(link) if link else disk.seen[expected.path][0]
        try:
            stats[number] = pack_stats(*read_stats)
        except struct.error:
            stats[number] = b""
    chunk_lists = disk.chunk_lists()
    return VerifiedFiles(stats, differs, disk.hashed, chunk_lists)
