"""Making a workdir's files those of a manifest; an interruption at any moment leaves each file old or new.

Contents are first put together in a folder inside the workdir (chunk_files.py); only when all are whole is anything
renamed over or deleted. What nobody here put, or somebody changed, is never lost: it is kept aside under
``<name>.clusterddp-kept-<n>`` where the manifest needs its place, and stays where it is otherwise.
"""

import itertools
import os
import stat
from typing import TYPE_CHECKING, Callable, Dict, Iterable, Iterator, List, Optional, Protocol, Set, Tuple, TypeVar

from ..shared.workdir.manifest import FILE, LINK, Disk, Entry, Hashes, as_text, folders_above, on_disk, parents
from ..system.bootstrap import Refused
from ..transfer.descriptor_walk import Inside

T = TypeVar("T")
KEPT = b".clusterddp-kept-"  # and a number: the end of the name of a file that was kept aside
MOST_KEPT = 3  # versions of a file

if TYPE_CHECKING:
    from ..shared.wire.chunk_stream import ChunkStream
    from ..transfer.chunk_files import Assembly


class Record(Protocol):
    """What was put into a folder before."""

    root: bytes

    @property
    def entries(self) -> List[Entry]:
        """The files and links."""

    def disk(self) -> Disk:
        """The folder as it is."""


