"""Compares a manifest that hosts already have with the new one, once for all hosts that have it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.remote.shared.workdir import manifest
from clusterddp.remote.shared.workdir.manifest_difference import difference
from clusterddp.sync.result import Changes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.remote.shared.workdir.manifest import Entry
    from clusterddp.sync.project_files import Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierManifest:
    """A manifest that hosts have, compared with the tree that they should have."""

    digest: str  # the manifest's; empty for no manifest
    manifest_part: bytes  # the tree's manifest as its difference from this one
    entries: Mapping[str, Entry]  # its files by path
    contents: frozenset[str]  # the contents of its files
    changes: Changes  # what a sync would do
    needs: tuple[Entry, ...]  # the files whose content is not at their path


class Bases:
    """The manifests that hosts may have, compared with one tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.known = tree.earlier.digests()
        self._found: dict[str, EarlierManifest] = {}
        self._lock = threading.Lock()

    def of(self, digest: str) -> EarlierManifest:
        """The manifest of ``digest``, which a host named as one of ``known``; built by the first thread that asks."""
        with self._lock:
            if digest not in self._found:
                self._found[digest] = self._made(digest)
            return self._found[digest]

    def data(self, digest: str) -> tuple[str, bytes]:
        """The project's data manifest for a host with the data of ``digest``: as a difference if that is kept.

        The first value is the digest it is compared with; empty if the whole manifest is sent.
        """
        earlier = self._tree.earlier.read(digest) if digest else None
        if earlier is None:
            return "", self._tree.data_manifest
        return digest, difference(earlier, self._tree.data_manifest)

    def _made(self, digest: str) -> EarlierManifest:
        same = digest == self._tree.digest
        data = self._tree.manifest if same else self._tree.earlier.read(digest) if digest else b""
        if data is None:
            raise ValueError(f"no manifest {digest!r:.80}")
        there = {entry.path: entry for entry in manifest.decode(data)}
        part = difference(data, self._tree.manifest)
        changes, needs = compared(there, self._tree.entries)
        contents = contents_of(there)
        return EarlierManifest(
            digest=digest, manifest_part=part, entries=there, contents=contents, changes=changes, needs=needs
        )


def contents_of(there: Mapping[str, Entry]) -> frozenset[str]:
    """The contents of these files."""
    return frozenset(entry.content for entry in there.values() if entry.kind == manifest.FILE)


def compared(there: Mapping[str, Entry], entries: Sequence[Entry]) -> tuple[Changes, tuple[Entry, ...]]:
    """What a sync of ``entries`` changes on a host with these files; files whose content is not at their path."""
    differing = [entry for entry in entries if there.get(entry.path) != entry]
    changes = Changes(
        new=tuple(entry.path for entry in differing if entry.path not in there),
        changed=tuple(entry.path for entry in differing if entry.path in there),
        removed=tuple(sorted(there.keys() - {entry.path for entry in entries})),
    )
    return changes, tuple(entry for entry in differing if _lacks(there.get(entry.path), entry))


def _lacks(there: Entry | None, entry: Entry) -> bool:
    return entry.kind == manifest.FILE and (there is None or (there.kind, there.content) != (entry.kind, entry.content))
