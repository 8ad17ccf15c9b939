"""Assemble file contents chunk by chunk in a folder that survives a broken transfer, so the next can resume.

A file there is named by its content; hashing it shows which chunks are correct, so no other state is kept. Chunks
arrive in any order. The folder is a descriptor: no path is looked up again, and no link is followed.
"""

import errno
import os
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple, Union

from .chunks import CHUNK, ZEROS, Chunk, digest_of, is_content, read_at, write_at

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
PARTS_FOLDER = b".clusterddp-parts"  # in a user's folder; how the names of all such folders begin
PARTS_MAX_AGE = 7 * 86400.0  # seconds after which the files of a broken transfer are removed


class NotOursError(OSError):
    """The folder of parts belongs to another user, who could change files after they were verified."""


def open_parts(folder: int, name: Union[str, bytes]) -> int:
    """Open or create a folder of parts inside an open folder; return its descriptor.

    A verified part stays valid only if nobody else can change it: the folder must be this user's or root's, mode 0700.
    Raises NotOursError if another user's folder has that name; OSError if it cannot be created.
    """
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:  # left by a broken transfer
        pass
    handle = os.open(name, _FOLDER, dir_fd=folder)
    if not _is_ours(handle):
        os.close(handle)
        raise NotOursError(errno.EPERM, "it belongs to another user")
    return handle


def _is_ours(handle: int) -> bool:
    """Whether a folder of parts is this user's or root's; this user's own is set to mode 0700."""
    info = os.fstat(handle)
    if info.st_uid == os.geteuid() and info.st_mode & 0o077:
        try:
            os.fchmod(handle, 0o700)
        except OSError:  # a filesystem without modes
            pass
    return info.st_uid in (0, os.geteuid())


def free_bytes(place: Union[int, str, bytes]) -> Optional[int]:
    """The bytes that this user may still write in a folder; None where its file system does not tell its size.

    ``place`` is its path or descriptor. Raises OSError.
    """
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else None


