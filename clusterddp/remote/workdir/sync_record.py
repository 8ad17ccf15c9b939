"""The sync record of a workdir: which files syncs have written there, for all hosts that share the folder.

It is in the workdir's ``.clusterddp-live`` folder (folder_lock.py): ``synced.json`` lists the digests of the manifests
whose files syncs wrote, and ``manifest.<digest>`` holds the bytes of each as it was sent. So a manifest is written
once, before any change, and its digest proves it undamaged. After an interrupted sync both the old and the new one
are listed.
"""

import os
import time
from typing import Callable, List, NamedTuple, Optional, Tuple

from ..shared.schema.fields import Fields
from ..shared.schema.json_text import read_json, to_json
from ..shared.schema.record import field, nullable, read_record, record, to_fields
from ..shared.wire.chunks import digest_of, is_digest
from ..shared.workdir import manifest
from ..shared.workdir.manifest import Disk, Entry, checked_entry, on_disk
from ..system.bootstrap import write_private
from ..system.small_files import open_regular
from .folder_lock import LIVE_FOLDER
from .stat_cache import KnownFiles, StatCache, read_stat_cache, write_stat_cache
from .verify import VerifiedFiles, prove

RECORD, MANIFEST = b"synced.json", b"manifest."
DATA_RECORD = b"data.json"  # data.py's record; here because not every sync imports data.py
_FORMAT = 2


def _digests(fields: Fields, name: str) -> Tuple[str, ...]:
    return fields.items(name, lambda one: one.check("item", is_digest, "a digest"))


@record
class _SyncFile(NamedTuple):
    """The content of ``synced.json``."""

    format: int = field(Fields.number)
    manifests: Tuple[str, ...] = field(_digests)  # the latest last
    digest: str = nullable(Fields.text, default="")  # as of ``SyncRecord``


