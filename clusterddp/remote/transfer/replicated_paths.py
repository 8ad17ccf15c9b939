"""Copy paths below a workdir from one host of a run to another: read what is there, as chunks, and put it in place.

A path's parent is each host's own folder, whatever links lead to it. A path that is a link to something beside it, such
as ``last -> epoch_3``, is copied together with its target; any other link is followed. What was there before keeps a
numbered name. Where it was a link to a folder elsewhere, as of ``clusterddp_links``, that folder is replaced.
"""

import errno
import json
import os
import posixpath
import shutil
import stat
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..shared.wire.chunk_stream import Incoming, bundle, group_chunks
from ..shared.wire.chunks import CHUNK, Chunk, chunk_spans, chunks_of, read_at
from ..shared.wire.frames import parse_json
from ..shared.workdir import manifest
from ..shared.workdir.manifest import (
    FILE,
    FOLDER,
    LINK,
    Disk,
    Entry,
    as_text,
    exists_in,
    leads_down,
    link_entry,
    on_disk,
)
from ..system.bootstrap import NETWORK_FILESYSTEMS, Refused, filesystem_type
from ..system.code_finder import open_folder
from .chunk_files import Assembly
from .descriptor_walk import open_or_make, open_or_make_below, path_of, real_path

_OUR_PREFIX = ".clusterddp"  # the beginning of all names of ours
_WORK_FOLDER = b".clusterddp-carry"  # the folder beside the path while it is received


class PathContent(NamedTuple):
    """What is at a path: entries below the path's parent, and the chunks of each content that has several."""

    entries: List[Entry]
    chunk_lists: Dict[str, List[str]]

    @property
    def digest(self) -> str:
        """A digest that is the same for the same names and contents."""
        return manifest.digest(self.entries)

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(entry.size for entry in self.entries)

    def chunks(self) -> List[Chunk]:
        """Its chunks, each once."""
        chunks: Dict[Chunk, None] = {}
        for entry in self.entries:
            if entry.kind == FILE:
                digests = [entry.content] if entry.size <= CHUNK else self.chunk_lists.get(entry.content)
                chunks.update(dict.fromkeys(chunks_of(entry.content, entry.size, digests)))
        return list(chunks)


def parent_of(workdir: str, path: str) -> bytes:
    """Return the folder in which a path of the workdir lies on this host, with links resolved; raises OSError."""
    folder = os.path.join(on_disk(workdir), on_disk(posixpath.dirname(path)))
    try:
        handle, real = open_folder(os.fsdecode(folder), alone=False)
    except FileNotFoundError:
        return os.path.realpath(folder)
    os.close(handle)
    return os.fsencode(real)


def read_content(workdir: str, path: str) -> Optional[PathContent]:
    """What is at a path below the workdir now; None where there is nothing. Raises OSError if it cannot be read."""
    parent, name = parent_of(workdir, path), posixpath.basename(path)
    disk = Disk(parent)
    info = disk.info(name)
    if info is None:
        return None
    if stat.S_ISLNK(info.st_mode):
        if info.st_uid not in (0, os.getuid()):
            raise OSError(errno.EPERM, "is another user's link", as_text(disk.full(name)))
        target = as_text(os.readlink(disk.full(name)))
        target_path = posixpath.normpath(target)
        if leads_down(name, target) and _is_reached_without_links(disk, target_path):
            entries = [link_entry(name, target), *_entries_below(disk, target_path)]
        else:
            folder, real = os.path.split(os.path.realpath(disk.full(name)))
            disk, start = Disk(folder), len(as_text(real))
            entries = [entry._replace(path=name + entry.path[start:]) for entry in _entries_below(disk, as_text(real))]
    else:
        entries = list(_entries_below(disk, name))
    chunk_lists = disk.chunk_lists()
    return PathContent(manifest.sort_entries(entries), chunk_lists) if entries else None


def _is_reached_without_links(disk: Disk, path: str) -> bool:
    """Whether something is at a path, and neither it nor any folder above it is a link."""
    folder, info = disk.entry(posixpath.dirname(path)), disk.info(path)
    return bool(folder and folder.kind == FOLDER and info and not stat.S_ISLNK(info.st_mode))


