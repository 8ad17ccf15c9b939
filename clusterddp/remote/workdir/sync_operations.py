"""The operations ``workdir_state`` and ``sync_apply``: bring a project into its workdir, and prove its code.

A record lists what earlier syncs wrote there. Only that is replaced or deleted, and only where nobody changed it. While
a run is live in the workdir, on any host that shares it, a sync that would change files there is refused. data.py
decides which of the project's data is written.
"""

import os
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple, Union

from ..helper.request import Request
from ..shared.schema.record import to_fields
from ..shared.wire.chunk_stream import ChunkStream
from ..shared.wire.chunks import digest_of
from ..shared.wire.partial_files import parts_in
from ..shared.workdir import manifest
from ..shared.workdir.manifest import Disk, Entry, Hashes, as_text, checked_entry, on_disk
from ..shared.workdir.manifest_difference import dropped_lines, lines_of, pieces_of
from ..shared.workdir.sync_records import DataThere, HostChanged, StandingVersions, Synced, SyncRequest, WorkdirState
from ..system.bootstrap import Refused
from ..transfer.chunk_files import PARTS, Assembly
from ..transfer.chunk_source import chunk_stream
from ..transfer.descriptor_walk import open_or_make
from ..transfer.stream_head import manifest_of, read_head
from .case_folding import refuse_folded
from .folder_lock import LIVE_FOLDER, FolderLock
from .links import make_links
from .stat_cache import KnownFiles, chunk_lists_of, unpack_stats
from .sync_record import DATA_RECORD, SyncRecord
from .update import WorkdirUpdate
from .verify import VerifiedFiles, prove
from .workdir import LockedWorkdir, Workdir, read_workdir, shared_identity

if TYPE_CHECKING:
    from .data import DataPlan

_MAX_NAMED = 20  # most paths in an answer that the host has changed


def workdir_state(request: Request) -> Dict[str, Any]:
    """Operation: whether a workdir holds the code of ``digest``, proved; else what it holds.

    Takes a ``SyncRequest``, returns a ``WorkdirState`` (shared/workdir/sync_records.py). Raises Refused if the folder
    may not be a workdir, or another sync holds it for long.
    """
    return to_fields(inspect_workdir(request.state, request.read_args(SyncRequest)))


def inspect_workdir(state: str, order: SyncRequest) -> WorkdirState:
    """What a workdir holds of the code and data that a sync would write; ``state`` is our state folder."""
    # The folder is made already by this operation, so that the answer shows which hosts share it.
    with LockedWorkdir(state, order, make=bool(order.digest) and order.made) as lock:
        folder = read_workdir(state, lock.root)
        code = _inspect_code(state, order, folder.record, lock.check)
        if order.digest and code.digest != order.digest:
            folder.refuse_live()
        has_code = bool(code.digest) and code.digest == order.digest
        # A preview reports nothing for good, nor a question that a transfer follows, which may fail.
        data = _inspect_data(state, order, lock, mark=order.made and has_code)
        answer = WorkdirState(
            ready=has_code and data.settled,
            digest=code.digest,
            workdir=as_text(folder.path),
            live=tuple(sorted({live.run for live in folder.live})),
            shared=shared_identity(lock.root),
            notice=folder.notice,
            links=(),
            data=data,
        )
        if answer.ready:
            return answer._replace(links=tuple(_make_links_and_folders(order, folder))) if order.made else answer
        chunks = code.chunks | parts_in(os.path.join(folder.path, LIVE_FOLDER, PARTS), lock.check)
        return answer._replace(base=code.base, have=code.have, missing=code.missing, chunks=sorted(chunks))


def _inspect_data(state: str, order: SyncRequest, lock: FolderLock, *, mark: bool) -> DataThere:
    """What a workdir holds of a project's data; with ``mark``, host versions in the answer count as reported."""
    root = lock.root
    if _is_without_data(order, root):
        return DataThere(settled=True)
    from .data import DataRecord

    digest = order.data or ""
    record = DataRecord(state, root, lock.check)
    if record.is_settled(digest):
        standing = record.report_standing(record.standing(), mark=mark)
        return DataThere(settled=True, digest=digest, standing=standing)
    empty = not (os.path.isdir(root) and set(os.listdir(root)) - {LIVE_FOLDER})
    return DataThere(settled=False, digest=record.digest, empty=empty)


