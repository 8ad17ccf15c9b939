"""Contents put together chunk by chunk in a folder of their own, which a broken transfer leaves for the next one.

A file there is named by its content; what of it is right is seen by hashing it, so nothing else has to be kept. Chunks
come in any order. The folder is a descriptor: no path is looked up again, and no link is followed.
"""

import errno
import os
from typing import Dict, Iterator, List, Set, Tuple, Union

from .chunks import CHUNK, ZEROS, Chunk, digest_of, is_content, read_at

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
KEPT = 7 * 86400.0  # seconds after which what a broken transfer left is removed


class NotOursError(OSError):
    """The folder of parts belongs to another user, who could change what was proved of it."""


def open_parts(folder: int, name: Union[str, bytes]) -> int:
    """Open a folder of parts in an open folder, and make it if it is not there; its descriptor.

    What is proved of a part holds only as long as nobody else can change it: the folder is this user's or root's, 0700.

    Raises:
        NotOursError: another user's folder has that name.
        OSError: it cannot be made.
    """
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:  # of a transfer that broke off
        pass
    handle = os.open(name, _FOLDER, dir_fd=folder)
    if not _is_ours(handle):
        os.close(handle)
        raise NotOursError(errno.EPERM, "it belongs to another user")
    return handle


def _is_ours(handle: int) -> bool:
    """Whether a folder of parts is this user's or root's; one of this user's is closed to others."""
    info = os.fstat(handle)
    if info.st_uid == os.geteuid() and info.st_mode & 0o077:
        try:
            os.fchmod(handle, 0o700)
        except OSError:  # a filesystem without modes: nothing on it has any
            pass
    return info.st_uid in (0, os.geteuid())


class Parts:
    """The folder ``folder``, a descriptor that the caller keeps open.

    Attributes:
        lacking: Digest → where that chunk is wanted: contents and offsets.
        written: Content → size, mtime in ns and inode of its file when it was written whole, at once.
    """

    def __init__(self, folder: int) -> None:
        self.lacking: Dict[str, List[Tuple[str, int]]] = {}
        self.written: Dict[str, Tuple[int, int, int]] = {}
        self._folder = folder
        self._chunks: Dict[str, List[Chunk]] = {}
        self._places: Dict[str, Tuple[str, int, int]] = {}  # digest → content, offset, size of what lies here

    def found(self) -> Set[str]:
        """The digests of all chunks that lie there, each read now; of no content in particular."""
        return {digest for name in self._names() for digest in self._digests(name)}

    def want(self, contents: Dict[str, List[Chunk]]) -> None:
        """Have these contents put together; what lies there of them already is taken up."""
        there = set(self._names())
        for content, chunks in contents.items():
            self._chunks[content] = chunks
            right = list(self._digests(content)) if content in there else []
            offset = 0
            for number, chunk in enumerate(chunks):
                if number >= len(right) or right[number] != chunk.digest:
                    self.lacking.setdefault(chunk.digest, []).append((content, offset))
                else:
                    self._places[chunk.digest] = (content, offset, chunk.size)
                offset += chunk.size
            if len(right) > len(chunks) or (right and right[-1] != chunks[-1].digest):
                self._cut(content, offset)

    @property
    def lacking_bytes(self) -> int:
        """How much has still to be written: chunks of zeros become holes."""
        sizes = {chunk.digest: chunk.size for chunks in self._chunks.values() for chunk in chunks}
        return sum(sizes[digest] * len(places) for digest, places in self.lacking.items() if digest != ZEROS)

    def put(self, digest: str, data: bytes) -> int:
        """Write a chunk, proved by its digest already, wherever it is wanted; how many places that were.

        Zeros where nothing lies yet become a hole: a file that is sparse here may have thousands of them.
        """
        places = self.lacking.pop(digest, [])
        for content, offset in places:
            handle = os.open(content, _WRITE, 0o666, dir_fd=self._folder)
            try:
                view, at = memoryview(data), offset
                if digest == ZEROS and _is_hole(handle, offset, len(data)):
                    os.ftruncate(handle, max(os.fstat(handle).st_size, offset + len(data)))
                    continue
                while view:
                    written = os.pwrite(handle, view, at)
                    view, at = view[written:], at + written
                if len(self._chunks[content]) == 1:
                    info = os.fstat(handle)
                    self.written[content] = (info.st_size, info.st_mtime_ns, info.st_ino)
            finally:
                os.close(handle)
        if places:
            self._places[digest] = (*places[0], len(data))
        return len(places)

    def holds(self, digest: str) -> bool:
        """Whether a chunk of a wanted content lies here."""
        return digest in self._places

    def read(self, digest: str) -> bytes:
        """The bytes of a chunk that lies here; not to be trusted more than the disk is.

        Raises:
            OSError: it is gone.
        """
        content, offset, size = self._places[digest]
        handle = os.open(content, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            return read_at(handle, offset, size)
        finally:
            os.close(handle)

    def whole(self, content: str) -> bool:
        """Whether a wanted content is complete."""
        return not self.lacking or not any(chunk.digest in self.lacking for chunk in self._chunks[content])

    def remove_old(self, now: float) -> None:
        """Remove what broken transfers left and nobody has wanted for long; ``now`` by the folder's own clock."""
        for name in self._names():
            info = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
            if name not in self._chunks and info.st_mtime < now - KEPT:
                os.unlink(name, dir_fd=self._folder)

    def _names(self) -> Iterator[str]:
        return (name for name in os.listdir(self._folder) if is_content(name))

    def _digests(self, name: str) -> Iterator[str]:
        try:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
        except FileNotFoundError:  # removed meanwhile
            return
        try:
            offset = 0
            while True:
                data = read_at(handle, offset, CHUNK)
                if data or not offset:
                    yield digest_of(data)
                if len(data) < CHUNK:
                    return
                offset += len(data)
        finally:
            os.close(handle)

    def _cut(self, content: str, size: int) -> None:
        """Let a part be no longer than its content."""
        handle = os.open(content, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            os.ftruncate(handle, min(size, os.fstat(handle).st_size))
        finally:
            os.close(handle)


def _is_hole(handle: int, offset: int, size: int) -> bool:
    """Whether nothing is stored of a stretch of a file, which may lie behind its end."""
    try:
        return os.lseek(handle, offset, os.SEEK_DATA) >= offset + size
    except OSError as error:
        return error.errno == errno.ENXIO  # no data from there on


def parts_in(path: bytes) -> Set[str]:
    """The digests of the chunks in a folder of parts; none where there is no such folder of ours."""
    try:
        handle = os.open(path, _FOLDER)
    except OSError:
        return set()
    try:
        return Parts(handle).found() if _is_ours(handle) else set()
    finally:
        os.close(handle)