def _entries_below(disk: Disk, path: str) -> Iterator[Entry]:
    """The files and links at and below a path; links are not followed, and nothing else is included."""
    full = disk.full(path)
    if os.path.isdir(full) and not os.path.islink(full.rstrip(b"/")):
        for name in sorted(os.listdir(full)):
            if not as_text(name).startswith(_OUR_PREFIX):
                yield from _entries_below(disk, posixpath.join(path, as_text(name)))
        return
    info = disk.info(path)
    if info is None or not (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
        return
    entry = disk.entry(path)
    if entry and (entry.kind == FILE or (entry.kind == LINK and leads_down(path, entry.content))):
        yield entry


def bundles(workdir: str, path: str, content: PathContent) -> Iterator[bytes]:
    """The chunks as bundles, with their present content: the receiver sees by the digests which changed.

    Raises OSError if a file is missing.
    """
    parent, source = parent_of(workdir, path), {}  # type: bytes, Dict[str, Tuple[str, int]]
    for entry in content.entries:
        if entry.kind == FILE:
            digests = content.chunk_lists.get(entry.content) or [entry.content]
            for digest, (offset, _) in zip(digests, chunk_spans(entry.size)):
                source.setdefault(digest, (entry.path, offset))
    for group in group_chunks(content.chunks()):
        group_data = []
        for chunk in group:
            name, offset = source[chunk.digest]
            handle = os.open(os.path.join(parent, on_disk(name)), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                group_data.append((chunk.digest, read_at(handle, offset, chunk.size)))
            finally:
                os.close(handle)
        yield bundle(group_data, compress=False)


def encode_content(content: Optional[PathContent]) -> Tuple[bytes, bytes]:
    """Encode what is at a path, None for nothing, for ``decode_content``: as a manifest, and as lists of chunks."""
    return (manifest.encode(content.entries), json.dumps(content.chunk_lists).encode()) if content else (b"", b"")


def decode_content(path: str, entries: bytes, chunk_lists: bytes) -> Optional[PathContent]:
    """Decode what another host has at a path; None for nothing. Raises ValueError if an entry is elsewhere."""
    if not entries:
        return None
    lists_by_content = parse_json(chunk_lists)
    content = PathContent(manifest.decode(entries), lists_by_content if isinstance(lists_by_content, dict) else {})
    units = _names_to_replace(path, content)
    for entry in content.entries:
        if not any(entry.path == unit or entry.path.startswith(unit + "/") for unit in units):
            raise ValueError("%r is not at %s" % (entry.path[:200], path))
    content.chunks()  # raises if a list of chunks is damaged
    return content


def _names_to_replace(path: str, content: PathContent) -> List[str]:
    """Names to replace whole: the path, after its target if it is a link."""
    name = posixpath.basename(path)
    link = next((entry for entry in content.entries if entry.path == name and entry.kind == LINK), None)
    return [posixpath.normpath(link.content), name] if link else [name]


def receive_path(
    workdir: str, path: str, content: PathContent, incoming: Incoming, check: Callable[[], None], umask: int = 0o022
) -> None:
    """Assemble what arrives beside the path, then put it in the path's place.

    ``check`` is called before each change, and raises to abort the copy. ``umask`` is the user's, which may
    differ from this process's. Raises Refused if there is no disk space, or it arrived damaged or incomplete; OSError
    if it cannot be written.
    """
    folder, name = _place(workdir, path, content)
    parent, start = open_or_make(folder), len(posixpath.basename(path))
    if name != posixpath.basename(path):
        content = content._replace(entries=[one._replace(path=name + one.path[start:]) for one in content.entries])
    try:
        _receive_and_replace(parent, name, content, incoming, check, umask)
    finally:
        os.close(parent)


def _place(workdir: str, path: str, content: PathContent) -> Tuple[bytes, str]:
    """The folder to receive a path in, and the name to give it there.

    A link to a folder of this host's elsewhere stays, and its target is replaced: it leads to the disk that has room.
    """
    folder, name = os.path.join(on_disk(workdir), on_disk(posixpath.dirname(path))), posixpath.basename(path)
    full = os.path.join(folder, on_disk(name))
    if len(_names_to_replace(path, content)) == 1 and os.path.islink(full):
        target = real_path(full)
        above, target_name = os.path.split(target)
        parent = os.path.join(parent_of(workdir, path), b"")
        elsewhere = not target.startswith(parent) and not parent.startswith(os.path.join(target, b""))
        if elsewhere and os.path.isdir(target) and not os.path.ismount(target) and _is_ours_alone(above, target):
            return above, as_text(target_name)
    return folder, name


def _is_ours_alone(above: bytes, path: bytes) -> bool:
    """Whether this user may rename the folder at a path in the one above, and no other host can be writing in it."""
    if filesystem_type(as_text(path)) in NETWORK_FILESYSTEMS:
        return False
    info = os.stat(above)
    owners = (0, info.st_uid, os.lstat(path).st_uid)  # in a sticky folder only they may
    return os.access(above, os.W_OK) and (not info.st_mode & stat.S_ISVTX or os.geteuid() in owners)


def _receive_and_replace(
    parent: int, path: str, content: PathContent, incoming: Incoming, check: Callable[[], None], umask: int
) -> None:
    """Assemble it in a new folder of ours inside the open folder ``parent``, which nobody can replace meanwhile."""
    work, work_path = -1, os.path.join(path_of(parent), _WORK_FOLDER)
    shutil.rmtree(work_path, ignore_errors=True)  # follows no link
    os.mkdir(_WORK_FOLDER, 0o700, dir_fd=parent)
    parts = None
    try:
        work = os.open(_WORK_FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        if os.fstat(work).st_uid != os.getuid():
            raise Refused("%s was replaced meanwhile" % as_text(_WORK_FOLDER), "keep others from writing there")
        new = os.path.join(path_of(work), b"new")
        os.mkdir(new)
        parts = Assembly(os.path.join(path_of(work), b"parts"), content.chunk_lists)
        _receive(parts, content, incoming, check, new)
        _apply_umask(new, umask)
        for unit in _names_to_replace(path, content):
            check()
            _replace(os.path.join(new, on_disk(unit)), parent, unit)
    finally:
        if parts:
            parts.close()
        if work >= 0:
            os.close(work)
        shutil.rmtree(work_path, ignore_errors=True)


def _receive(parts: Assembly, content: PathContent, incoming: Incoming, check: Callable[[], None], new: bytes) -> None:
    """Receive the chunks, and make the files and links from them below the folder ``new``."""
    files = [entry for entry in content.entries if entry.kind == FILE]
    parts.want(files)
    parts.receive(incoming, check)
    if not all(parts.whole(entry.content) for entry in files):
        raise Refused("it came only in part")
    for entry in content.entries:
        target = os.path.join(new, on_disk(entry.path))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        (parts.move(entry, target) if entry.kind == FILE else parts.move_link(on_disk(entry.content), target))


def _apply_umask(folder: bytes, umask: int) -> None:
    """Give new folders and files the modes that the user's programs would have given them."""
    for path, _, names in os.walk(folder):
        os.chmod(path, 0o777 & ~umask)
        for name in (os.path.join(path, name) for name in names):
            mode = os.lstat(name).st_mode
            if stat.S_ISREG(mode):
                os.chmod(name, (0o777 if mode & stat.S_IXUSR else 0o666) & ~umask)


def _replace(new: bytes, parent: int, path: str) -> None:
    """Move what was received into place below an open folder; what is there keeps a numbered name."""
    folder, name = posixpath.split(path)
    folder_handle = open_or_make_below(parent, folder)
    try:
        target = on_disk(name)
        number = 1
        while exists_in(target, folder_handle):
            backup = target + b".~%d~" % number
            if not exists_in(backup, folder_handle):
                os.rename(target, backup, src_dir_fd=folder_handle, dst_dir_fd=folder_handle)
            number += 1
        os.rename(new, target, dst_dir_fd=folder_handle)
    finally:
        os.close(folder_handle)