def _is_without_data(order: SyncRequest, root: bytes) -> bool:
    """Whether a sync handles no data: not asked to, or neither project nor workdir has any; it spares data's import."""
    return order.data is None or not (order.data or os.path.lexists(os.path.join(root, LIVE_FOLDER, DATA_RECORD)))


class _CodeState(NamedTuple):
    """What a workdir holds of the code; the fields are those of ``WorkdirState``."""

    digest: str
    base: str
    have: List[Entry]
    missing: List[str]
    chunks: Set[str]


def _inspect_code(state: str, order: SyncRequest, record: SyncRecord, check_lock: Callable[[], None]) -> _CodeState:
    """What a workdir holds of the code, with as few files read as the sync's next step allows."""
    if record.is_complete and record.digest in order.known and order.digest != record.digest and not order.prove:
        # Files changed there are found by the proof at the end.
        return _CodeState("", record.digest, [], [], _digests(chunk_lists_of(state, record.root).values()))
    proof = record.verify_files(check_lock) if record.is_complete else None
    if proof is not None and not proof.differs and order.digest in ("", record.digest):
        return _CodeState(record.digest, record.digest, [], [], set())
    if proof is not None and record.digest in order.known:
        return _code_by_difference(record, proof)
    disk = record.disk()
    have = record.present_entries(disk)
    chunks = _digests(disk.chunk_lists().values())
    is_proved = proof is not None and have == record.entries  # without the manifest no entry is known
    return _CodeState(record.digest if is_proved else "", "", have, [], chunks)


def _code_by_difference(record: SyncRecord, proof: VerifiedFiles) -> _CodeState:
    """Describe the folder's files by how they differ from the manifest that the last sync recorded."""
    lines = lines_of(record.manifest(record.digest)) if proof.differs else []
    expected = {number: checked_entry(manifest.values_of(lines[number])[0]) for number in proof.differs}
    have = [entry for entry in proof.differs.values() if entry]
    missing = [expected[number].path for number, entry in proof.differs.items() if not entry]
    chunk_lists = dict(record.cache.chunk_lists if record.cache else {})
    for entry in expected.values():
        chunk_lists.pop(entry.content, None)
    chunk_lists.update(proof.chunk_lists)
    return _CodeState(
        "" if proof.differs else record.digest, record.digest, have, missing, _digests(chunk_lists.values())
    )


def _digests(chunk_lists: Iterable[List[str]]) -> Set[str]:
    return {digest for digests in chunk_lists for digest in digests}


def sync_apply(request: Request) -> Dict[str, Any]:
    """Operation: bring a workdir to the manifest sent, then check every file of it and prove the digest.

    The operator's data (shared/wire/chunk_stream.py) is the manifest, as a difference from that of ``base``, the lists
    of chunks, then the chunks that this host lacks. Takes a ``SyncRequest``; returns a ``Synced``, or a ``HostChanged``
    where the host lacks contents that were not sent, or the user has to decide (shared/workdir/sync_records.py). Raises
    Refused if a path leads out of the workdir, the disk is full, the digest differs and so on.
    """
    return to_fields(apply_sync(request, request.read_args(SyncRequest)))


def apply_sync(request: Request, order: SyncRequest) -> Union[Synced, HostChanged]:
    """Do what ``sync_apply`` does, with its arguments decoded."""
    incoming = chunk_stream(request, spread=order.spread)
    head, chunk_lists = read_head(incoming, order.manifest, order.chunk_lists)
    size = len(head) - order.data_size
    with LockedWorkdir(request.state, order, make=True) as lock:
        request.while_waiting = lock.check
        try:
            sent = _decode_sent(request.state, order, lock.root, head[:size], chunk_lists)
            if sent is None:
                return HostChanged(missing=())
            data = None
            if not _is_without_data(order, lock.root):
                data = _plan_data(request.state, order, lock, head[size:])
                if data is None:
                    return HostChanged(missing=())
            if data and data.decision.conflicts:
                return HostChanged(missing=(), conflicts=data.decision.conflicts)
            return _apply(request.state, order, lock, sent, data, incoming)
        except manifest.BadManifest as error:
            raise Refused(str(error)) from error


def _plan_data(state: str, order: SyncRequest, lock: FolderLock, sent: bytes) -> "Optional[DataPlan]":
    """What to do with the project's data; None where another sync came in between."""
    from .data import plan_data

    return plan_data(state, order, SyncRecord(state, lock.root), sent, lock.check)


