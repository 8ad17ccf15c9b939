"""Syncs the project's files to hosts, so that each has the same manifest, proved by its digest.

Two round trips at most: every host is asked whether it has the digest already; the others are sent the manifest and the
chunks they lack, each read and compressed once for all hosts. A host that has other data of the project is asked once
more which of it would be replaced, so that a conflict on one host is reported before any host is changed.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from clusterddp.errors import HostError, SyncError
from clusterddp.hosts import fanout
from clusterddp.hosts.answers import PATHS_LIMIT, Limit
from clusterddp.hosts.ask import ask, reading_answer
from clusterddp.remote.shared.schema.record import read_record, to_fields
from clusterddp.remote.shared.wire.chunk_stream import bundles_of
from clusterddp.remote.shared.workdir.manifest import FILE, Entry
from clusterddp.remote.shared.workdir.sync_records import (
    DataState,
    HostChanged,
    StandingVersions,
    Synced,
    SyncRequest,
    WorkdirState,
    read_unless_changed,
)
from clusterddp.sync.earlier_manifest import Bases, compare, contents_of
from clusterddp.sync.project_files.project_tree import is_code
from clusterddp.sync.result import Changes, HostSync, KeptFile, StandingData, SyncResult, refuse_conflicts
from clusterddp.sync.transfer.progress_rate import Transfer
from clusterddp.sync.transfer.send import send
from clusterddp.sync.transfer.transfer_task import AUTO
from clusterddp.sync.transfer.upload import Files, Uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.remote.shared.wire.chunks import Chunk
    from clusterddp.sync.project_files.project_tree import Tree
    from clusterddp.sync.transfer.transfer_task import TransferOptions

_NO_CHUNK_LISTS = b"{}"  # a manifest alone is sent without its files' chunks
_TRIES = 3  # a host's files may change between its answer and the transfer
_STATE_TIMEOUT = 600.0  # seconds; another sync may have locked the folder


def sync(
    hosts: Sequence[Host],
    tree: Tree,
    *,
    workdir: str,
    name: str = "",
    subfolder: str = "",
    progress: Callable[[str], None] = lambda _: None,
    spread: TransferOptions = AUTO,
    take: str = "",
) -> SyncResult:
    """Make every host's workdir contain exactly the code of ``tree``, and its data by the rules of data.py.

    ``workdir`` is for hosts without ``clusterddp_workdir``; ``name`` is that of the folder beside the workdir to sync
    to, empty for the workdir itself; ``subfolder`` one that must exist, as a worker's current folder. ``take`` says
    whose version of data wins if project and host changed it: ``project`` or ``host``; empty: neither. Raises
    ``HostError`` or ``HostsError`` if hosts failed, or a run with other code is live there; ``SyncError`` if a file
    changed while it was sent, a host's digest is not the tree's, or data was changed in the project and on a host.
    """
    began = time.monotonic()
    bases = Bases(tree)
    order = _request(tree, bases)._replace(folders=(subfolder,) * bool(subfolder), name=name, made=True, take=take)
    jobs = [_HostSync(host, tree, bases, order._replace(workdir=host.entry.workdir or workdir)) for host in hosts]
    waiting = jobs
    for _ in range(_TRIES):
        waiting = _ask_all(waiting, subfolder, name)
        if not waiting:
            break
        tree.keep_manifests()
        entries = (*tree.entries, *tree.data)
        uploads = Uploads(entries, tree.chunks, Files.below(tree.root, entries, tree.chunks), tree.manifest)
        for number, turn in enumerate(turns(waiting)):
            # A host that shares its workdir with one of an earlier turn may have everything now.
            lacking = _ask_all(turn, subfolder, name) if number else turn
            send(lacking, uploads, Transfer("syncing", progress, rate=spread.rate), spread)
        waiting = [job for job in waiting if job.result is None]
    for job in waiting:
        raise HostError(job.name, "its files change while they are synced", remedy="see what writes to the workdir")
    results = tuple(job.result for job in jobs if job.result)
    _refuse_other_code(results, tree)
    return SyncResult(digest=tree.digest, hosts=results, seconds=time.monotonic() - began, subfolder=subfolder)


def _ask_all(jobs: Sequence[_HostSync], subfolder: str, name: str) -> list[_HostSync]:
    """Ask every host what it has, and return those that lack something.

    Raises ``SyncError`` if data was changed both in the project and on a host.
    """
    fanout.values(fanout.each(jobs, _HostSync.ask))
    fanout.values(fanout.each(_hosts_to_ask_again(jobs), _HostSync.ask))
    lacking = [job for job in jobs if job.result is None]
    fanout.values(fanout.each([job for job in lacking if job.undecided], _HostSync.ask_data))
    refuse_conflicts({job.name: job.conflicts for job in lacking}, subfolder=subfolder, name=name)
    return lacking


def preview(hosts: Sequence[Host], tree: Tree, *, workdir: str, take: str = "") -> tuple[HostSync, ...]:
    """Return what ``sync`` would send and remove; ``digest`` is empty for a host where something would change."""
    bases = Bases(tree)
    order = _request(tree, bases)._replace(prove=True, take=take)
    jobs = [_HostSync(host, tree, bases, order._replace(workdir=host.entry.workdir or workdir)) for host in hosts]
    return tuple(fanout.values(fanout.each(jobs, _HostSync.preview)))


def workdirs_as_they_are(hosts: Sequence[Host], *, workdir: str, name: str = "") -> tuple[HostSync, ...]:
    """Each host's workdir and the digest of the code in it, for a run without sync.

    ``digest`` is empty if the code was not put there by a sync, or was changed since.
    """

    def state_on(host: Host) -> HostSync:
        order = SyncRequest(workdir=host.entry.workdir or workdir, digest="", name=name)
        state = ask(host, "workdir_state", order, WorkdirState, timeout=_STATE_TIMEOUT, limit=PATHS_LIMIT)
        return HostSync(name=host.name, workdir=state.workdir, digest=state.digest, notices=_notices_of(state))

    return tuple(fanout.values(fanout.each(hosts, state_on)))


class Sharing(Protocol):
    """One host's part, with a name for its folder that is the same on all hosts that may share it."""

    shared: str | None


