"""The operations ``push_check`` and ``push_apply``: put a user's files into a folder of their choice on a host.

Nothing is deleted. A file that differs from the one pushed is refused, unless an earlier push put it there as it is
now, or the user gives ``--overwrite``. A file that sync manages is refused even with ``--overwrite``. What was pushed
is recorded in the state folder and not in the destination: a program that reads that must find nothing else there. Only
parts of an interrupted push are kept in it.
"""

import contextlib
import fcntl
import os
import stat
from typing import Any, Dict, Iterator, List, Set, Union

from ..helper.request import Request
from ..shared.schema.record import to_fields
from ..shared.text.shortening import few
from ..shared.user_files.file_records import PushCheck, Pushed, PushRequest
from ..shared.wire.chunk_stream import ChunkStream, Incoming
from ..shared.wire.chunks import CHUNK, ZEROS, Chunk, chunks_of
from ..shared.wire.partial_files import PARTS_FOLDER, other_parts, parts_in
from ..shared.workdir.manifest import FOLDER, Entry, as_text, on_disk, parents
from ..shared.workdir.sync_records import HostChanged
from ..system.bootstrap import Refused, home_folder
from ..system.small_files import nearest_folder
from ..transfer.chunk_files import Assembly, refuse_without_room
from ..transfer.chunk_source import chunk_stream
from ..transfer.descriptor_walk import open_or_make, real_folder
from ..transfer.stream_head import read_entries
from ..workdir.case_folding import refuse_folded
from ..workdir.links import make_links
from ..workdir.lock_owner import host_of
from ..workdir.push_record import PushRecord
from ..workdir.sync_record import SyncRecord
from ..workdir.update import WorkdirUpdate
from ..workdir.workdir import path_in_error, shared_identity, workdir_path

_MAX_NAMED = 5  # most paths in a refusal


def push_check(request: Request) -> Dict[str, Any]:
    """Operation: the chunks of a push that this host lacks; refuses, before any change, what may not be done there.

    The data is the manifest and the lists of chunks. Takes a ``PushRequest``, returns a ``PushCheck``
    (shared/user_files/file_records.py). Raises Refused if a file is in the way, or there is not enough disk space.
    """
    state, order = request.state, request.read_args(PushRequest)
    entries, chunk_lists = read_entries(Incoming(request.read), order.manifest, order.chunk_lists, order.digest)
    if order.links and not (order.dest.startswith("/") or is_in_home(order.dest)):
        workdir = workdir_path(order.workdir, state)
        os.close(open_or_make(workdir))
        make_links(workdir, order.links)
    root = dest_path(order.workdir, order.dest, state)
    record = PushRecord(state, root)
    record.choose(entries, overwrite=order.overwrite)
    update = WorkdirUpdate(record, entries)
    _refuse_conflicts(state, order, root, entries, update)
    ready = not update.changes
    if ready and update.disk.hashed:  # all is there, whoever put it there
        # Where another push is under way, all is read again the next time.
        with contextlib.suppress(OSError), _push_lock(root, wait=False):
            PushRecord(state, root).complete(entries, chunk_lists, update.proved_stats)
    files, parts = update.lacking(), parts_in(_parts_folder(state, root))
    by_content = {entry.content: _chunks(entry, chunk_lists) for entry in files}
    chunks = [chunk for of_content in by_content.values() for chunk in of_content]
    unwritten = sum(chunk.size for chunk in chunks if chunk.digest in parts or chunk.digest == ZEROS)
    _check_room(root, sum(entry.size for entry in files) - unwritten)
    existing = update.disk.chunks().union(parts, *_parts_of_other_hosts(state, root))
    lacking = dict.fromkeys(chunk.digest for chunk in chunks if chunk.digest not in existing)
    return to_fields(PushCheck(as_text(root), shared_identity(root), ready, list(lacking)))


def _chunks(entry: Entry, chunk_lists: Dict[str, List[str]]) -> List[Chunk]:
    digests = [entry.content] if entry.size <= CHUNK else chunk_lists.get(entry.content)
    return chunks_of(entry.content, entry.size, digests)


def push_apply(request: Request) -> Dict[str, Any]:
    """Operation: put files in place; the data is the manifest, the lists of chunks, then the chunks that were lacking.

    Takes a ``PushRequest`` (shared/user_files/file_records.py). Returns a ``Pushed``, or, with nothing changed, a
    ``HostChanged`` (shared/workdir/sync_records.py): chunks are missing that were not sent.
    """
    state, order = request.state, request.read_args(PushRequest)
    incoming = chunk_stream(request, spread=order.spread)
    entries, chunk_lists = read_entries(incoming, order.manifest, order.chunk_lists, order.digest)
    root = dest_path(order.workdir, order.dest, state)
    try:
        os.close(open_or_make(root))
        with _push_lock(root):
            return to_fields(_put_in_place(state, order, root, entries, chunk_lists, incoming))
    except OSError as error:
        path = os.fsdecode(path_in_error(error) or root)
        raise Refused("cannot write %s: %s" % (path, error.strerror), "make room or give rights there") from error