class _SentManifest(NamedTuple):
    """A manifest that was sent, its ``difference`` from the ``earlier`` one of digest ``base``, and chunk lists."""

    manifest: bytes
    difference: bytes
    base: str
    earlier: bytes
    chunk_lists: Dict[str, List[str]]


def _decode_sent(
    state: str, order: SyncRequest, root: bytes, difference: bytes, chunk_lists: Dict[str, List[str]]
) -> Optional[_SentManifest]:
    """Decode what was sent; None if another sync has replaced the manifest of ``base`` meanwhile."""
    digest, base = order.digest, order.base
    if not base:
        return _SentManifest(manifest_of(difference, digest), difference, "", b"", chunk_lists)
    record = SyncRecord(state, root)
    earlier = record.manifest(base)
    if digest_of(earlier) == base:
        return _SentManifest(manifest_of(difference, digest, earlier), difference, base, earlier, chunk_lists)
    existing = record.manifest(digest)
    if digest_of(existing) == digest:  # a host that shares the folder has written it there
        return _SentManifest(existing, b"=0,%d\n" % existing.count(b"\n"), digest, existing, chunk_lists)
    return None


def _apply(
    state: str,
    order: SyncRequest,
    lock: FolderLock,
    sent: _SentManifest,
    data: "Optional[DataPlan]",
    incoming: ChunkStream,
) -> Union[Synced, HostChanged]:
    """Update the workdir, whose lock is held, prove its files and record the result."""
    folder = read_workdir(state, lock.root)
    target, record = folder.path, folder.record
    began = time.time_ns()
    by_difference = record.is_complete and record.digest == sent.base and not folder.live and not order.edited
    plan = None if by_difference else manifest.decode(sent.manifest)
    update, files_to_prove = (
        _update_of_changes(record, sent, data, lock, reuse=order.reuse)
        if plan is None
        else _update_of_all(record, sent, plan, data, lock)
    )
    if order.data is None:
        _leave_data_alone(state, lock, update)
    if update.changes:
        folder.refuse_live()
    update.check()
    record.begin(order.digest, sent.manifest)
    parts = Assembly(os.path.join(update.open_root(), LIVE_FOLDER, PARTS), sent.chunk_lists, lock.check)
    try:
        missing = update.stage(parts, incoming, _all_entries(sent.manifest, plan, data))
        if missing:
            return HostChanged(missing=tuple(missing[:_MAX_NAMED]))
        if data:
            data.begin()
        update.commit()
    finally:
        parts.close()
        update.close()
    # Files read, known or written since the beginning, and not changed since, are not read once more.
    ended = time.time_ns()
    known = files_to_prove(began, ended)
    proof = prove(target, known.lines, known.paths, known.stats, known.at, lock.check)
    differing = [as_text(known.paths[number]) for number in proof.differs]
    kept = tuple((path, kept_as) for path, kept_as in update.kept)
    if differing and by_difference and not update.planned.issuperset(differing):
        # They were changed on this host, before or during the sync.
        return HostChanged(missing=tuple(differing[:_MAX_NAMED]), removed=update.removed, kept=kept)
    if differing:
        remedy = "sync again; is another program writing there?"
        raise Refused("%s on this host is not what was synced" % differing[0], remedy)
    record.complete(order.digest, known, proof, ended)
    return Synced(
        workdir=as_text(target),
        digest=record.digest,
        sent=update.sent,
        removed=update.removed,
        kept=kept,
        notice=folder.notice,
        links=tuple(_make_links_and_folders(order, folder)),
        standing=data.complete() if data else StandingVersions(),
    )


def _leave_data_alone(state: str, lock: FolderLock, update: WorkdirUpdate) -> None:
    """Let files that were data once stay though they are code no more: code of an earlier time reads them as data."""
    if not os.path.lexists(os.path.join(lock.root, LIVE_FOLDER, DATA_RECORD)):
        return
    from .data import DataRecord

    record = DataRecord(state, lock.root, lock.check)
    spared = update.spare(set(record.entries(record.disk())))
    record.begin([entry for entry in spared if entry not in record.left])  # a sync's still, once it is code again


_UpdateAndProof = Tuple[
    WorkdirUpdate, Callable[[int, int], KnownFiles]
]  # the update; the files to prove afterwards, given the times (ns) at which it began and ended


