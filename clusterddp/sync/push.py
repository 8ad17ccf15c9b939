"""Syncing the project's files to hosts: the same manifest on each, proved by its digest.

Two round trips at most: ask every host whether it has the digest already; send the others the manifest and
the chunks they have nowhere, each read and compressed once for all. `unchanged` costs the first one only.

Not here: which files (sync/files.py); what a host replaces, keeps and refuses (remote/sync/apply.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from clusterddp.errors import HostError, SyncError
from clusterddp.hosts import fanout
from clusterddp.hosts.answers import PATHS, Limit
from clusterddp.hosts.fanout import reading_answer
from clusterddp.remote.shared.manifest import Entry
from clusterddp.sync.base import Bases, compared, contents_of
from clusterddp.sync.passed_on import AUTO
from clusterddp.sync.result import Changes, HostSync, KeptFile, SyncResult
from clusterddp.sync.spread import send
from clusterddp.sync.transfer import Transfer
from clusterddp.sync.upload import Files, Uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.remote.shared.chunks import Chunk
    from clusterddp.sync.files import Tree
    from clusterddp.sync.passed_on import Spread

_TRIES = 3  # a host may change between being asked and being sent
_ASKING = 600.0  # seconds; another sync may hold the folder


def sync(
    hosts: Sequence[Host],
    tree: Tree,
    *,
    workdir: str,
    name: str = "",
    subfolder: str = "",
    progress: Callable[[str], None] = lambda _: None,
    spread: Spread = AUTO,
) -> SyncResult:
    """Make every host hold ``tree``, and nothing of an earlier tree, in its workdir.

    Args:
        hosts: The hosts.
        tree: What ``files.scan`` gave.
        workdir: For hosts without ``clusterddp_workdir``: ``project.workdir``.
        name: Of the folder beside the workdir that is meant; empty for the workdir itself.
        subfolder: A folder of the workdir that is to be there, for a worker's cwd.
        progress: Takes how far it has come, once it has taken some seconds.
        spread: Whether hosts pass chunks on.

    Raises:
        HostError: one host failed, or a run is live there with other code; HostsError: several did.
        SyncError: a file changed while it was sent, or a host's digest is not the tree's.
    """
    began = time.monotonic()
    bases = Bases(tree)
    jobs = [
        _Job(
            host,
            tree,
            bases,
            host.entry.workdir or workdir,
            folders=[subfolder] * bool(subfolder),
            name=name,
            made=True,
        )
        for host in hosts
    ]
    waiting = jobs
    for _ in range(_TRIES):
        fanout.values(fanout.each(waiting, _Job.ask))
        fanout.values(fanout.each(_at_odds(waiting), _Job.ask))
        waiting = [job for job in waiting if job.result is None]
        if not waiting:
            break
        tree.earlier.keep(tree.digest, tree.manifest)
        files = Files.below(tree.root, tree.entries, tree.chunks)
        uploads = Uploads(tree.entries, tree.chunks, files, tree.manifest)
        for turn in turns(waiting):
            send(turn, uploads, Transfer("syncing", progress, rate=spread.rate), spread)
        waiting = [job for job in waiting if job.result is None]
    for job in waiting:
        raise HostError(job.name, "its files change while they are synced", remedy="see what writes to the workdir")
    proved = tuple(_proved(job.result, tree) for job in jobs if job.result)
    return SyncResult(digest=tree.digest, hosts=proved, seconds=time.monotonic() - began)


def preview(hosts: Sequence[Host], tree: Tree, *, workdir: str) -> tuple[HostSync, ...]:
    """What ``sync`` would send and remove; ``digest`` is empty where something would change.

    Raises:
        HostError: one host failed; HostsError: several did.
    """
    bases = Bases(tree)
    jobs = [_Job(host, tree, bases, host.entry.workdir or workdir, prove=True) for host in hosts]
    return tuple(fanout.values(fanout.each(jobs, _Job.preview)))


def workdirs_as_they_are(hosts: Sequence[Host], *, workdir: str, name: str = "") -> tuple[HostSync, ...]:
    """Each host's workdir and the digest of the code in it, for a run without sync.

    ``digest`` is empty where no sync put the code, or somebody changed it since.

    Raises:
        HostError: one host failed; HostsError: several did.
    """

    def ask(host: Host) -> HostSync:
        args = {"workdir": host.entry.workdir or workdir, "digest": "", "name": name}
        answer = host.call("workdir_state", args, timeout=_ASKING, limit=PATHS)
        with reading_answer(host.name):
            told = _lines(answer["notice"], answer["links"])
            return HostSync(name=host.name, workdir=str(answer["workdir"]), digest=str(answer["digest"]), told=told)

    return tuple(fanout.values(fanout.each(hosts, ask)))


class Sharing(Protocol):
    """One host's part, and a name for its folder, the same on all hosts that may share it."""

    shared: str | None


S = TypeVar("S", bound=Sharing)