def _put_in_place(
    state: str,
    order: PushRequest,
    root: bytes,
    entries: List[Entry],
    chunk_lists: Dict[str, List[str]],
    incoming: ChunkStream,
) -> Union[Pushed, HostChanged]:
    record = PushRecord(state, root)
    record.choose(entries, overwrite=order.overwrite)
    update = WorkdirUpdate(record, entries)
    _refuse_conflicts(state, order, root, entries, update)
    parts = Assembly(_parts_folder(state, update.open_root()), chunk_lists)
    try:
        missing = update.stage(parts, incoming)
        if missing:
            return HostChanged(missing=tuple(missing[:20]))
        record.begin(entries)
        update.commit()
    finally:
        parts.close()
        update.close()
    record.complete(entries, chunk_lists, update.proved_stats)
    return Pushed(update.sent, tuple((path, kept_as) for path, kept_as in update.kept))


def is_in_home(dest: str) -> bool:
    """Whether a destination is the home folder, or a path below it."""
    return dest.split("/", 1)[0] == "~"


def dest_path(workdir: str, dest: str, state: str) -> bytes:
    """Resolve the host folder that a push writes to, or a pull reads from; raises Refused if it may not be used."""
    if is_in_home(dest):
        path = os.path.join(on_disk(home_folder()), on_disk(dest[1:].lstrip("/")))
    elif dest.startswith("/"):
        path = on_disk(dest)
    else:
        parts = [part for part in dest.split("/") if part not in ("", ".")]
        if ".." in parts or (parts and parts[0].startswith(".clusterddp")):
            raise Refused("%s leads out of the workdir" % dest, "give a path below it, or an absolute one")
        path = os.path.join(workdir_path(workdir, state), on_disk("/".join(parts)))
    try:
        return real_folder(path)
    except NotADirectoryError:
        raise Refused("%s is not a folder" % as_text(path), "give another place") from None


def _refuse_conflicts(state: str, order: PushRequest, root: bytes, entries: List[Entry], update: WorkdirUpdate) -> None:
    """Raise Refused if the push would replace what it may not; the message names the first paths."""
    update.check()
    refuse_folded(root, [on_disk(entry.path) for entry in entries])
    synced_paths = _synced_paths(state, order.workdir, root)
    managed_paths = [entry.path for entry in entries if synced_paths.intersection((entry.path, *parents(entry.path)))]
    if managed_paths:
        remedy = "push elsewhere, or keep it out of the project (.gitignore)"
        raise Refused("sync manages %s in %s" % (few(managed_paths, _MAX_NAMED), as_text(root)), remedy)
    folders = [path for path, entry in update.foreign_entries() if entry.kind == FOLDER]
    if folders:
        remedy = "end the destination with / to go below it"
        raise Refused("%s in %s is a folder" % (few(folders, _MAX_NAMED), as_text(root)), remedy)
    folders_above = sorted({folder for entry in entries for folder in parents(entry.path)})
    blocking_files = [folder for folder in folders_above if _is_file(update, folder)]
    if blocking_files:
        raise Refused(
            "%s in %s is a file" % (few(blocking_files, _MAX_NAMED), as_text(root)), "remove it, or give another place"
        )
    differing = [path for path, _ in update.foreign_entries()]
    if differing:
        message = "%s in %s differs, and no push has put it there as it is"
        raise Refused(message % (few(differing, _MAX_NAMED), as_text(root)), "--overwrite replaces it")


def _is_file(update: WorkdirUpdate, path: str) -> bool:
    info = update.disk.info(path)
    return info is not None and not stat.S_ISDIR(info.st_mode)


def _synced_paths(state: str, workdir_setting: str, root: bytes) -> Set[str]:
    """The paths below ``root`` that sync manages in the workdir at ``workdir_setting``."""
    workdir = workdir_path(workdir_setting, state)
    if root != workdir and not root.startswith(workdir + b"/"):
        return set()
    inside = as_text(root[len(workdir) + 1 :])
    prefix = inside + "/" if inside else ""
    paths = [entry.path for entry in SyncRecord(state, workdir).entries]
    return {path[len(prefix) :] for path in paths if path.startswith(prefix)}


def _parts_folder(state: str, root: bytes) -> bytes:
    """The folder in which this host assembles what is to be put below ``root``.

    Hosts that share ``root`` do not see each other's locks, and would write into each other's files.
    """
    return os.path.join(root, b"%s-%s" % (PARTS_FOLDER, host_of(state).encode()))


def _parts_of_other_hosts(state: str, root: bytes) -> Iterator[Set[str]]:
    """Yield the chunks in each other folder of parts: a push may go on where another host of that folder broke off."""
    for name in other_parts(root, os.path.basename(_parts_folder(state, root))):
        yield parts_in(os.path.join(root, name))


def _check_room(root: bytes, needed: int) -> None:
    """Refuse if the disk of ``root``, which may not exist yet, has less than ``needed`` bytes free."""
    existing = nearest_folder(root)
    refuse_without_room(existing, needed, as_text(existing))


@contextlib.contextmanager
def _push_lock(root: bytes, *, wait: bool = True) -> Iterator[None]:
    """Allow one push at a time into a folder, on this host; another host that shares it has its own parts there.

    Raises BlockingIOError if there is one and ``wait`` is false.
    """
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:  # a filesystem without locks for folders
            pass
        yield
    finally:
        os.close(handle)
