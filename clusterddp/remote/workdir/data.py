"""data_state, and the decision which project data a sync writes and which of the host's own versions it keeps.

Data is what a project holds besides code. Three versions of a path are compared: the one that a sync last wrote, the
one that the project has now, and the one that the host has now.

    host = last written, or nothing was ever there    the project's version is written
    project = last written, or project = host         the host's version stays
    all three differ                                  a conflict: the user decides, nothing is changed

So a checkpoint that a run rewrites is not overwritten, and a file that somebody removed on the host stays removed. What
is removed from the project stays on the host.

The record lies in the workdir's ``.clusterddp-live`` folder (folder_lock.py), for all hosts that share the workdir:
``data.json``, and ``data.<digest>``, the manifest of the project's data at the last sync, byte for byte as it was sent.
What a sync is about to write is listed there before, so that it counts as a sync's if that breaks off.
"""

import os
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Union

from ..helper.request import Request
from ..shared.schema.fields import Fields
from ..shared.schema.json_text import read_json, to_json
from ..shared.schema.record import bulk, field, read_record, record, to_fields
from ..shared.wire.chunks import digest_of
from ..shared.wire.partial_files import parts_in
from ..shared.workdir import manifest
from ..shared.workdir.manifest import Disk, Entry, checked_entry, checked_path, on_disk
from ..shared.workdir.sync_records import DataState, HostChanged, StandingVersions, SyncRequest
from ..system.bootstrap import Refused, write_private
from ..transfer.chunk_files import PARTS
from ..transfer.chunk_source import chunk_stream
from ..transfer.stream_head import manifest_of, read_head
from .folder_lock import LIVE_FOLDER
from .hashes import StoredHashes
from .sync_record import DATA_RECORD, SyncRecord
from .workdir import LockedWorkdir

PROJECT, HOST = "project", "host"  # whose version wins where all three differ
_MANIFEST = b"data."
_FORMAT = 1
_MAX_NAMED = 200  # paths in an answer


class Standing(NamedTuple):
    """A path where the host's own version stays, and the ``content`` of its entry: empty if the file was removed."""

    path: str
    content: str


class DataDecision(NamedTuple):
    """What a sync does with the project's data: entries to write, host versions that stay, paths in conflict."""

    put: List[Entry]  # entries to write
    standing: List[Standing]  # the host's versions that stay
    conflicts: List[str]  # paths


def decide(
    before: Dict[str, Entry], project: Iterable[Entry], now: Callable[[str], Optional[Entry]], take: str = ""
) -> DataDecision:
    """Decide for each path of the project's data whether it is written, stays as it is on the host, or is a conflict.

    ``before`` is what a sync last wrote, by path; ``project`` what the project has now; ``now`` returns what the host
    has at a path, None for nothing. Where all three differ the version of ``take`` wins (PROJECT or HOST); without
    ``take`` the path is a conflict.
    """
    decision = DataDecision([], [], [])
    for entry in project:
        last, present = before.get(entry.path), now(entry.path)
        if present and _is_same(present, entry):
            if present.executable != entry.executable and not (last and last.executable == entry.executable):
                decision.put.append(entry)  # only its mode is set
            continue
        if _is_same(present, last) or (take == PROJECT and not _is_same(entry, last)):
            decision.put.append(entry)
        elif _is_same(entry, last) or take == HOST:
            decision.standing.append(Standing(entry.path, present.content if present else ""))
        else:
            decision.conflicts.append(entry.path)
    return decision


def _is_same(first: Optional[Entry], second: Optional[Entry]) -> bool:
    """Whether both versions are the same file or link, or both are missing; the mode is ignored."""
    if first is None or second is None:
        return first is second
    same = (first.kind, first.content) == (second.kind, second.content)
    return same and first.kind in (manifest.FILE, manifest.LINK)


@record
class _DataFile(NamedTuple):
    """The content of ``data.json``."""

    format: int = field(Fields.number)
    digest: str = field(Fields.text)  # of the project's data at the last sync
    left: List[Any] = bulk(Fields.long_list)  # entries: written earlier, and no longer in the project
    named: List[str] = bulk(Fields.long_texts)  # paths of host versions that were reported already
    placing: Sequence[Any] = bulk(Fields.long_list, default=())  # entries that an interrupted sync may have written


