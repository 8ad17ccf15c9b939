"""Change a workdir's files to those of a manifest; an interruption at any moment leaves each file either old or new.

Contents are first assembled in a folder inside the workdir (chunk_files.py); only when all are complete is anything
replaced or deleted. A file that no sync wrote, or that was changed since, is never lost: where the manifest needs its
path it is kept as ``<name>.clusterddp-kept-<n>``, and otherwise it stays where it is.
"""

import itertools
import os
import stat
from typing import TYPE_CHECKING, Callable, Dict, Iterable, Iterator, List, Optional, Protocol, Set, Tuple, TypeVar

from ..shared.workdir.manifest import FILE, LINK, Disk, Entry, Hashes, as_text, folders_above, on_disk, parents
from ..system.bootstrap import Refused
from ..transfer.descriptor_walk import Inside

T = TypeVar("T")
KEPT = b".clusterddp-kept-"  # followed by a number: the end of the name of a file that was kept
MOST_KEPT = 3  # versions of a file

if TYPE_CHECKING:
    from ..shared.wire.chunk_stream import ChunkStream
    from ..transfer.chunk_files import Assembly


class Record(Protocol):
    """The record of what was written into a folder before (SyncRecord, PushRecord)."""

    root: bytes

    @property
    def entries(self) -> List[Entry]:
        """The files and links that were written."""

    def disk(self) -> Disk:
        """The folder's current state."""


