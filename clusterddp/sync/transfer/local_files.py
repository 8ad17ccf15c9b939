"""Writes files from hosts below a local folder, by directory descriptors, following no link at any step.

No existing file is replaced unasked: a file gets its name by a hard link, which fails if the name is taken. The parts
of an interrupted transfer are in ``.clusterddp-parts`` there, and the next one continues from them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import threading
import time
from typing import TYPE_CHECKING

from clusterddp.errors import SyncError
from clusterddp.project.user_folders import ForeignLinkError, open_folder
from clusterddp.remote.shared.wire.chunks import content_of, hash_handle
from clusterddp.remote.shared.wire.partial_files import PARTS_FOLDER, Parts, free_bytes, open_parts
from clusterddp.remote.shared.workdir.manifest import FILE, Entry, as_text, exists_in, on_disk
from clusterddp.text.paths import shown
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from clusterddp.remote.shared.wire.chunks import Chunk

_PARTS_FOLDER = os.fsdecode(PARTS_FOLDER)
_TEMPORARY = "copy"  # in the parts folder: a file or link before it gets its name
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_THE_WAY = (errno.ELOOP, errno.ENOTDIR)  # a link or a file where a folder is needed
_WITHOUT_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)  # a file system without, or with too many
ABSENT, SAME, OTHER = "absent", "same", "other"


class LocalFolder:
    """A local folder that files are written to; entering it creates the folder and its parents, and locks it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        self._parts = Parts(self._parts_folder)
        return self

    def _open(self) -> None:
        """Open and lock the folder, and open its parts folder."""
        with self._as_sync_error(str(self.folder)):
            try:
                self._root = self._close_on_exit(open_folder(self.folder, missing_mode=0o777))
            except ForeignLinkError as error:
                remedy = "give another destination"
                raise SyncError(f"{shown(str(self.folder))}: {error}, and is not followed", remedy=remedy) from None
            self._lock_folder()
        with self._as_sync_error(str(self.folder / _PARTS_FOLDER)):
            self._parts_folder = self._close_on_exit(open_parts(self._root, _PARTS_FOLDER))

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # not empty: the transfer was interrupted
            os.rmdir(_PARTS_FOLDER, dir_fd=self._root)
        self._stack.close()

    def _lock_folder(self) -> None:
        """Lock the folder, since two transfers at once would mix up the parts; skipped if the file system has no locks.

        Raises ``SyncError`` if another transfer holds the lock.
        """
        try:
            fcntl.flock(self._root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = "wait for it, or give another destination"
            raise SyncError(f"another pull is writing to {self.folder}", remedy=remedy) from None
        except OSError:  # the file system has no locks
            pass

    def _close_on_exit(self, handle: int) -> int:
        """Return a descriptor, which is closed together with the folder."""
        self._stack.callback(os.close, handle)
        return handle

    @contextlib.contextmanager
    def _as_sync_error(self, path: str) -> Iterator[None]:
        """Raise an ``OSError`` as a ``SyncError`` about this path."""
        try:
            yield
        except OSError as error:
            why = "a file or link is in the way" if error.errno in _IN_THE_WAY else error.strerror
            raise SyncError(f"{shown(path)}: cannot be written ({why})", remedy="give another destination") from error

    def state(self, entry: Entry) -> str:
        """What is at an entry's path: nothing (``absent``), the ``same``, or something ``other``."""
        try:
            with self._parent(entry.path, make=False) as (folder, name):
                return self._state(entry, folder, name)
        except FileNotFoundError:
            return ABSENT
        except OSError as error:
            if error.errno in _IN_THE_WAY:
                return OTHER
            raise SyncError(f"{shown(entry.path)}: cannot be read ({error.strerror})") from error

    def _state(self, entry: Entry, folder: int, name: bytes) -> str:
        """Compare an entry with the file or link of this name in an open folder."""
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(info.st_mode) and entry.kind != FILE:
            return SAME if as_text(os.readlink(name, dir_fd=folder)) == entry.content else OTHER
        if not stat.S_ISREG(info.st_mode) or info.st_size != entry.size or entry.kind != FILE:
            return OTHER
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            return SAME if content_of(hash_handle(handle)[1]) == entry.content else OTHER
        finally:
            os.close(handle)

    def want(
        self, contents: Mapping[str, Sequence[Chunk]], uses: Mapping[str, int], outdated: Collection[str] = ()
    ) -> dict[str, int]:
        """Prepare to assemble contents; the digests and sizes of the chunks still lacking.

        ``uses`` are the numbers of files that need each content; ``outdated`` contents that no file has any more.
        Raises SyncError if there is not enough free space.
        """
        with self._as_sync_error(str(self.folder / _PARTS_FOLDER)):
            self._remove_unneeded_parts(outdated)
            self._parts = Parts(self._parts_folder)
            self._parts.want({content: list(chunks) for content, chunks in contents.items()}, uses)
            self._parts.remove_old(time.time())
        free, needed = free_bytes(self._root), self._parts.lacking_bytes
        if free is not None and needed > free:
            sizes = f"{human_size(needed)} are to come to {self.folder}, where {human_size(free)} are free"
            raise SyncError(sizes, remedy="make room there, or give another destination")
        sizes_of = {chunk.digest: chunk.size for chunks in contents.values() for chunk in chunks}
        return {digest: sizes_of[digest] for digest in self._parts.lacking}

    def _remove_unneeded_parts(self, outdated: Collection[str]) -> None:
        """Remove the outdated parts, those that are files of the user too, and what a pull copied as it ended.

        A part with a second name would be repaired, once the user has changed the file: that is, overwrite it.
        """
        for name in os.listdir(self._parts_folder):  # noqa: PTH208 - a descriptor
            info = os.stat(name, dir_fd=self._parts_folder, follow_symlinks=False)
            if name == _TEMPORARY or name in outdated or (stat.S_ISREG(info.st_mode) and info.st_nlink > 1):
                os.unlink(name, dir_fd=self._parts_folder)

    def put(self, digest: str, data: bytes) -> None:
        """Store a chunk that was proved by its digest; from any thread."""
        with self._lock, self._as_sync_error(str(self.folder / _PARTS_FOLDER)):
            self._parts.put(digest, data)

    def whole(self, content: str) -> bool:
        """Whether a wanted content is complete."""
        return self._parts.whole(content)

    def move_into_place(self, entry: Entry, *, last: bool, overwrite: bool) -> bool:
        """Move an entry whose content is complete to its path; False if that is taken and may not be replaced.

        ``last``: no other entry needs the content, so it is moved, not copied. ``overwrite``: replace what is there.
        """
        with self._as_sync_error(str(self.folder / entry.path)), self._parent(entry.path, make=True) as (folder, name):
            source = self._prepare(entry, last=last)
            try:
                if overwrite:
                    os.rename(source, name, src_dir_fd=self._parts_folder, dst_dir_fd=folder)
                    return True
                os.link(source, name, src_dir_fd=self._parts_folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _WITHOUT_LINKS or exists_in(name, folder):
                    raise
                os.rename(source, name, src_dir_fd=self._parts_folder, dst_dir_fd=folder)
                return True
            os.unlink(source, dir_fd=self._parts_folder)
            return True

    def _prepare(self, entry: Entry, *, last: bool) -> str:
        """Prepare an entry's file or link in the parts folder, and return its name there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_TEMPORARY, dir_fd=self._parts_folder)
        if entry.kind != FILE:
            os.symlink(on_disk(entry.content), _TEMPORARY, dir_fd=self._parts_folder)
            return _TEMPORARY
        name = entry.content
        if not last:
            flags = os.O_NOFOLLOW | os.O_CLOEXEC
            source = os.open(name, os.O_RDONLY | flags, dir_fd=self._parts_folder)
            target = os.open(_TEMPORARY, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o666, dir_fd=self._parts_folder)
            with os.fdopen(source, "rb") as old, os.fdopen(target, "wb") as new:
                shutil.copyfileobj(old, new, 1 << 20)
            name = _TEMPORARY
        if entry.executable:
            mode = stat.S_IMODE(os.stat(name, dir_fd=self._parts_folder).st_mode)
            os.chmod(name, mode | (mode & 0o444) >> 2, dir_fd=self._parts_folder)
        return name

    @contextlib.contextmanager
    def _parent(self, path: str, *, make: bool) -> Iterator[tuple[int, bytes]]:
        """Yield the open folder of a path, opened step by step so that no link is followed, and the last name."""
        *folders, name = on_disk(path).split(b"/")
        handle = os.dup(self._root)
        try:
            for folder in folders:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=handle)
                inner = os.open(folder, _FOLDER_FLAGS, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle, name
        finally:
            os.close(handle)