class Parts:
    """The partial files in a folder, given as a descriptor that the caller keeps open.

    ``lacking`` maps the digest of a missing chunk to the contents and offsets where it is needed. ``written`` maps the
    content of a single chunk to size, mtime in ns and inode of its file after it was written.
    ``check`` is called before each chunk of a file is read, and may raise.
    """

    def __init__(self, folder: int, check: Callable[[], None] = lambda: None) -> None:
        self.lacking: Dict[str, List[Tuple[str, int]]] = {}
        self.written: Dict[str, Tuple[int, int, int]] = {}
        self._folder, self._check = folder, check
        self._chunks: Dict[str, List[Chunk]] = {}
        self._copied_bytes = 0  # of the copies of contents that several files need
        self._positions: Dict[str, Tuple[str, int, int]] = {}  # digest → content, offset, size of a chunk that is here

    def chunks(self) -> Iterator[Tuple[str, bytes]]:
        """Read and hash all files in the folder; yield each chunk's digest and data."""
        for name in self._names():
            yield from self._chunks_of(name)

    def want(self, contents: Dict[str, List[Chunk]], uses: Mapping[str, int]) -> None:
        """Register contents to assemble, and find which of their chunks are in the folder already.

        ``uses`` are the numbers of files that need each content.
        """
        there = set(self._names())
        for content, chunks in contents.items():
            self._chunks[content] = chunks
            self._copied_bytes += (uses[content] - 1) * sum(chunk.size for chunk in chunks)
            right = [digest for digest, _ in self._chunks_of(content)] if content in there else []
            offset = 0
            for number, chunk in enumerate(chunks):
                if number >= len(right) or right[number] != chunk.digest:
                    self.lacking.setdefault(chunk.digest, []).append((content, offset))
                else:
                    self._positions[chunk.digest] = (content, offset, chunk.size)
                offset += chunk.size
            if len(right) > len(chunks) or (right and right[-1] != chunks[-1].digest):
                self._cut(content, offset)

    @property
    def lacking_bytes(self) -> int:
        """How many bytes have still to be written, with copies, but without chunks of zeros, which become holes."""
        sizes = {chunk.digest: chunk.size for chunks in self._chunks.values() for chunk in chunks}
        needed = (sizes[digest] * len(positions) for digest, positions in self.lacking.items() if digest != ZEROS)
        return self._copied_bytes + sum(needed)

    def put(self, digest: str, data: bytes) -> int:
        """Write a verified chunk wherever it is needed; return the number of positions.

        Zeros where nothing is stored yet become a hole: a sparse file may have thousands of them.
        """
        positions = self.lacking.pop(digest, [])
        for content, offset in positions:
            handle = os.open(content, _WRITE, 0o666, dir_fd=self._folder)
            try:
                if digest == ZEROS and _is_hole(handle, offset, len(data)):
                    os.ftruncate(handle, max(os.fstat(handle).st_size, offset + len(data)))
                    continue
                write_at(handle, data, offset)
                if len(self._chunks[content]) == 1:
                    info = os.fstat(handle)
                    self.written[content] = (info.st_size, info.st_mtime_ns, info.st_ino)
            finally:
                os.close(handle)
        if positions:
            self._positions[digest] = (*positions[0], len(data))
        return len(positions)

    def holds(self, digest: str) -> bool:
        """Whether a chunk of a registered content is stored here."""
        return digest in self._positions

    def read(self, digest: str) -> bytes:
        """Read a chunk that is stored here; its digest is not checked again. Raises OSError."""
        content, offset, size = self._positions[digest]
        handle = os.open(content, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            return read_at(handle, offset, size)
        finally:
            os.close(handle)

    def whole(self, content: str) -> bool:
        """Whether a registered content is complete."""
        return not self.lacking or not any(chunk.digest in self.lacking for chunk in self._chunks[content])

    def remove_old(self, now: float) -> None:
        """Remove old unregistered files of broken transfers; ``now`` is the file server's time in seconds."""
        for name in self._names():
            try:
                info = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
                if name not in self._chunks and info.st_mtime < now - PARTS_MAX_AGE:
                    os.unlink(name, dir_fd=self._folder)
            except FileNotFoundError:  # a host that shares the folder has moved or removed it
                continue

    def _names(self) -> Iterator[str]:
        return (name for name in os.listdir(self._folder) if is_content(name))

    def _chunks_of(self, name: str) -> Iterator[Tuple[str, bytes]]:
        """Read and hash a partial file; yield each chunk's digest and data."""
        try:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
        except FileNotFoundError:  # removed meanwhile
            return
        try:
            offset = 0
            while True:
                self._check()
                data = read_at(handle, offset, CHUNK)
                if data or not offset:
                    yield digest_of(data), data
                if len(data) < CHUNK:
                    return
                offset += len(data)
        finally:
            os.close(handle)

    def _cut(self, content: str, size: int) -> None:
        """Truncate a partial file to its content's size."""
        handle = os.open(content, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            os.ftruncate(handle, min(size, os.fstat(handle).st_size))
        finally:
            os.close(handle)


def _is_hole(handle: int, offset: int, size: int) -> bool:
    """Whether a range of a file, which may be beyond its end, has no stored data."""
    try:
        return os.lseek(handle, offset, os.SEEK_DATA) >= offset + size
    except OSError as error:
        return error.errno == errno.ENXIO  # no data from there on


def other_parts(folder: Union[int, bytes], own: bytes) -> List[bytes]:
    """Return the names of other hosts' folders of parts in a folder that hosts share; ``own`` is this host's."""
    try:
        names = [os.fsencode(name) for name in os.listdir(folder)]
    except OSError:
        return []
    return [name for name in names if name.startswith(PARTS_FOLDER) and name != own]


def parts_in(path: bytes, check: Callable[[], None] = lambda: None) -> Set[str]:
    """Return the digests of the chunks in a folder of parts; none if it is missing or another user's.

    ``check`` is that of ``Parts``.
    """
    try:
        handle = os.open(path, _FOLDER)
    except OSError:
        return set()
    try:
        return {digest for digest, _ in Parts(handle, check).chunks()} if _is_ours(handle) else set()
    finally:
        os.close(handle)
