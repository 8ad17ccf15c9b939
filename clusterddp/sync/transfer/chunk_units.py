"""Groups the chunks that hosts lack into units of at most 4 MiB, which are passed from host to host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterddp.remote.shared.wire.chunk_stream import MAX_CHUNKS
from clusterddp.remote.shared.wire.chunks import CHUNK

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from clusterddp.remote.shared.wire.chunks import Chunk

_MAX_RANGES = 256  # of one unit


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """Chunks that travel together, and their ranges (first, after the last) in the list of all chunks."""

    ranges: tuple[tuple[int, int], ...]
    chunks: tuple[Chunk, ...]

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return sum(chunk.size for chunk in self.chunks)


def units_of(
    chunks: Sequence[Chunk], lacking: Mapping[str, Container[Chunk]]
) -> tuple[list[Unit], dict[str, list[int]]]:
    """Return the units of a transfer, and for each host the numbers of those that it lacks.

    ``chunks`` are all of the transfer, each once, in an order that every host knows; ``lacking`` are those of each
    host.
    """
    open_groups: dict[tuple[str, ...], _Group] = {}
    units: list[Unit] = []
    wants: dict[str, list[int]] = {name: [] for name in lacking}

    def close(hosts: tuple[str, ...], group: _Group) -> None:  # makes a unit of the group
        for name in hosts:
            wants[name].append(len(units))
        units.append(Unit(ranges=tuple(group.ranges), chunks=tuple(group.chunks)))

    for number, chunk in enumerate(chunks):
        hosts = tuple(name for name, chunks_lacking in lacking.items() if chunk in chunks_lacking)
        if not hosts:
            continue
        group = open_groups.setdefault(hosts, _Group())
        if not group.has_room_for(number, chunk):
            close(hosts, group)
            group = open_groups[hosts] = _Group()
        group.add(number, chunk)
    for hosts, group in open_groups.items():
        close(hosts, group)
    return units, wants


@dataclass(kw_only=True, slots=True)
class _Group:
    """A unit that is being filled, with chunks that the same hosts lack."""

    ranges: list[tuple[int, int]] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    size: int = 0

    def has_room_for(self, number: int, chunk: Chunk) -> bool:
        """Whether a chunk, with its number in the list of all chunks, still fits."""
        is_full = self.chunks and self.size + chunk.size > CHUNK
        range_fits = len(self.ranges) < _MAX_RANGES or self.ranges[-1][1] == number
        return not is_full and len(self.chunks) < MAX_CHUNKS and range_fits

    def add(self, number: int, chunk: Chunk) -> None:
        if self.ranges and self.ranges[-1][1] == number:
            self.ranges[-1] = (self.ranges[-1][0], number + 1)
        else:
            self.ranges.append((number, number + 1))
        self.chunks.append(chunk)
        self.size += chunk.size