class SyncRecord:
    """The record of what syncs have written into one folder.

    ``digest`` is that of the code there, as it was proved; empty if a sync was interrupted, or there was none.
    """

    def __init__(self, state: str, root: bytes) -> None:
        self.root = root
        self.digest = ""
        self._state = state
        self._manifests: List[str] = []  # digests, the latest last
        self._entries: Optional[List[Entry]] = None
        self._cache: Optional[StatCache] = None
        self._cache_is_read = False
        self._read()

    def _path(self, name: bytes) -> bytes:
        return os.path.join(self.root, LIVE_FOLDER, name)

    def _read(self) -> None:
        """Load the stored record; a damaged one counts as empty, so the files there count as the host's own."""
        try:
            stored = read_record(_SyncFile, read_json(os.fsdecode(self._path(RECORD))), "synced")
        except (ValueError, RecursionError):  # there is none, or others have written in the folder
            return
        if stored.format != _FORMAT or (stored.digest and stored.manifests != (stored.digest,)):
            return
        self.digest, self._manifests = stored.digest, list(stored.manifests)

    @property
    def is_complete(self) -> bool:
        """Whether one manifest lists all that syncs have written, since no sync was interrupted."""
        return self._manifests == [self.digest]

    @property
    def cache(self) -> Optional[StatCache]:
        """This host's stat cache of the folder; None without one."""
        if not self._cache_is_read:
            self._cache, self._cache_is_read = read_stat_cache(self._state, self.root), True
        return self._cache

    @property
    def entries(self) -> List[Entry]:
        """The entries that syncs have written; after an interrupted one, both the old and the new."""
        if self._entries is None:
            entries: List[Entry] = []
            for digest in self._manifests:
                try:
                    entries += [checked_entry(values) for values in manifest.values_of(self.manifest(digest))]
                except ValueError:  # others may write in the folder
                    continue
            self._entries = list(dict.fromkeys(entries))
        return self._entries

    def manifest(self, digest: str) -> bytes:
        """The bytes of a manifest that was sent here; empty where it is missing or damaged."""
        try:
            with open(self._path(MANIFEST + on_disk(digest)), "rb", opener=open_regular) as stream:
                data = stream.read()
        except (OSError, ValueError):
            return b""
        return data if digest_of(data) == digest else b""

    def disk(self) -> Disk:
        """Return the folder's current state, with the file hashes that this host remembers.

        Hashes are reused within one boot only: a power loss can undo what stats promise.
        """
        return Disk(self.root, self.cache.hashes(), self.cache.at) if self.cache else Disk(self.root)

    def verify_files(self, check_lock: Callable[[], None] = lambda: None) -> Optional[VerifiedFiles]:
        """Return how the folder differs from the manifest of ``digest``; None if that manifest is not there.

        Only files whose stats are not as this host remembers them are read.
        """
        began = time.time_ns()
        cache_is_current = self.cache is not None and self.cache.digest == self.digest
        manifest_bytes = b"" if cache_is_current else self.manifest(self.digest)
        if not cache_is_current and digest_of(manifest_bytes) != self.digest:
            return None
        try:
            manifest_bytes = self.cache.manifest if cache_is_current and self.cache else manifest_bytes
            known = KnownFiles.from_cache(self.cache, manifest_bytes)
        except (ValueError, RecursionError):  # others may write in the folder
            return None
        proof = prove(self.root, known.lines, known.paths, known.stats, known.at, check_lock)
        if not proof.differs and (proof.read or not cache_is_current):
            self.save_stats(known, proof, began)
        return proof

    def unchanged_entries(self) -> List[Entry]:
        """Return the entries that nobody has changed since a sync wrote them."""
        put = set(self.entries)
        return [entry for entry in self.present_entries(self.disk()) if entry in put]

    def present_entries(self, disk: Disk) -> List[Entry]:
        """Return the entries now on ``disk`` at the paths that syncs have written."""
        paths = dict.fromkeys(entry.path for entry in self.entries)
        return [entry for entry in map(disk.entry, paths) if entry]

    def begin(self, digest: str, data: bytes) -> None:
        """Record, before any change, that the files of one more manifest are written by us from now on."""
        if not data or self.manifest(digest) != data:  # one that is missing reads as that of a project without code
            write_private(os.fsdecode(self._path(MANIFEST + on_disk(digest))), data, durable=False)
        self._manifests = [*(earlier for earlier in self._manifests if earlier != digest), digest]
        self.digest, self._entries = "", None
        self.save(durable=False)  # fsync is slow; after a power loss more files are kept aside, and none is lost

    def complete(self, digest: str, known: "KnownFiles", proof: VerifiedFiles, read_at: int) -> None:
        """Record that ``proof``, begun at ``read_at`` (ns), found the folder as in the manifest of ``digest``."""
        handle = os.open(self._path(MANIFEST + on_disk(digest)), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        self.digest, self._manifests, self._entries = digest, [digest], None
        self.save()
        for name in os.listdir(os.path.join(self.root, LIVE_FOLDER)):
            if name.startswith(MANIFEST) and name != MANIFEST + on_disk(digest):
                os.unlink(self._path(name))
        self.save_stats(known, proof, read_at)

    def save(self, *, durable: bool = True) -> None:
        """Write the record to disk; with ``durable`` it survives a power loss (fsync)."""
        stored = _SyncFile(_FORMAT, tuple(self._manifests), self.digest)
        text = to_json(to_fields(stored)).encode()
        write_private(os.fsdecode(self._path(RECORD)), text, durable=durable)

    def save_stats(self, known: "KnownFiles", proof: VerifiedFiles, read_at: int) -> None:
        """Save the stats that ``proof`` found to the stat cache; ``read_at``: when (ns) it began to read the files."""
        chunk_lists = {**known.chunk_lists, **proof.chunk_lists}
        self._cache = StatCache(self.digest, read_at, known.paths, proof.stats, chunk_lists, known.manifest)
        write_stat_cache(self._state, self.root, self._cache)


def changed_files(state: str, workdir: str) -> List[str]:
    """Return the paths in a workdir that were changed since the last sync; no lock is taken, nothing is written.

    Empty if no sync has written any, and after an interrupted one, which the next sync repairs.
    """
    record = SyncRecord(state, os.path.realpath(on_disk(workdir)))
    if not record.digest:
        return []
    unchanged = set(record.unchanged_entries())
    return [entry.path for entry in record.entries if entry not in unchanged]
