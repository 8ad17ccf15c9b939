"""What a host has that holds an earlier manifest, and what it lacks of the new one; found once for all such hosts."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.remote.shared import manifest
from clusterddp.remote.shared.manifest_difference import difference
from clusterddp.sync.result import Changes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.remote.shared.manifest import Entry
    from clusterddp.sync.files import Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """A manifest that hosts hold, seen from a tree that they are to hold.

    Attributes:
        digest: The manifest's; empty: none.
        told: The tree's manifest as it differs from this one.
        entries: By path.
        changes: What a sync would do.
        needs: The files whose content is not at their path.
    """

    digest: str
    told: bytes
    entries: Mapping[str, Entry]
    changes: Changes
    needs: tuple[Entry, ...]


class Bases:
    """The manifests that hosts may hold, for one tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.known = tree.earlier.digests()
        self.of = functools.cache(self._of)

    def _of(self, digest: str) -> Base:
        """The manifest of ``digest``, which a host has named as one of ``known``.

        Raises:
            ValueError: it is not here.
        """
        data = self._tree.earlier.read(digest) if digest else b""
        if data is None:
            raise ValueError(f"no manifest {digest!r:.80}")
        there = {entry.path: entry for entry in manifest.decode(data)}
        told = difference(data, self._tree.manifest)
        changes, needs = compared(there, self._tree.entries)
        return Base(digest=digest, told=told, entries=there, changes=changes, needs=needs)


def compared(there: Mapping[str, Entry], entries: Sequence[Entry]) -> tuple[Changes, tuple[Entry, ...]]:
    """What a sync of ``entries`` changes where these are, and the files whose content is not at their path."""
    differing = [entry for entry in entries if there.get(entry.path) != entry]
    changes = Changes(
        new=tuple(entry.path for entry in differing if entry.path not in there),
        changed=tuple(entry.path for entry in differing if entry.path in there),
        gone=tuple(sorted(there.keys() - {entry.path for entry in entries})),
    )
    return changes, tuple(entry for entry in differing if _lacks(there.get(entry.path), entry))


def _lacks(there: Entry | None, entry: Entry) -> bool:
    return entry.kind == manifest.FILE and (there is None or (there.kind, there.content) != (entry.kind, entry.content))