class DataRecord:
    """The record of what syncs have written into a workdir as data.

    ``manifest`` is that of the project's data at the last sync, ``digest`` its digest; both are empty if there was no
    data or no sync. ``left`` are entries that were written earlier, and were no longer in the project then.
    ``check`` is called before each chunk of a file is read.
    """

    def __init__(self, state: str, root: bytes, check: Callable[[], None] = lambda: None) -> None:
        self.root, self._check = root, check
        self.digest, self.manifest = "", b""
        self._hashes = StoredHashes(state, root, "data")
        self._put: List[Entry] = []  # the project's data at the last sync
        self.left: List[Entry] = []
        self._named: List[str] = []  # paths of host versions that were reported already
        self._placing: List[Entry] = []  # what syncs that were interrupted may have written
        try:
            self._load(read_json(os.fsdecode(self._path(DATA_RECORD))))
        except (OSError, ValueError, TypeError, LookupError, RecursionError):  # others may write in the folder
            pass

    def _path(self, name: bytes) -> bytes:
        return os.path.join(self.root, LIVE_FOLDER, name)

    def _load(self, data: Any) -> None:
        """Load the stored record; each path in it is checked like one that was sent."""
        stored = read_record(_DataFile, data, "data")
        if stored.format != _FORMAT:
            return
        self.left = [checked_entry(entry) for entry in stored.left]
        self._named = [checked_path(path) for path in stored.named]
        self._placing = [checked_entry(entry) for entry in stored.placing]
        if stored.digest:
            with open(self._path(_MANIFEST + on_disk(stored.digest)), "rb") as stream:
                sent = stream.read()
            if digest_of(sent) == stored.digest:
                self._put = manifest.decode(sent)
                self.digest, self.manifest = stored.digest, sent

    def is_settled(self, digest: str) -> bool:
        """Whether the project's data of this digest was synced here, and no sync was interrupted since."""
        return self.digest == digest and not self._placing

    def entries(self, disk: Disk) -> Dict[str, Entry]:
        """Return what syncs last wrote, by path.

        What has left the project, and what an interrupted sync may have written, counts only if it is on ``disk``; the
        mode that such a sync was to set may not be set yet.
        """
        left = [entry for entry in self.left if disk.info(entry.path) is not None]
        placing = [(entry, disk.entry(entry.path)) for entry in self._placing]
        placed = [present for entry, present in placing if present and _is_same(present, entry)]
        return {entry.path: entry for entry in (*left, *self._put, *placed)}

    def unchanged_paths(self) -> List[str]:
        """Return the paths at which the host still has what a sync last wrote."""
        disk = self.disk()
        return [path for path, entry in self.entries(disk).items() if _is_same(disk.entry(path), entry)]

    def standing(self) -> List[Standing]:
        """Return the host's own versions at paths that were the project's data at the last sync."""
        put, disk = {entry.path: entry for entry in self._put}, self.disk()
        standing = decide(put, self._put, disk.entry).standing
        self.save_hashes(disk)
        return standing

    def disk(self) -> Disk:
        """Return the workdir's current state, with the file hashes that are kept."""
        disk = self._hashes.disk()
        disk.check = self._check
        return disk

    def save_hashes(self, disk: Disk) -> None:
        """Save the hashes of the files in ``disk``, if any file had to be read."""
        if disk.hashed:
            self._hashes.save(disk)

    def report_standing(self, standing: List[Standing], *, mark: bool = True) -> StandingVersions:
        """Return for the operator the host versions that stay, and with ``mark`` record them as reported."""
        paths, named = [entry.path for entry in standing], set(self._named)
        unreported = [path for path in paths if path not in named]
        if mark and set(paths) != named:
            self._named = paths
            self._save()
        listed = tuple((entry.path, entry.content) for entry in standing[:_MAX_NAMED])
        return StandingVersions(listed, tuple(unreported[:_MAX_NAMED]))

    def begin(self, entries: List[Entry]) -> None:
        """Record, before any change, that these entries count as a sync's from now on, where they are on disk."""
        recorded = {*self._put, *self._placing}
        new = [entry for entry in entries if entry not in recorded]
        if new:
            self._placing += new
            self._save()

    def complete(self, digest: str, sent: bytes, project: List[Entry], left: List[Entry]) -> None:
        """Record that the project's data was synced to this workdir, whichever host versions were kept.

        ``left`` are entries that were written earlier, and are no longer in the project.
        """
        old = self._path(_MANIFEST + on_disk(self.digest)) if self.digest not in ("", digest) else b""
        self.digest, self.manifest, self._put, self.left, self._placing = digest, sent, project, left, []
        if digest:
            write_private(os.fsdecode(self._path(_MANIFEST + on_disk(digest))), sent, durable=False)
        self._save()
        if old:
            os.unlink(old)

    def _save(self) -> None:
        stored = _DataFile(_FORMAT, self.digest, self.left, self._named, self._placing)
        write_private(os.fsdecode(self._path(DATA_RECORD)), to_json(to_fields(stored)).encode(), durable=False)


