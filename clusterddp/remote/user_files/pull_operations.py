"""The operations ``pull_list`` and ``pull_read``: send a host's files to the operator while jobs may be writing them.

``pull_list`` lists files and links with the digests of their present contents; ``pull_read`` sends chunks as they are
then. The operator sees by the digests which changed in between, and lists again.
"""

import os
import posixpath
import stat
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from ..helper.request import Request
from ..shared.schema.record import to_fields
from ..shared.user_files.file_records import UNREADABLE, ChunksWanted, PullList, PullRequest
from ..shared.wire.chunk_stream import bundle, group_chunks
from ..shared.wire.chunks import Chunk, digest_of, read_at
from ..shared.wire.frames import MAX_BODY
from ..shared.workdir.manifest import (
    FILE,
    LINK,
    OWN_PREFIX,
    Disk,
    Entry,
    as_text,
    checked_path,
    is_reserved,
    leads_down,
    on_disk,
    sort_entries,
    stats_of,
)
from ..system.bootstrap import Refused
from ..transfer.descriptor_walk import real_path
from ..workdir.data import DataRecord
from ..workdir.hashes import StoredHashes
from ..workdir.push_record import pushed_in
from ..workdir.start_marker import RunBegin, start_of
from ..workdir.sync_record import SyncRecord
from ..workdir.workdir import shared_identity, workdir_path
from .push_operations import dest_path


def pull_list(request: Request) -> Dict[str, Any]:
    """Operation: the files below a path, or those of a workdir that are new since a run's start.

    Takes a ``PullRequest``, returns a ``PullList`` (shared/user_files/file_records.py). Raises Refused if the path
    leads elsewhere, or the run has left no mark of its start.
    """
    return to_fields(_list_files(request.state, request.read_args(PullRequest)))


def _list_files(state: str, order: PullRequest) -> PullList:
    """What ``pull_list`` returns; with ``order.look`` only whether the path exists."""
    path = _requested_path(state, order)
    if order.look or not os.path.lexists(path):
        exists = os.path.lexists(path)
        return PullList(exists, False, as_text(path), None, entries=[], chunks={}, skipped=(), others=())
    root = path
    paths: List[str] = []
    skipped: List[Tuple[str, str]] = []
    start: Optional[RunBegin] = None
    if order.run:
        start = start_of(path, order.run)
        if start is None:
            raise Refused(
                "%s holds no mark of the start of run %s" % (as_text(path), order.run),
                "name what you want: clusterddp pull PATH",
            )
    if os.path.isdir(path):
        paths = list(_paths_below(path, skipped, bytecode=order.bytecode))
    else:
        root, paths = os.path.dirname(path), [as_text(os.path.basename(path))]
    hashes = StoredHashes(state, root, "pulled")
    disk = hashes.disk()
    if start is not None:
        paths = _new_since(state, root, paths, start, skipped)
    entries = list(_readable_entries(disk, paths, skipped))
    if disk.hashed:
        hashes.save(disk)
    contents = disk.chunk_lists()
    return PullList(
        there=True,
        folder=root == path,
        root=as_text(root),
        shared=shared_identity(root),
        entries=sort_entries(entries),
        chunks=contents,
        skipped=tuple(skipped),
        others=tuple(start.others) if start else (),
    )


def pull_read(request: Request) -> None:
    """Operation: send chunks in order, as bundles (shared/wire/chunk_stream.py); a chunk of a missing file is empty.

    Takes a ``ChunksWanted`` (shared/user_files/file_records.py).
    """
    order = request.read_args(ChunksWanted)
    root = on_disk(order.root)
    ranges = [(checked_path(path), int(offset), int(size)) for path, offset, size in order.chunks]
    sizes = [Chunk(str(number), size) for number, (_, _, size) in enumerate(ranges)]
    for group in group_chunks(sizes):  # in these, a range's number stands in place of a digest
        group_data = []
        for chunk in group:
            data = _read_range(root, *ranges[int(chunk.digest)])
            group_data.append((digest_of(data), data))
        data_bundle = bundle(group_data, compress=order.compress)
        for start in range(0, len(data_bundle), MAX_BODY):
            request.send(data_bundle[start : start + MAX_BODY])