S = TypeVar("S", bound=Sharing)


class _HostSync:
    """The sync of one host: a ``TransferTask``."""

    operation = "sync_apply"

    def __init__(self, host: Host, tree: Tree, bases: Bases, order: SyncRequest) -> None:
        self.name = host.name
        self.result: HostSync | None = None
        self.live: tuple[str, ...] = ()  # the runs that are live in the folder
        self.shared: str | None = None  # as in ``Sharing``
        self.needs: tuple[Entry, ...] = ()  # files to put there, whether or not their content must be sent
        self.changes = Changes()
        self._first_changes = Changes()  # by the first answer: a host that changes meanwhile is asked again
        self._removed = 0  # by all answers together, like the next
        self._kept: tuple[tuple[str, str], ...] = ()  # as of ``Synced``
        self.manifest_part: bytes | None = None
        self.undecided = False  # whether ``ask_data`` must be called
        self.conflicts: tuple[str, ...] = ()
        self._standing_versions: dict[str, str] = {}  # as in StandingData, like the next
        self._standing_news: list[str] = []
        self._contents_on_host: frozenset[str] = frozenset()  # digests of contents and chunks
        chunks = sum(map(len, tree.chunks.values()))  # the host may list all, and a changed version of each file
        self._limit = Limit.of_files(len(tree.entries) + len(tree.data) + chunks)
        self.host, self._tree, self._bases = host, tree, bases
        self._data_paths = {entry.path for entry in tree.data}  # a file that was code may be data now
        self._data_part = b""
        self.order = order._replace(links=dict(host.entry.links))

    def ask(self) -> None:
        """Ask which files the host has; sets ``result`` if it has everything."""
        state = self._state()
        if not self._bases.has(state.base):
            known = tuple(digest for digest in self.order.known if digest != state.base)
            self.order = self.order._replace(known=known)
            state = self._state()
        self._first_changes = self._first_changes or self.changes
        self.result, self._standing_versions, self.conflicts, self.undecided = None, {}, (), False
        with reading_answer(self.name):
            self._read_state(state)

    def _state(self) -> WorkdirState:
        return ask(self.host, "workdir_state", self.order, WorkdirState, timeout=_STATE_TIMEOUT, limit=self._limit)

    def _read_state(self, state: WorkdirState) -> None:
        """Compute from a host's answer what to send; or set ``result``, if it has everything."""
        self.live, self.shared = state.live, state.shared
        self._record_standing(state.data.standing)
        if state.ready:
            self.result = HostSync(
                name=self.name,
                workdir=state.workdir,
                digest=self._tree.digest,
                removed=self._removed,
                kept=self._kept_files(),
                notices=_notices_of(state),
                data=self._standing_data(),
            )
            return
        self.workdir = state.workdir
        base = self._bases.of(state.base)
        self.manifest_part, changes, self.needs, contents = base.manifest_part, base.changes, base.needs, base.contents
        differs = bool(state.have or state.missing)  # the host has other files than the manifest it named
        if differs:
            removed = set(state.missing)
            existing = {path: entry for path, entry in base.entries.items() if path not in removed}
            for entry in state.have:
                existing[entry.path] = entry
            (changes, self.needs), contents = compare(existing, self._tree.entries), contents_of(existing)
        obsolete = [path for path in changes.removed if path not in self._data_paths]
        if self.order.data is None:  # code of an earlier time: git may track them, or the host leaves them as data
            obsolete = [path for path in obsolete if is_code(path)]
        self.changes = replace(changes, removed=tuple(obsolete))
        self._contents_on_host = contents.union(state.chunks)
        edited = bool(base.digest) and differs
        # A host that is asked again has changed meanwhile, so it must verify its files then (``prove``).
        self.order = self.order._replace(base=base.digest, edited=edited, prove=True, data_base="", data_size=0)
        self.undecided = not (state.data.settled or state.data.empty)
        if not state.data.settled:
            self._add_data_manifest(state.data.digest)
        if state.data.empty:
            self._plan_data(self._tree.data, [entry.path for entry in self._tree.data])

    def _add_data_manifest(self, digest: str) -> None:
        """Append the project's data manifest to the code's, for a host whose own data manifest has ``digest``."""
        base, self._data_part = self._bases.data_part(digest)
        self.order = self.order._replace(data_base=base, data_size=len(self._data_part))
        self.manifest_part = (self.manifest_part or b"") + self._data_part

    def _plan_data(self, put: Sequence[Entry], new: Sequence[str], placed: Sequence[str] = ()) -> None:
        """Add the data files ``put`` to what is sent.

        ``new`` are the paths at which the host has no file, ``placed`` those whose content is there.
        """
        there, missing = set(placed), set(new)
        self.needs = (*self.needs, *(entry for entry in put if entry.kind == FILE and entry.path not in there))
        changed = tuple(entry.path for entry in put if entry.path not in missing)
        before = self.changes
        self.changes = replace(before, new=(*before.new, *new), changed=(*before.changed, *changed))

    def ask_data(self) -> None:
        """Ask which of the project's data would be placed on the host, and which conflicts with the host's own."""
        data = self._data_part
        order = self.order._replace(manifest=len(data), chunk_lists=len(_NO_CHUNK_LISTS))
        compress = self.host.entry.connection != "local"
        pieces = bundles_of(data + _NO_CHUNK_LISTS, compress=compress)
        answer = self.host.upload("data_state", to_fields(order), pieces, timeout=_STATE_TIMEOUT, limit=self._limit)
        with reading_answer(self.name):
            state = read_unless_changed(DataState, answer)
        if state is None:  # another sync came in between: the host is asked again
            return
        put = set(state.put)
        self._contents_on_host = self._contents_on_host.union(state.chunks)
        self.conflicts = tuple(state.conflicts)
        self._plan_data([entry for entry in self._tree.data if entry.path in put], state.new, state.placed)

    def _record_standing(self, standing: StandingVersions) -> None:
        """Note which data the host has changed and keeps."""
        self._standing_versions.update(standing.versions)
        self._standing_news += [path for path in standing.news if path not in self._standing_news]

    def _kept_files(self) -> tuple[KeptFile, ...]:
        data = self._data_paths
        return tuple(KeptFile(path=path, kept_as=kept_as, data=path in data) for path, kept_as in self._kept)

    def _standing_data(self) -> StandingData:
        return StandingData(versions=self._standing_versions, news=tuple(self._standing_news))

    def preview(self) -> HostSync:
        """Ask the host, and report what a sync would send."""
        self.ask()
        if self.undecided and not self.result:
            self.ask_data()
        size = sum(entry.size for entry in self.needs)
        return self.result or HostSync(
            name=self.name,
            workdir=self.workdir,
            digest="",
            sent=len(self.needs),
            sent_bytes=size,
            removed=len(self.changes.removed),
            changes=self.changes,
            conflicts=self.conflicts,
        )

    def lacking(self, uploads: Uploads) -> tuple[Chunk, ...]:
        """The chunks that the host has nowhere, each once, in the tree's order."""
        contents = [entry for entry in self.needs if entry.content not in self._contents_on_host]
        chunks = dict.fromkeys(chunk for entry in contents for chunk in uploads.chunks(entry))
        found = tuple(chunk for chunk in chunks if chunk.digest not in self._contents_on_host)
        reuse = len(contents) < len(self.needs) or len(found) < len(chunks)
        self.order = self.order._replace(reuse=reuse)
        return found

    def take(self, answer: Any) -> None:
        """Read the host's answer to what was sent."""
        with reading_answer(self.name):
            done = read_unless_changed(Synced, answer)
            changed = done or read_record(HostChanged, answer, "sync")
        self._removed += changed.removed
        self._kept += changed.kept
        self.result = self._synced(done) if done else None

    def _synced(self, done: Synced) -> HostSync:
        """The result, from the host's answer after a transfer."""
        self._record_standing(done.standing)
        return HostSync(
            name=self.name,
            workdir=done.workdir,
            digest=done.digest,
            sent=done.sent,
            sent_bytes=sum(entry.size for entry in self.needs),
            removed=self._removed,
            kept=self._kept_files(),
            notices=_notices_of(done),
            changes=self._first_changes or self.changes,
            data=self._standing_data(),
        )