def _update_of_all(
    record: SyncRecord, sent: _SentManifest, plan: List[Entry], data: "Optional[DataPlan]", lock: FolderLock
) -> _UpdateAndProof:
    """Plan an update to the entries ``plan`` of the manifest, for which all of the folder's files are inspected."""
    _refuse_clashes([on_disk(entry.path) for entry in plan], data, record)
    entries, earlier = _add_data(plan, record.entries, data)
    update = WorkdirUpdate(record, entries, lock.check, earlier)

    def files_to_prove(began: int, placed: int) -> KnownFiles:
        seen = {
            path: hashes for path, hashes in update.disk.seen.items() if hashes[0][2] < began - manifest.RACY_INTERVAL
        }
        return KnownFiles.from_disk(sent.manifest, plan, dict(seen, **update.as_verified), placed)

    return update, files_to_prove


def _add_data(code: List[Entry], earlier: List[Entry], data: "Optional[DataPlan]") -> Tuple[List[Entry], List[Entry]]:
    """Add the project's data to the entries to place (``code``) and to those that syncs wrote ``earlier``."""
    if data is None:
        return code, earlier
    data_paths = {entry.path for entry in data.project}  # a file that was code and is data by now is not obsolete
    paths = [entry.path for entry in (*code, *data.decision.put)]
    earlier_data = [data.before[path] for path in paths if path in data.before]
    return [*code, *data.decision.put], [*(entry for entry in earlier if entry.path not in data_paths), *earlier_data]


def _refuse_clashes(code: List[bytes], data: "Optional[DataPlan]", record: SyncRecord) -> None:
    """Refuse files of code and data that cannot be in one folder together."""
    paths = [*code, *(on_disk(entry.path) for entry in (data.project if data else ()))]
    manifest.check_together(paths)
    refuse_folded(record.root, paths)


def _update_of_changes(
    record: SyncRecord, sent: _SentManifest, data: "Optional[DataPlan]", lock: FolderLock, *, reuse: bool
) -> _UpdateAndProof:
    """Plan an update for which only files in the manifests' difference are inspected.

    The final proof checks that the rest is unchanged. With ``reuse``, chunks are also taken from the other files here.
    """
    cache, lines = record.cache, lines_of(sent.earlier)
    pieces = pieces_of(sent.difference, len(lines))  # each a new line, or a range of the earlier manifest's lines
    added = [checked_entry(manifest.values_of(line)[0]) for line in pieces if isinstance(line, bytes)]
    numbers = dropped_lines(len(lines), pieces)
    dropped = [checked_entry(manifest.values_of(lines[number])[0]) for number in numbers]
    cache_matches_earlier = cache is not None and cache.manifest == sent.earlier
    known = KnownFiles.from_cache(cache, sent.manifest, pieces if cache_matches_earlier else ())
    new_paths = {entry.path for entry in added}
    if len(new_paths) < len(added) or new_paths - {entry.path for entry in dropped} or (data and data.decision.put):
        _refuse_clashes(known.paths, data, record)
    hashes: Hashes = {}
    if cache and cache_matches_earlier:
        for entry, stats in zip(dropped, (cache.stats[number] for number in numbers)):
            if stats and entry.kind == manifest.FILE:
                hashes[entry.path] = (unpack_stats(stats), cache.chunk_lists.get(entry.content, [entry.content]))
    disk = Disk(record.root, hashes, cache.at if cache else 0)
    entries, earlier = _add_data(added, dropped, data)
    update = WorkdirUpdate(record, entries, lock.check, earlier, disk)
    if reuse and cache:
        disk.seen.update({path: stats for path, stats in cache.hashes().items() if path not in disk.seen})
    return update, lambda *_: known  # complete before anything is placed


def _all_entries(code: bytes, plan: Optional[List[Entry]], data: "Optional[DataPlan]") -> Iterable[Entry]:
    """All entries of a transfer: those of the manifest ``code``, decoded here unless ``plan`` has them, and the data's.

    They are decoded only when they are iterated.
    """
    yield from map(checked_entry, manifest.values_of(code)) if plan is None else plan
    yield from data.project if data else ()


def _make_links_and_folders(order: SyncRequest, folder: Workdir) -> List[str]:
    """Make the links to data and the workers' cwd in a ready workdir; returns lines for the user."""
    notices = make_links(folder.path, order.links)
    for folder_path in order.folders:
        os.close(open_or_make(os.path.join(folder.path, on_disk(manifest.checked_path(folder_path)))))
    return notices