class DataPlan(NamedTuple):
    """What a sync is to do with the project's data."""

    record: DataRecord
    digest: str
    sent: bytes
    project: List[Entry]  # all of the project's data
    before: Dict[str, Entry]  # what was last written, by path
    left: List[Entry]  # written earlier, and no longer in the project
    decision: DataDecision

    def begin(self) -> None:
        """Record, before any change, what is going to be written or is there already, as code for instance."""
        standing = {entry.path for entry in self.decision.standing}
        self.record.begin([entry for entry in self.project if entry.path not in standing])

    def complete(self) -> StandingVersions:
        """Record what was done, and return the host versions that stay, as ``DataRecord.report_standing`` does."""
        if self.record.is_settled(self.digest):
            return self.record.report_standing(self.record.standing())
        self.record.complete(self.digest, self.sent, self.project, self.left)
        return self.record.report_standing(self.decision.standing)


def data_state(request: Request) -> Dict[str, Any]:
    """Report what a sync would do with the project's data; nothing is changed.

    The operator sends the manifest of the project's data, as a difference from that of ``data_base``. Takes a
    ``SyncRequest``; returns a ``DataState``, or a ``HostChanged`` (shared/workdir/sync_records.py).
    """
    return to_fields(_data_state(request, request.read_args(SyncRequest)))


def _data_state(request: Request, order: SyncRequest) -> Union[DataState, HostChanged]:
    """What ``data_state`` reports; HostChanged if another sync has changed the workdir's data meanwhile."""
    sent, _ = read_head(chunk_stream(request, spread=order.spread), order.manifest, order.chunk_lists)
    with LockedWorkdir(request.state, order, make=False) as lock:
        try:
            data = plan_data(request.state, order, SyncRecord(request.state, lock.root), sent, lock.check)
        except manifest.BadManifest as error:
            raise Refused(str(error)) from error
        if data is None:
            return HostChanged(missing=())
        disk, put = data.record.disk(), data.decision.put
        present = [disk.entry(entry.path) for entry in put]
        new = sorted(entry.path for entry, there in zip(put, present) if there is None)
        placed = [entry.path for entry, there in zip(put, present) if _is_same(there, entry)]
        chunks = disk.chunks() | parts_in(os.path.join(lock.root, LIVE_FOLDER, PARTS), lock.check)
        return DataState([entry.path for entry in put], new, placed, data.decision.conflicts, sorted(chunks))


def plan_data(
    state: str, order: SyncRequest, code: SyncRecord, difference: bytes, check_lock: Callable[[], None]
) -> Optional[DataPlan]:
    """Decide what a sync does with the project's data; None if another sync has changed the workdir's data meanwhile.

    ``code`` is the record of the workdir's code: what was written as code may be data by now. ``difference`` is what
    was sent: the data's manifest, as a difference from that of ``data_base``.
    """
    record, digest, base = DataRecord(state, code.root, check_lock), order.data or "", order.data_base
    if record.is_settled(digest):
        project = manifest.decode(record.manifest)
        before = {entry.path: entry for entry in record.left}  # any of these may be code by now
        return DataPlan(record, digest, record.manifest, project, before, [], DataDecision([], [], []))
    if base and record.digest != base:
        return None
    sent = manifest_of(difference, digest, record.manifest if base else b"") if digest else b""
    project = manifest.decode(sent)
    disk = record.disk()
    written = record.entries(disk)
    before = {entry.path: entry for entry in code.entries}
    for path, entry in written.items():
        if path not in before or _is_same(disk.entry(path), entry):  # what was data may have been code since
            before[path] = entry
    paths = {entry.path for entry in project}
    left = [entry for path, entry in written.items() if path not in paths and disk.info(path) is not None]
    decision = decide(before, project, disk.entry, order.take)
    record.save_hashes(disk)
    return DataPlan(record, digest, sent, project, before, left, decision)