class WorkdirUpdate:
    """The change of one folder to a manifest: ``check``, ``stage``, ``place``, in this order.

    Args:
        record: The folder's; what stands in it there and is not in the plan is removed.
        plan: The manifest; with ``put`` only what is new in it.
        hold: Called before each change and while contents come; raises where the folder's lock was lost.
        put: What of the record's entries is to be looked at, where the others stay as they are; None: all.
        disk: The folder as it is; else as the record tells.
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
        self.placed: Hashes = {}  # what was put in place just as it was proved when it came
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
        self._made: Set[str] = set()  # folders that are new: nothing of anybody's is in them
        self._stands = ""  # a folder that is there, with all above it
        self._parts: "Assembly"
        self._inside = Inside(record.root)

    @property
    def planned(self) -> Set[str]:
        """The paths of the plan."""
        return set(self._plan)

    @property
    def changes(self) -> bool:
        """Whether anything in the folder would change."""
        return bool(self._todo) or any(self._is_ours(path) for path in self._obsolete)

    def lacking(self) -> List[Entry]:
        """The files whose content does not stand at their path."""
        return [entry for entry in self._todo if self._needs_content(entry)]

    def strangers(self) -> List[Tuple[str, Entry]]:
        """Paths where something else stands than is planned, which nobody here has put as it is; and that."""
        found = [(entry.path, self._now[entry.path], entry) for entry in self._todo]
        return [
            (path, now)
            for path, now, entry in found
            if now and not self._is_ours(path) and (now.kind, now.content) != (entry.kind, entry.content)
        ]

    def check(self) -> None:
        """Refuse, before any change, a manifest that would write through a link of the host.

        Raises:
            Refused: names the link.
        """
        for folder in sorted(map(as_text, folders_above(on_disk(entry.path) for entry in self._todo))):
            info = self.disk.info(folder)
            if info and stat.S_ISLNK(info.st_mode) and not self._is_ours(folder):
                raise Refused(
                    "%s is a link on this host, but a folder in the project" % as_text(self.disk.full(folder)),
                    "remove the link, or keep that folder out of the sync (.gitignore)",
                )

    def stage(self, parts: "Assembly", incoming: "ChunkStream", every: Optional[Iterable[Entry]] = None) -> List[str]:
        """Have the contents that are needed put together; returns the paths whose content was not sent.

        ``every``: all entries of the transfer, where ``plan`` is a part.
        """
        needed = self.lacking()
        self._parts = parts
        parts.want(needed)
        parts.take_from(self.disk)
        parts.receive(incoming, self._hold, self._plan.values() if every is None else every)
        missing = sorted(entry.path for entry in needed if not parts.whole(entry.content))
        self._staged = {entry.path for entry in needed} - set(missing)
        return missing

    def place(self) -> None:
        """Delete obsolete files, move new ones into place, keep aside the host's own that are in the way."""
        for path in sorted(self._obsolete, key=on_disk, reverse=True):
            self._hold()
            self._naming(path, self._remove, path)
        for entry in self._todo:
            self._hold()
            self._naming(entry.path, self._place, entry)
        self._inside.forget()

    def _place(self, entry: Entry) -> None:
        """Give one file or link its place, or its mode."""
        self._make_parents(entry.path)
        if entry.kind == LINK or entry.path in self._staged:
            self._put_in_place(entry)
        else:
            self._inside.set_executable(entry.path, executable=entry.executable)

    def _naming(self, path: str, change: Callable[[T], None], what: T) -> None:
        """Have a change's errors name the whole path: the kernel knows a name in an open folder."""
        try:
            change(what)
        except OSError as error:
            error.filename2 = self.disk.full(path)
            raise

    def _look_at(self, paths: Iterable[str]) -> Iterator[Tuple[str, Optional[Entry]]]:
        """What stands at each path."""
        empty: Dict[str, bool] = {}  # folders that are not there
        for path in paths:
            folder = path.rpartition("/")[0]
            if folder not in empty:
                empty[folder] = self.disk.info(folder) is None
            yield path, None if empty[folder] else self.disk.entry(path)

    def _needs_content(self, entry: Entry) -> bool:
        now = self._now[entry.path]
        return entry.kind == FILE and not (now and now.kind == FILE and now.content == entry.content)

    def _is_ours(self, path: str) -> bool:
        """Whether what stands at ``path`` was put by a sync and has the content it was put with."""
        now = self._now.get(path)
        return now is not None and any(
            (now.kind, now.content) == (put.kind, put.content) for put in self._put.get(path, [])
        )

    def _look_again(self, path: str) -> Optional[Entry]:
        """What stands at ``path`` at this moment: the contents took their time to come, and people edit files."""
        self._now[path] = Disk(self._record.root).entry(path)
        return self._now[path]

    def _remove(self, path: str) -> None:
        """Delete one file an earlier sync put; a version changed on the host stays, and is no longer ours."""
        now = self._look_again(path)
        if now and self._is_ours(path):
            self._inside.unlink(path)
            self._remove_bytecode(path)
            self.removed += 1
            self._prune(path)
        elif now and now.kind in (FILE, LINK):
            self.kept.append([path, path])

    def _prune(self, path: str) -> None:
        """Remove the folders above ``path`` that are empty now."""
        for folder in reversed(parents(path)):
            try:
                self._inside.rmdir(folder)
            except OSError:  # not empty: something of the host's own is left in it
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
        """Give the host's own version another name; the old name stays too where it can, until it is renamed over."""
        kept = _kept(path, self._kept_number(path))
        if not self._inside.exists(kept):
            self._inside.keep_as(path, kept)
        if path not in self._plan and self._inside.exists(path):
            self._inside.unlink(path)  # it is in the way of a folder
        self.kept.append([path, kept])

    def _kept_number(self, path: str) -> int:
        """The number of a free name for a kept version, or of the one that holds this version already.

        Only the latest are kept, or a job that rewrites a file of the project would fill the disk.
        """
        for number in range(1, MOST_KEPT + 1):
            name = _kept(path, number)
            if not self._inside.exists(name) or self._same(path, self.disk.full(name)):
                return number
        if any(os.path.isdir(self.disk.full(_kept(path, number))) for number in range(1, MOST_KEPT + 1)):
            return next(n for n in itertools.count(MOST_KEPT + 1) if not self._inside.exists(_kept(path, n)))
        for number in range(1, MOST_KEPT):  # the oldest goes
            self._inside.rename(_kept(path, number + 1), _kept(path, number))
        return MOST_KEPT

    def _same(self, path: str, kept: bytes) -> bool:
        """Whether this very version was kept before: a job that rewrites a synced file must not pile up copies."""
        now = self._now.get(path)
        other = Disk(os.path.dirname(kept)).entry(as_text(os.path.basename(kept)))
        return bool(now and other and now.kind == FILE and (now.kind, now.content) == (other.kind, other.content))

    def _remove_bytecode(self, path: str) -> None:
        """Remove the bytecode of a module: Python trusts its whole-second mtime, and a lone cache keeps a folder."""
        if not path.endswith(".py") or path.rpartition("/")[0] in self._made:
            return
        self._inside.remove_bytecode(path)


def _kept(path: str, number: int) -> str:
    return path + as_text(KEPT) + str(number)
