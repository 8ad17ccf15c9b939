"""What hosts are sent: the manifest, the lists of chunks, and the chunks that some of them lack."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, Protocol

from clusterddp.errors import SyncError
from clusterddp.remote.shared.wire.chunk_stream import bundle, bundles_of, group_chunks
from clusterddp.remote.shared.wire.chunks import Chunk, chunk_spans, chunks_of, digest_of, read_at
from clusterddp.remote.shared.workdir import manifest
from clusterddp.remote.shared.workdir.manifest import FILE, on_disk
from clusterddp.text.paths import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from clusterddp.remote.shared.workdir.manifest import Entry

_MAX_RESULTS = 16  # encoded bundles that are kept in memory, for the other hosts


class ContentSource(Protocol):
    """A source from which the chunks of a tree's contents can be read."""

    def read(self, chunks: Sequence[Chunk]) -> list[tuple[str, bytes]]:
        """Digest and bytes of each chunk; ``ClusterddpError`` if one cannot be read, or has changed."""


class Files:
    """Files on this machine, as they were when their chunks were hashed; ``path_of`` returns the file of an entry.

    ``chunk_lists`` has the digests of the chunks of each content with several chunks.
    """

    def __init__(
        self, entries: Iterable[Entry], chunk_lists: Mapping[str, Sequence[str]], path_of: Callable[[Entry], bytes]
    ) -> None:
        self._locations: dict[str, tuple[Entry, int]] = {}  # digest → an entry that has it, and the offset
        self._path_of = path_of
        for entry in entries:
            if entry.kind == FILE:
                digests = chunk_lists.get(entry.content) or (entry.content,)
                for digest, (offset, _) in zip(digests, chunk_spans(entry.size), strict=True):
                    self._locations.setdefault(digest, (entry, offset))

    @classmethod
    def below(cls, root: Path, entries: Iterable[Entry], chunk_lists: Mapping[str, Sequence[str]]) -> Files:
        """The files of a folder, at their own paths."""
        return cls(entries, chunk_lists, lambda entry: os.path.join(os.fsencode(root), on_disk(entry.path)))  # noqa: PTH118

    def read(self, chunks: Sequence[Chunk]) -> list[tuple[str, bytes]]:
        """Digest and bytes of each chunk; bytes appended since are left to the next sync."""
        return [(chunk.digest, self._chunk(chunk)) for chunk in chunks]

    def _chunk(self, chunk: Chunk) -> bytes:
        """Read a chunk; ``SyncError`` if it cannot be read, or its file has changed."""
        entry, offset = self._locations[chunk.digest]
        path = entry.path
        try:
            descriptor = os.open(self._path_of(entry), os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = read_at(descriptor, offset, chunk.size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise SyncError(f"{shown(path)}: cannot be read ({error.strerror})", remedy="run again") from error
        if digest_of(data) != chunk.digest:
            raise SyncError(f"{shown(path)} changed while it was sent", remedy="run again")
        return data


class HeadSizes(NamedTuple):
    """The bytes of what hosts are sent before the chunks: the manifest, and the lists of chunks."""

    manifest: int
    chunk_lists: int


class Uploads:
    """The data that several hosts are sent: manifest, lists of chunks, and chunks from ``source``.

    ``encoded`` is the manifest's encoding, if it is known.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        chunk_lists: Mapping[str, Sequence[str]],
        source: ContentSource,
        encoded: bytes | None = None,
    ) -> None:
        self._chunk_lists, self._source, self._entries = chunk_lists, source, entries
        self._manifest = manifest.encode(entries) if encoded is None else encoded
        self._encoded_lists = json.dumps({content: list(digests) for content, digests in chunk_lists.items()}).encode()
        self._results: OrderedDict[object, Future[bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def sizes(self, part: bytes | None = None) -> HeadSizes:
        """The bytes of manifest and lists; ``part`` is as in ``pieces``."""
        return HeadSizes(manifest=len(self._manifest if part is None else part), chunk_lists=len(self._encoded_lists))

    @property
    def all_chunks(self) -> list[Chunk]:
        """All chunks, each once, in the order of the manifest."""
        files = (entry for entry in self._entries if entry.kind == FILE)
        return list(dict.fromkeys(chunk for entry in files for chunk in self.chunks(entry)))

    def chunks(self, entry: Entry) -> Iterable[Chunk]:
        """The chunks of a file's content."""
        digests = self._chunk_lists.get(entry.content)
        return chunks_of(entry.content, entry.size, list(digests)) if digests else (Chunk(entry.content, entry.size),)

    def pieces(
        self, needs: Iterable[Chunk], *, compress: bool, part: bytes | None = None
    ) -> Iterator[tuple[bytes, int]]:
        """The data for a host that lacks ``needs``, and for each piece the bytes of file content in it.

        ``part`` is what is sent of the manifest; None: all.
        """
        head = self._manifest if part is None else part
        yield self._computed_once((head, compress), lambda: self._head(head, compress=compress)), 0
        for group in group_chunks(needs):
            yield self.bundle(group, compress=compress), sum(chunk.size for chunk in group)

    def bundle(self, group: tuple[Chunk, ...], *, compress: bool) -> bytes:
        """Encode these chunks as one bundle."""
        return self._computed_once((group, compress), functools.partial(self._bundle, group, compress=compress))

    def _head(self, part: bytes, *, compress: bool) -> bytes:
        """Encode what precedes the chunks: the manifest and the lists of chunks."""
        return b"".join(bundles_of(part + self._encoded_lists, compress=compress))

    def _bundle(self, group: Sequence[Chunk], *, compress: bool) -> bytes:
        return bundle(self._source.read(group), compress=compress)

    def _computed_once(self, key: object, make: Callable[[], bytes]) -> bytes:
        """Return the result of ``make``, called by one thread for all that need it at about the same time."""
        with self._lock:
            future = self._results.get(key)
            is_first = future is None
            future = future or self._results.setdefault(key, Future())
            self._results.move_to_end(key)
            while len(self._results) > _MAX_RESULTS:
                self._results.popitem(last=False)
        if is_first:
            try:
                future.set_result(make())
            except BaseException as error:  # noqa: BLE001 - raised in every thread that waits for it
                future.set_exception(error)
        return future.result()