def _requested_path(state: str, order: PullRequest) -> bytes:
    """The real path to pull: the workdir, or what the request names; raises Refused."""
    if order.run or order.path in ("", "."):
        return workdir_path(order.workdir, state)
    folder, name = posixpath.split(order.path.rstrip("/") or "/")
    if name in ("", ".", "..") or (not folder and name == "~"):
        return dest_path(order.workdir, order.path, state)
    path = os.path.join(dest_path(order.workdir, folder or ".", state), on_disk(name))
    try:
        return real_path(path)
    except OSError as error:
        raise Refused("%s cannot be read (%s)" % (order.path, error.strerror), "give another path") from None


def _paths_below(root: bytes, skipped: List[Tuple[str, str]], *, bytecode: bool) -> Iterator[str]:
    """Yield all paths below a folder, without ``.git``, ``.clusterddp…`` and, unless ``bytecode``, Python's bytecode.

    Links are not followed. Names that differ from ``.git`` and ours by upper case alone are added to ``skipped``: on
    the operator's disk they may be the same. With ``bytecode``, which a push asks for, all that is left out is added.
    """
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(os.path.join(root, on_disk(folder))) as listing:
                below = sorted(listing, key=lambda entry: entry.name, reverse=True)
        except OSError as error:
            if not (folder and isinstance(error, FileNotFoundError)):  # else it was removed meanwhile
                skipped.append((folder, _unreadable(error)))
            continue
        for entry in below:
            name = as_text(entry.name)
            path = posixpath.join(folder, name)
            if not bytecode and (name == ".git" or name.startswith(OWN_PREFIX)):
                continue
            if not bytecode and (name == "__pycache__" or name.endswith(".pyc")):
                continue
            if is_reserved(name):
                skipped.append((path, "named as git's files or clusterddp's own"))
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            else:
                yield path


def _readable_entries(disk: Disk, paths: List[str], skipped: List[Tuple[str, str]]) -> Iterator[Entry]:
    """The entries at these paths; what is not pulled is added to ``skipped`` as (path, reason)."""
    for path in paths:
        try:
            entry = disk.entry(path)
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError as error:
            skipped.append((path, _unreadable(error)))
            continue
        if entry is None:  # the same
            continue
        if entry.kind not in (FILE, LINK):
            skipped.append((path, "neither files nor links"))
            continue
        if entry.kind == LINK and not leads_down(path, entry.content):
            skipped.append((path, "links that lead out"))
            continue
        yield entry


def _new_since(state: str, root: bytes, paths: List[str], start: RunBegin, skipped: List[Tuple[str, str]]) -> List[str]:
    """Those paths that were written or renamed since the run's start, and not by a sync or push."""
    new_paths = []
    pushed = pushed_in(state, root)
    for path in paths:
        try:
            info = os.lstat(os.path.join(root, on_disk(path)))
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError as error:
            skipped.append((path, _unreadable(error)))
            continue
        new = max(info.st_mtime_ns, info.st_ctime_ns) >= start.time_ns
        if new and pushed.get(path) != stats_of(info):
            new_paths.append(path)
    ours: Set[str] = {entry.path for entry in SyncRecord(state, root).unchanged_entries()}
    ours.update(DataRecord(state, root).unchanged_paths())
    return [path for path in new_paths if path not in ours]


def _unreadable(error: OSError) -> str:
    return "%s (%s)" % (UNREADABLE, error.strerror)


def _read_range(root: bytes, path: str, offset: int, size: int) -> bytes:
    """Bytes of a file, shorter where it ends; empty if it cannot be read."""
    try:
        handle = os.open(os.path.join(root, on_disk(path)), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # removed or unreadable by now: the operator sees it by the digest, and lists again
        return b""
    try:
        return read_at(handle, offset, size) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
    except OSError:  # the same
        return b""
    finally:
        os.close(handle)