class WorkdirUpdate:
    """The update of one folder to a manifest: call ``check``, ``stage``, ``commit``, in this order.

    Entries of ``record`` that are not in ``plan`` are removed. ``plan`` is the manifest, or with ``put`` only its new
    entries; then of the record's entries only those in ``put`` are inspected, and the others stay. ``hold`` is called
    before each change and while contents arrive; it raises where the folder's lock was lost. ``disk`` is the folder's
    current state, by default the record's.
    """

    def __init__(
        self,
        record: Record,
        plan: List[Entry],
        hold: Callable[[], None] = lambda: None,
        put: Optional[List[Entry]] = None,
        disk: Optional[Disk] = None,
    ) -> None:
        self.sent = 0
        self.removed = 0
        self.kept: List[List[str]] = []
        self.placed: Hashes = {}  # files put in place exactly as they were verified on arrival
        self._hold = hold
        self._record = record
        self._plan = {entry.path: entry for entry in plan}
        self.disk = disk or record.disk()
        self._put: Dict[str, List[Entry]] = {}
        for entry in record.entries if put is None else put:
            self._put.setdefault(entry.path, []).append(entry)
        self._now = dict(self._look_at((*self._plan, *self._put)))
        self._todo = [entry for entry in plan if self._now[entry.path] != entry]
        self._obsolete = [path for path in self._put if path not in self._plan and self._now[path]]
        self._staged: Set[str] = set()
        self._made: Set[str] = set()  # folders that are new, so that nothing of anybody's can be in them
        self._stands = ""  # a folder that exists, with all its parents
        self._parts: "Assembly"
        self._inside = Inside(record.root)

    @property
    def planned(self) -> Set[str]:
        """The paths in the plan."""
        return set(self._plan)

    @property
    def changes(self) -> bool:
        """Whether anything in the folder would change."""
        return bool(self._todo) or any(self._is_ours(path) for path in self._obsolete)

    def lacking(self) -> List[Entry]:
        """The files to place whose content is not already at their path."""
        return [entry for entry in self._todo if self._needs_content(entry)]

    def foreign_entries(self) -> List[Tuple[str, Entry]]:
        """(path, entry there) where the folder has something else than is planned, not as a sync or push wrote it."""
        found = [(entry.path, self._now[entry.path], entry) for entry in self._todo]
        return [
            (path, now)
            for path, now, entry in found
            if now and not self._is_ours(path) and (now.kind, now.content) != (entry.kind, entry.content)
        ]

    def check(self) -> None:
        """Refuse, before any change, a manifest that would write through a link of the host's; raises Refused."""
        for folder in sorted(map(as_text, folders_above(on_disk(entry.path) for entry in self._todo))):
            info = self.disk.info(folder)
            if info and stat.S_ISLNK(info.st_mode) and not self._is_ours(folder):
                raise Refused(
                    "%s is a link on this host, but a folder in the project" % as_text(self.disk.full(folder)),
                    "remove the link, or keep that folder out of the sync (.gitignore)",
                )

    def stage(self, parts: "Assembly", incoming: "ChunkStream", every: Optional[Iterable[Entry]] = None) -> List[str]:
        """Assemble the contents that are needed; returns the paths whose content was not sent.

        ``every``: all entries of the transfer, where ``plan`` is a part of it.
        """
        needed = self.lacking()
        self._parts = parts
        parts.want(needed)
        parts.take_from(self.disk)
        parts.receive(incoming, self._hold, self._plan.values() if every is None else every)
        missing = sorted(entry.path for entry in needed if not parts.whole(entry.content))
        self._staged = {entry.path for entry in needed} - set(missing)
        return missing

    def commit(self) -> None:
        """Delete obsolete files and move new ones into place.

        The host's own files in the way are kept under another name.
        """
        for path in sorted(self._obsolete, key=on_disk, reverse=True):
            self._hold()
            self._naming(path, self._remove, path)
        for entry in self._todo:
            self._hold()
            self._naming(entry.path, self._commit_entry, entry)
        self._inside.forget()

    def _commit_entry(self, entry: Entry) -> None:
        """Put one file or link in place, or only set its mode."""
        self._make_parents(entry.path)
        if entry.kind == LINK or entry.path in self._staged:
            self._put_in_place(entry)
        else:
            self._inside.set_executable(entry.path, executable=entry.executable)

    def _naming(self, path: str, change: Callable[[T], None], what: T) -> None:
        """Make a change, and add the whole path to its errors: the kernel names only a file in an open folder."""
        try:
            change(what)
        except OSError as error:
            error.filename2 = self.disk.full(path)
            raise

    def _look_at(self, paths: Iterable[str]) -> Iterator[Tuple[str, Optional[Entry]]]:
        """The entry now at each path."""
        empty: Dict[str, bool] = {}  # folder → whether it is missing
        for path in paths:
            folder = path.rpartition("/")[0]
            if folder not in empty:
                empty[folder] = self.disk.info(folder) is None
            yield path, None if empty[folder] else self.disk.entry(path)

    def _needs_content(self, entry: Entry) -> bool:
        now = self._now[entry.path]
        return entry.kind == FILE and not (now and now.kind == FILE and now.content == entry.content)

    def _is_ours(self, path: str) -> bool:
        """Whether the entry at ``path`` is one that a sync wrote, with the content it wrote."""
        now = self._now.get(path)
        return now is not None and any(
            (now.kind, now.content) == (put.kind, put.content) for put in self._put.get(path, [])
        )

    def _look_again(self, path: str) -> Optional[Entry]:
        """The entry at ``path`` right now: contents take time to arrive, and people edit files meanwhile."""
        self._now[path] = Disk(self._record.root).entry(path)
        return self._now[path]

    def _remove(self, path: str) -> None:
        """Delete a file that an earlier sync wrote.

        A version changed on the host stays, and no longer counts as a sync's.
        """
        now = self._look_again(path)
        if now and self._is_ours(path):
            self._inside.unlink(path)
            self._remove_bytecode(path)
            self.removed += 1
            self._prune(path)
        elif now and now.kind in (FILE, LINK):
            self.kept.append([path, path])

    def _prune(self, path: str) -> None:
        """Remove the folders above ``path`` that have become empty."""
        for folder in reversed(parents(path)):
            try:
                self._inside.rmdir(folder)
            except OSError:  # not empty: it holds files of the host's own
                return

    def _make_parents(self, path: str) -> None:
        if path.rpartition("/")[0] == self._stands:
            return
        for folder in parents(path):
            info = self.disk.info(folder)
            if info and not stat.S_ISDIR(info.st_mode):
                self._keep_aside(folder)
                info = None
            if info is None:
                self._inside.mkdir(folder)
                self._made.add(folder)
            self._stands = folder

    def _put_in_place(self, entry: Entry) -> None:
        info = None if entry.path.rpartition("/")[0] in self._made else self.disk.info(entry.path)
        if info:
            self._look_again(entry.path)
        if info and stat.S_ISDIR(info.st_mode):
            self._clear_folder(entry.path)
        elif info and not self._is_ours(entry.path):
            self._keep_aside(entry.path)
        folder, name = self._inside.at(entry.path)
        if entry.kind == LINK:
            self._parts.move_link(on_disk(entry.content), name, folder)
        else:
            stats = self._parts.move(entry, name, folder)
            if stats:
                self.placed[entry.path] = (stats, [entry.content])
            self.sent += 1
        self._remove_bytecode(entry.path)

    def _clear_folder(self, path: str) -> None:
        try:
            self._inside.rmdir(path)
        except OSError:  # not empty
            self._keep_aside(path)

    def _keep_aside(self, path: str) -> None:
        """Keep the host's own version under another name.

        Where possible as a hard link, until the old name is replaced.
        """
        kept = _kept(path, self._kept_number(path))
        if not self._inside.exists(kept):
            self._inside.keep_as(path, kept)
        if path not in self._plan and self._inside.exists(path):
            self._inside.unlink(path)  # a folder is to be made at this path
        self.kept.append([path, kept])

    def _kept_number(self, path: str) -> int:
        """The number of a free name for a kept version, or of the name that holds this version already.

        Only the latest are kept, or a job that rewrites a file of the project would fill the disk.
        """
        for number in range(1, MOST_KEPT + 1):
            name = _kept(path, number)
            if not self._inside.exists(name) or self._same(path, self.disk.full(name)):
                return number
        if any(os.path.isdir(self.disk.full(_kept(path, number))) for number in range(1, MOST_KEPT + 1)):
            return next(n for n in itertools.count(MOST_KEPT + 1) if not self._inside.exists(_kept(path, n)))
        for number in range(1, MOST_KEPT):  # the oldest is replaced
            self._inside.rename(_kept(path, number + 1), _kept(path, number))
        return MOST_KEPT

    def _same(self, path: str, kept: bytes) -> bool:
        """Whether exactly this version was kept before: a job that rewrites a synced file must not pile up copies."""
        now = self._now.get(path)
        other = Disk(os.path.dirname(kept)).entry(as_text(os.path.basename(kept)))
        return bool(now and other and now.kind == FILE and (now.kind, now.content) == (other.kind, other.content))

    def _remove_bytecode(self, path: str) -> None:
        """Remove a module's bytecode: Python trusts its mtime, in whole seconds, and a left cache keeps a folder."""
        if not path.endswith(".py") or path.rpartition("/")[0] in self._made:
            return
        self._inside.remove_bytecode(path)


def _kept(path: str, number: int) -> str:
    return path + as_text(KEPT) + str(number)
