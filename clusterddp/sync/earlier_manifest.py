"""Compares a manifest that hosts already have with the new one: once for all hosts that have the same."""

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
    from clusterddp.sync.project_files.project_tree import Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierManifest:
    """A manifest that hosts have, compared with the tree that they should have."""

    digest: str  # the manifest's; empty for no manifest
    manifest_part: bytes  # the tree's manifest as its difference from this one
    entries: Mapping[str, Entry]  # its files by path
    contents: frozenset[str]  # the digests of its files' contents
    changes: Changes  # what a sync would do
    needs: tuple[Entry, ...]  # the files whose content hosts do not have at the same path


class Bases:
    """The manifests that hosts may have, compared with one tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.kept_digests = tree.history.digests()
        self._read: dict[str, bytes | None] = {"": b"", tree.digest: tree.manifest}
        self._compared: dict[str, EarlierManifest] = {}
        self._lock = threading.Lock()

    def has(self, digest: str) -> bool:
        """Whether a manifest can be read: it may be damaged, and another sync may have removed it."""
        with self._lock:
            return self._manifest(digest) is not None

    def of(self, digest: str) -> EarlierManifest:
        """The manifest of this digest, one of ``kept_digests``; compared by the first thread that asks."""
        with self._lock:
            if digest not in self._compared:
                self._compared[digest] = self._compare(digest)
            return self._compared[digest]

    def data_part(self, digest: str) -> tuple[str, bytes]:
        """The project's data manifest for a host whose data manifest has this digest: as a difference if we kept it.

        The first value is the digest it is compared with; empty if the whole manifest is sent.
        """
        base = self._tree.history.read(digest) if digest else None
        if base is None:
            return "", self._tree.data_manifest
        return digest, difference(base, self._tree.data_manifest)

    def _manifest(self, digest: str) -> bytes | None:
        if digest not in self._read:
            self._read[digest] = self._tree.history.read(digest)
        return self._read[digest]

    def _compare(self, digest: str) -> EarlierManifest:
        encoded = self._manifest(digest)
        if encoded is None:
            raise ValueError(f"no manifest {digest!r:.80}")
        existing = {entry.path: entry for entry in manifest.decode(encoded)}
        part = difference(encoded, self._tree.manifest)
        changes, needs = compare(existing, self._tree.entries)
        contents = contents_of(existing)
        return EarlierManifest(
            digest=digest, manifest_part=part, entries=existing, contents=contents, changes=changes, needs=needs
        )


def contents_of(existing: Mapping[str, Entry]) -> frozenset[str]:
    """The digests of these files' contents."""
    return frozenset(entry.content for entry in existing.values() if entry.kind == manifest.FILE)


def compare(existing: Mapping[str, Entry], entries: Sequence[Entry]) -> tuple[Changes, tuple[Entry, ...]]:
    """What a sync of ``entries`` changes on a host with the ``existing`` files, and the files to be put there."""
    differing = [entry for entry in entries if existing.get(entry.path) != entry]
    changes = Changes(
        new=tuple(entry.path for entry in differing if entry.path not in existing),
        changed=tuple(entry.path for entry in differing if entry.path in existing),
        removed=tuple(sorted(existing.keys() - {entry.path for entry in entries})),
    )
    return changes, tuple(entry for entry in differing if _lacks(existing.get(entry.path), entry))


def _lacks(existing: Entry | None, entry: Entry) -> bool:
    """Whether a file's content is missing at its path, where the host has ``existing``."""
    return entry.kind == manifest.FILE and (
        existing is None or (existing.kind, existing.content) != (entry.kind, entry.content)
    )