class _Job:
    """The sync of one host."""

    operation = "sync_apply"

    def __init__(self, host: Host, tree: Tree, bases: Bases, workdir: str, **wanted: Any) -> None:
        self.name = host.name
        self.result: HostSync | None = None
        self.live: tuple[str, ...] = ()
        self.shared: str | None = None
        self.needs: tuple[Entry, ...] = ()
        self.changes = Changes()
        self.told: bytes | None = None
        self._have: frozenset[str] = frozenset()  # contents and chunks
        chunks = sum(map(len, tree.chunks.values()))  # it may have all of them, and an edit of each file
        self._limit = Limit.of_files(len(tree.entries) + chunks)
        self.host, self._tree, self._bases = host, tree, bases
        self.args: dict[str, Any] = {
            "workdir": workdir,
            "digest": tree.digest,
            "links": dict(host.entry.links),
            "known": bases.known,
            **wanted,
        }

    def ask(self) -> None:
        """Ask which files the host has; sets ``result`` if it has all."""
        answer = self.host.call("workdir_state", self.args, timeout=_ASKING, limit=self._limit)
        self.result = None
        with reading_answer(self.name):
            self._take(answer)

    def _take(self, answer: Any) -> None:
        self.live, self.shared = tuple(map(str, answer["live"])), answer["shared"] and str(answer["shared"])
        if answer["ready"]:
            workdir, told = str(answer["workdir"]), _lines(answer["notice"], answer["links"])
            self.result = HostSync(name=self.name, workdir=workdir, digest=self._tree.digest, told=told)
            return
        self.workdir = str(answer["workdir"])
        base = self._bases.of(str(answer["base"]))
        self.told, changes, self.needs, contents = base.told, base.changes, base.needs, base.contents
        edited = bool(base.digest and (answer["have"] or answer["gone"]))
        if answer["have"] or answer["gone"]:
            gone = set(map(str, answer["gone"]))
            there = {path: entry for path, entry in base.entries.items() if path not in gone}
            for path, kind, executable, size, content in answer["have"]:
                there[str(path)] = Entry(str(path), str(kind), executable, size, str(content))
            (changes, self.needs), contents = compared(there, self._tree.entries), contents_of(there)
        self.changes = self.changes or changes
        self._have = contents.union(map(str, answer["chunks"]))
        # A host that is asked once more has changed meanwhile.
        self.args.update(base=base.digest, edited=edited, prove=True)

    def preview(self) -> HostSync:
        """Ask, and say what sending would do."""
        self.ask()
        size = sum(entry.size for entry in self.needs)
        return self.result or HostSync(
            name=self.name,
            workdir=self.workdir,
            digest="",
            sent=len(self.needs),
            sent_bytes=size,
            removed=len(self.changes.gone),
            changes=self.changes,
        )

    def lacking(self, uploads: Uploads) -> tuple[Chunk, ...]:
        """The chunks that lie nowhere on the host, each once, in the tree's order."""
        contents = [entry for entry in self.needs if entry.content not in self._have]
        chunks = dict.fromkeys(chunk for entry in contents for chunk in uploads.chunks(entry))
        found = tuple(chunk for chunk in chunks if chunk.digest not in self._have)
        self.args["reuse"] = len(contents) < len(self.needs) or len(found) < len(chunks)
        return found

    def take(self, answer: Any) -> None:
        """Take the answer to what was sent."""
        with reading_answer(self.name):
            self.result = None if "missing" in answer else self._synced(answer)

    def _synced(self, answer: Any) -> HostSync:
        return HostSync(
            name=self.name,
            workdir=str(answer["workdir"]),
            digest=str(answer["digest"]),
            sent=int(answer["sent"]),
            sent_bytes=sum(entry.size for entry in self.needs),
            removed=int(answer["removed"]),
            kept=tuple(KeptFile(path=str(path), kept_as=str(kept_as)) for path, kept_as in answer["kept"]),
            told=_lines(answer["notice"], answer["links"]),
            changes=self.changes,
        )


def _lines(notice: Any, links: Sequence[Any]) -> tuple[str, ...]:
    """A host's lines on its folder."""
    return tuple(str(line) for line in (notice, *links) if line)


def _at_odds(jobs: Sequence[_Job]) -> list[_Job]:
    """Hosts that take a run for live which others that share the folder do not: its own host has said by now."""
    live: dict[str, list[tuple[str, ...]]] = {}
    for job in jobs:
        if job.shared:
            live.setdefault(job.shared, []).append(job.live)
    return [job for job in jobs if job.shared and set(job.live) != set.intersection(*map(set, live[job.shared]))]


def turns(jobs: Sequence[S]) -> Iterator[list[S]]:
    """All at once, but one host first where several share a folder: the others then find its files in place."""
    leaders: dict[object, S] = {}
    for job in jobs:
        leaders.setdefault(job.shared or job, job)
    first = set(leaders.values())
    yield [job for job in jobs if job in first]
    yield [job for job in jobs if job not in first]


def _proved(host: HostSync, tree: Tree) -> HostSync:
    if host.digest != tree.digest:
        message = f"{host.name}: the code in {host.workdir} is not the project's"
        raise SyncError(message, remedy="sync again")
    return host
