"""Lists the files of one host and fetches their chunks. A host may send anything, so everything is checked here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError, SyncError
from clusterddp.hosts.answers import PATHS_LIMIT, Limit
from clusterddp.hosts.ask import ask, reading_answer
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.user_files.file_records import UNREADABLE, ChunksWanted, PullList, PullRequest
from clusterddp.remote.shared.wire.chunk_stream import MAX_CHUNKS, BadStream, Incoming
from clusterddp.remote.shared.wire.chunks import Chunk, chunk_spans, chunks_of, is_content
from clusterddp.remote.shared.workdir.manifest import (
    FILE,
    LINK,
    Entry,
    checked_entry,
    checked_together,
    is_reserved,
    leads_down,
    on_disk,
)
from clusterddp.text.paths import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clusterddp.hosts.client import Host

# Enough for about 75,000 files or chunks.
_LIST_LIMIT = Limit(paths=True, remedy="pull its folders one by one")
HASH_TIMEOUT = 3600.0  # seconds; the host hashes everything it has not hashed before
_MAX_NAME = 255  # bytes that a file system takes
_READ_TIMEOUT = 600.0  # seconds from one chunk to the next; a disk may be slow, one that hangs is given up


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What a host has at a path."""

    exists: bool  # whether there is anything
    folder: bool  # whether it is a folder; else one file
    root: str  # the absolute path of the folder that the entries are below
    shared: str | None  # a name for that folder, the same on all hosts that may share it; None if it is not shared
    entries: tuple[Entry, ...]  # files and links
    chunks: Mapping[str, Sequence[Chunk]] = field(repr=False)  # content → its chunks
    skipped: tuple[tuple[str, str], ...]  # paths that are left out, and why
    others: tuple[str, ...]  # runs that wrote there too


def list_host(host: Host, workdir: str, path: str, run: str = "", *, bytecode: bool = False) -> Listing:
    """Ask what a host has at a path, with or without ``bytecode``, or what is new in a workdir since a run's start.

    Raises ``HelperError`` if it refuses, or lists something that may not be fetched: a path outside, git's files, ours.
    """
    order = PullRequest(workdir=workdir, path=path, run=run, bytecode=bytecode)
    found = ask(host, "pull_list", order, PullList, timeout=HASH_TIMEOUT, limit=_LIST_LIMIT)
    with reading_answer(host.name):
        entries = checked_together([_checked_entry(values) for values in found.entries])
        if not found.folder and (len(entries) > 1 or any("/" in entry.path for entry in entries)):
            raise ValueError("a single file is several, or lies in a folder")  # renamed, a link in it might lead out
        return Listing(
            exists=found.there,
            folder=found.folder,
            root=found.root,
            shared=found.shared,
            entries=tuple(entries),
            chunks={entry.content: _chunks(entry, found.chunks) for entry in entries if entry.kind == FILE},
            skipped=found.skipped,
            others=found.others,
        )


def is_unreadable(why: str) -> bool:
    """Whether the reason for a skipped file says that the host may not read it."""
    return why.startswith(UNREADABLE)


def exists(host: Host, workdir: str, path: str) -> bool:
    """Whether a host has anything at a path."""
    order = PullRequest(workdir=workdir, path=path, look=True)
    return ask(host, "pull_list", order, PullList, limit=PATHS_LIMIT).there


def _checked_entry(values: Any) -> Entry:
    """Decode an entry that a host listed; ``ValueError`` if it may not be fetched."""
    entry = checked_entry(values)
    for name in entry.path.split("/"):
        if is_reserved(name):
            raise ValueError(f"{shown(entry.path)} may not be pulled")
        if len(on_disk(name)) > _MAX_NAME:
            raise ValueError(f"{shown(entry.path)[:_MAX_NAME]} has too long a name")
    if entry.kind == LINK and not leads_down(entry.path, entry.content):
        raise ValueError(f"the link {shown(entry.path)} leads out")
    if entry.kind == FILE and (type(entry.size) is not int or entry.size < 0 or not is_content(entry.content)):
        raise ValueError(f"{shown(entry.path)} has no size, or no content")
    return entry


def _chunks(entry: Entry, chunk_lists: Mapping[Any, Any]) -> list[Chunk]:
    """Return the chunks of a file's content."""
    is_list = "-" in entry.content  # the digest of several chunks has their number after a hyphen
    return chunks_of(entry.content, entry.size, list(chunk_lists[entry.content]) if is_list else [entry.content])


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkLocation:
    """The file and offset at which a host has a chunk."""

    chunk: Chunk
    path: str
    offset: int


def chunk_locations(entries: Sequence[Entry], chunks: Mapping[str, Sequence[Chunk]]) -> dict[str, ChunkLocation]:
    """Return where the host has each chunk, by digest."""
    found: dict[str, ChunkLocation] = {}
    for entry in entries:
        if entry.kind == FILE:
            for chunk, (offset, _) in zip(chunks[entry.content], chunk_spans(entry.size), strict=True):
                found.setdefault(chunk.digest, ChunkLocation(chunk=chunk, path=entry.path, offset=offset))
    return found


def fetch_chunks(
    host: Host, root: str, locations: Sequence[ChunkLocation], count: Callable[[int], None] = lambda _: None
) -> Iterator[tuple[str, bytes]]:
    """Fetch chunks in order, as digest and bytes; chunks whose file has changed meanwhile are left out.

    ``root`` is the folder on the host that the paths are below; ``count`` is called with the size of each chunk
    fetched or left out. Raises ``HelperError`` if the host sends something else.
    """
    compress = host.entry.connection != "local"
    for start in range(0, len(locations), MAX_CHUNKS):
        batch = locations[start : start + MAX_CHUNKS]
        requested = [[location.path, location.offset, location.chunk.size] for location in batch]
        frames = host.stream("pull_read", to_fields(ChunksWanted(root, requested, compress)), patience=_READ_TIMEOUT)
        try:
            pieces = (frame.body for frame in frames if frame.kind == "data")
            incoming = Incoming(lambda pieces=pieces: next(pieces, b""))  # type: ignore[misc]
            expected = iter(batch)
            for bundle in iter(incoming.bundle, None):
                for digest, data in bundle or ():
                    location = next(expected, None)
                    if location is None:
                        raise BadStream("it sends more than was asked for")
                    if digest == location.chunk.digest:
                        yield digest, data
                    count(location.chunk.size)
            if next(expected, None) is not None:
                raise BadStream("it sends less than was asked for")
        except BadStream as error:
            raise HelperError(host.name, f"what it sends is damaged: {error}") from error
        finally:
            frames.close()


class HostFiles:
    """The files of a host as a source of chunks for others (upload.ContentSource)."""

    def __init__(self, host: Host, found: Listing) -> None:
        self._host, self._root = host, found.root
        self._locations = chunk_locations(found.entries, found.chunks)

    def read(self, chunks: Sequence[Chunk]) -> list[tuple[str, bytes]]:
        """Digest and bytes of each chunk; ``SyncError`` if one has changed meanwhile."""
        locations = [self._locations[chunk.digest] for chunk in chunks]
        found = list(fetch_chunks(self._host, self._root, locations))
        if len(found) != len(locations):
            digests = {digest for digest, _ in found}
            path = next(location.path for location in locations if location.chunk.digest not in digests)
            raise SyncError(f"{self._host.name}: {shown(path)} changed while it was sent", remedy="run again")
        return found