def _request(tree: Tree, bases: Bases) -> SyncRequest:
    """The request to every host about a tree, without the workdir, which each host has its own."""
    return SyncRequest(workdir="", digest=tree.digest, known=tuple(bases.kept_digests), data=tree.data_digest)


def _notices_of(answer: WorkdirState | Synced) -> tuple[str, ...]:
    """A host's messages about its folder."""
    return tuple(line for line in (answer.notice, *answer.links) if line)


def _hosts_to_ask_again(jobs: Sequence[_HostSync]) -> list[_HostSync]:
    """Hosts that report a live run which others on the same folder do not: its host, now asked, may have cleared it."""
    everywhere: dict[str, set[str]] = {}  # by shared folder, the runs that each of its hosts reports
    for job in jobs:
        if job.shared:
            everywhere.setdefault(job.shared, set(job.live)).intersection_update(job.live)
    return [job for job in jobs if job.shared and set(job.live) != everywhere[job.shared]]


def turns(jobs: Sequence[S]) -> Iterator[list[S]]:
    """Two groups of hosts: one host of each shared folder first, then the others, which find its files in place."""
    leaders: dict[object, S] = {}
    for job in jobs:
        leaders.setdefault(job.shared or job, job)
    first = set(leaders.values())
    yield [job for job in jobs if job in first]
    yield [job for job in jobs if job not in first]


def _refuse_other_code(results: Sequence[HostSync], tree: Tree) -> None:
    """Raise ``SyncError`` if a host ended with other code than the tree's."""
    for host in results:
        if host.digest != tree.digest:
            message = f"{host.name}: the code in {host.workdir} is not the project's"
            raise SyncError(message, remedy="sync again")
