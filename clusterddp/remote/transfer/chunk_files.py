"""Assemble the contents for a folder from files already in it and chunks received, beside it, then move them into it.

The folder of parts stays where a transfer is interrupted, and the next one continues from it.
"""

import os
import stat
from typing import Callable, Dict, Iterable, List, Optional, Union

from ..shared.wire.chunk_stream import BadStream, ChunkStream
from ..shared.wire.chunks import CHUNK, Chunk, chunks_of, digest_of, is_content, read_at
from ..shared.wire.partial_files import PARTS_MAX_AGE, NotOursError, Parts, free_bytes, open_parts, other_parts
from ..shared.workdir.manifest import FILE, Disk, Entry, Stats
from ..system.bootstrap import Refused
from ..system.clock import folder_time
from .stream_head import AGAIN

PARTS = b"parts"  # the folder's name inside a folder of ours
_TEMPORARY = "copy"  # name in the folder of parts: a content or link that is about to be moved into place


class Assembly:
    """Contents being assembled in ``folder``, which is made if it is missing, on the filesystem that they will move to.

    ``chunk_lists`` are the chunk digests of each content that has several. ``check`` is called before each chunk that
    lies here is read, and raises to abort. Raises Refused if the folder is another user's.
    """

    def __init__(
        self, folder: bytes, chunk_lists: Dict[str, List[str]], check: Callable[[], None] = lambda: None
    ) -> None:
        self._path, self._chunk_lists, self._check = folder, chunk_lists, check
        self._uses: Dict[str, int] = {}  # content → entries it is still to be moved to
        parent, self._name = os.path.split(folder)
        self._parent = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._folder = open_parts(self._parent, self._name)
        except OSError as error:
            os.close(self._parent)
            if isinstance(error, NotOursError):
                message = "%s belongs to another user" % os.fsdecode(os.path.join(os.path.realpath(parent), self._name))
                raise Refused(message, "remove it, or have its owner do so") from None
            raise OSError(error.errno, error.strerror, folder) from error
        self._parts = Parts(self._folder, check)

    def close(self) -> None:
        """Keep the parts of an interrupted transfer for the next one; after a complete one the folder is removed."""
        os.close(self._folder)
        try:
            os.rmdir(self._name, dir_fd=self._parent)
        except OSError:  # not empty
            pass
        os.close(self._parent)

    def want(self, entries: Iterable[Entry]) -> None:
        """Request the contents of these files.

        Raises Refused if the chunks of one were not sent with the manifest, or the disk has not enough free space.
        """
        chunks_by_content = {}
        for entry in entries:
            self._uses[entry.content] = self._uses.get(entry.content, 0) + 1
            chunks_by_content[entry.content] = self._chunks(entry)
        self._parts.want(chunks_by_content, self._uses)
        self._remove_temporary()  # one that was cut off holds room that is to be checked
        self._parts.remove_old(folder_time(self._folder))
        shown = os.fsdecode(os.path.realpath(os.path.dirname(self._path)))
        refuse_without_room(self._folder, self._parts.lacking_bytes, shown)

    def copy_chunks_of(self, disk: Disk) -> None:
        """Copy the needed chunks that files in the destination folder have already, as ``disk`` knows them."""
        for path, (_, digests) in disk.seen.items():
            if any(digest in self._parts.lacking for digest in digests):
                self._copy_chunks_of_file(disk.full(path), digests)
        for name in other_parts(self._parent, self._name):
            self._copy_chunks_of_parts(name)

    def receive(self, incoming: ChunkStream, check: Callable[[], None], plan: Iterable[Entry] = ()) -> None:
        """Store the chunks that arrive, of files of ``plan``; ``check`` is called before each and raises to abort."""
        chunks = (chunk for entry in plan if entry.kind == FILE for chunk in self._chunks(entry))
        try:
            for bundle in incoming.bundles(self._parts, chunks):
                check()
                for digest, data in bundle:
                    check()
                    self._parts.put(digest, data)
        except BadStream as error:
            raise Refused("what was sent came damaged: %s" % error, AGAIN) from error

    def whole(self, content: str) -> bool:
        """Whether a requested content is complete."""
        return self._parts.whole(content)

    def move(self, entry: Entry, target: bytes, folder: Optional[int] = None) -> Stats:
        """Move a file into place, replacing whatever has that name; returns its stats as of just before.

        With ``folder``, a descriptor, the target is relative to that. The stats' ctime is 0: the rename sets it, and
        the next check of the file learns it.
        """
        name = entry.content
        self._uses[name] -= 1
        if self._uses[name]:
            self._remove_temporary()
            name = self._copy_to_temporary(name)
        if entry.executable:
            mode = stat.S_IMODE(os.stat(name, dir_fd=self._folder).st_mode)
            os.chmod(name, mode | (mode & 0o444) >> 2, dir_fd=self._folder)
        info = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        os.rename(name, target, src_dir_fd=self._folder, dst_dir_fd=folder)
        return [info.st_size, info.st_mtime_ns, 0, info.st_ino]

    def is_as_written(self, entry: Entry, stats: Stats) -> bool:
        """Whether a moved file with these stats is one chunk, and unchanged since that was written on its arrival."""
        size, modified, inode = self._parts.written.get(entry.content, (-1, 0, 0))
        return size == entry.size and stats == [size, modified, 0, inode]

    def move_link(self, destination: bytes, target: bytes, folder: Optional[int] = None) -> None:
        """Make a link and move it into place, replacing whatever has that name."""
        self._remove_temporary()
        os.symlink(destination, _TEMPORARY, dir_fd=self._folder)
        os.rename(_TEMPORARY, target, src_dir_fd=self._folder, dst_dir_fd=folder)

    def _chunks(self, entry: Entry) -> List[Chunk]:
        if not is_content(entry.content):
            raise Refused("%r names no content" % entry.content[:80], AGAIN)
        if entry.size <= CHUNK:
            return [Chunk(entry.content, entry.size)]
        try:
            return chunks_of(entry.content, entry.size, self._chunk_lists.get(entry.content))
        except ValueError as error:
            raise Refused("%s: %s" % (entry.path, error), AGAIN) from error

    def _copy_chunks_of_file(self, path: bytes, digests: List[str]) -> None:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # removed meanwhile, or not readable: then it is sent
            return
        with os.fdopen(handle, "rb") as stream:
            for number, digest in enumerate(digests):
                self._check()
                data = read_at(stream.fileno(), number * CHUNK, CHUNK) if digest in self._parts.lacking else None
                if data is not None and digest_of(data) == digest:
                    self._parts.put(digest, data)

    def _copy_chunks_of_parts(self, name: bytes) -> None:
        """Copy the needed chunks of another host's folder of parts; remove what is old there, and the folder itself.

        A folder that is empty and not old may be one that its host is about to write to.
        """
        try:
            folder = open_parts(self._parent, name)
        except OSError:  # removed meanwhile, or another user's
            return
        try:
            now, modified = folder_time(self._folder), os.fstat(folder).st_mtime
            parts = Parts(folder, self._check)
            for digest, data in parts.chunks():
                if digest in self._parts.lacking:
                    self._parts.put(digest, data)
            parts.remove_old(now)
        finally:
            os.close(folder)
        if modified < now - PARTS_MAX_AGE:
            try:
                os.rmdir(name, dir_fd=self._parent)
            except OSError:  # not empty
                pass

    def _remove_temporary(self) -> None:
        try:
            os.unlink(_TEMPORARY, dir_fd=self._folder)
        except FileNotFoundError:  # no transfer was interrupted there
            pass

    def _copy_to_temporary(self, name: str) -> str:
        """Copy a content that further entries need, and return the copy's name."""

        def opened(name: str, flags: int) -> int:
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=self._folder)

        source, target = opened(name, os.O_RDONLY), opened(_TEMPORARY, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(source, "rb") as old, os.fdopen(target, "wb") as new:
            for data in iter(lambda: old.read(1 << 20), b""):
                new.write(data)
        return _TEMPORARY


def refuse_without_room(place: Union[int, bytes], needed: int, shown: str) -> None:
    """Refuse, naming the folder as ``shown``, if its disk has less than ``needed`` bytes free."""
    free = free_bytes(place)
    if free is not None and needed > free:
        values = (needed / 1e6, shown, free / 1e6)
        raise Refused("it needs %.1f MB in %s, where %.1f MB are free" % values, "make room there")
