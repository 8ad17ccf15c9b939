"""Lists the files of one host and fetches their chunks. A host may send anything, so everything is checked here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError, SyncError
from clusterddp.hosts.answers import PATHS, Limit
from clusterddp.hosts.fanout import reading_answer
from clusterddp.remote.shared.schema.record import written
from clusterddp.remote.shared.user_files.pull_records import ChunksWanted, PullRequest, read_pull_list
from clusterddp.remote.shared.wire.chunk_stream import MOST_CHUNKS, BadStream, Incoming
from clusterddp.remote.shared.wire.chunks import Chunk, chunks_of, is_content, spans
from clusterddp.remote.shared.workdir.manifest import FILE, LINK, Entry, checked_entry, checked_together, leads_down
from clusterddp.text.paths import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clusterddp.hosts.client import Host

# Enough for about 75,000 files or chunks.
_LISTED = Limit(paths=True, remedy="pull its folders one by one")
_LISTING = 3600.0  # seconds; the host hashes everything it has not hashed before


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What a host has at a path."""

    there: bool  # whether there is anything
    folder: bool  # whether it is a folder; else one file
    root: str  # the absolute path of the folder that the entries are below
    shared: str | None  # a name for that folder, the same on all hosts that may share it; None if it is not shared
    entries: tuple[Entry, ...]  # files and links
    chunks: Mapping[str, Sequence[Chunk]] = field(repr=False)  # Content → its chunks
    skipped: tuple[tuple[str, str], ...]  # paths that are left out, and why
    others: tuple[str, ...]  # runs that wrote there too


def listing(host: Host, workdir: str, path: str, run: str = "") -> Listing:
    """Ask what a host has at a path, or what is new in a workdir since a run's start.

    Raises ``HelperError`` if it refuses, or lists something that may not be fetched: a path outside, git's files, ours.
    """
    order = PullRequest(workdir=workdir, path=path, run=run)
    answer = host.call("pull_list", written(order), timeout=_LISTING, limit=_LISTED)
    with reading_answer(host.name):
        found = read_pull_list(answer)
        entries = checked_together([_checked(values) for values in found.entries])
        return Listing(
            there=found.there,
            folder=found.folder,
            root=found.root,
            shared=found.shared,
            entries=tuple(entries),
            chunks={one.content: _chunks(one, found.chunks) for one in entries if one.kind == FILE},
            skipped=found.skipped,
            others=found.others,
        )


def is_there(host: Host, workdir: str, path: str) -> bool:
    """Whether a host has anything at a path."""
    answer = host.call("pull_list", written(PullRequest(workdir=workdir, path=path, look=True)), limit=PATHS)
    with reading_answer(host.name):
        return read_pull_list(answer).there


def _checked(values: Any) -> Entry:
    """A decoded entry; ``ValueError`` if it may not be fetched."""
    entry = checked_entry(values)
    for part in entry.path.split("/"):
        if part.lower() == ".git" or part.lower().startswith(".clusterddp"):
            raise ValueError(f"{shown(entry.path)} may not be pulled")
    if entry.kind == LINK and not leads_down(entry.path, entry.content):
        raise ValueError(f"the link {shown(entry.path)} leads out")
    if entry.kind == FILE and (type(entry.size) is not int or entry.size < 0 or not is_content(entry.content)):
        raise ValueError(f"{shown(entry.path)} has no size, or no content")
    return entry


def _chunks(entry: Entry, chunk_lists: Mapping[Any, Any]) -> list[Chunk]:
    several = "-" in entry.content
    return chunks_of(entry.content, entry.size, list(chunk_lists[entry.content]) if several else [entry.content])


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkLocation:
    """The file and offset at which a host has a chunk."""

    chunk: Chunk
    path: str
    offset: int


def chunk_locations(entries: Sequence[Entry], chunks: Mapping[str, Sequence[Chunk]]) -> dict[str, ChunkLocation]:
    """Digest → where the chunk is."""
    found: dict[str, ChunkLocation] = {}
    for entry in entries:
        if entry.kind == FILE:
            for chunk, (offset, _) in zip(chunks[entry.content], spans(entry.size), strict=True):
                found.setdefault(chunk.digest, ChunkLocation(chunk=chunk, path=entry.path, offset=offset))
    return found


def fetched(
    host: Host, root: str, wanted: Sequence[ChunkLocation], counted: Callable[[int], None] = lambda _: None
) -> Iterator[tuple[str, bytes]]:
    """Fetch chunks in order, as digest and bytes; chunks whose file has changed meanwhile are left out.

    ``root`` is the folder on the host that the paths are below; ``counted`` is called with the size of each chunk
    fetched or left out. Raises ``HelperError`` if the host sends something else.
    """
    compress = host.entry.connection != "local"
    for start in range(0, len(wanted), MOST_CHUNKS):
        part = wanted[start : start + MOST_CHUNKS]
        asked = [[wanted_chunk.path, wanted_chunk.offset, wanted_chunk.chunk.size] for wanted_chunk in part]
        frames = host.stream("pull_read", written(ChunksWanted(root, asked, compress)))
        try:
            pieces = (frame.body for frame in frames if frame.kind == "data")
            incoming = Incoming(lambda pieces=pieces: next(pieces, b""))  # type: ignore[misc]
            expected = iter(part)
            for bundle in iter(incoming.bundle, None):
                for digest, data in bundle or ():
                    wanted_chunk = next(expected, None)
                    if wanted_chunk is None:
                        raise BadStream("it sends more than was asked for")
                    if digest == wanted_chunk.chunk.digest:
                        yield digest, data
                    counted(wanted_chunk.chunk.size)
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
        wanted = [self._locations[chunk.digest] for chunk in chunks]
        found = list(fetched(self._host, self._root, wanted))
        if len(found) != len(wanted):
            there = {digest for digest, _ in found}
            path = next(location.path for location in wanted if location.chunk.digest not in there)
            raise SyncError(f"{self._host.name}: {shown(path)} changed while it was sent", remedy="run again")
        return found
