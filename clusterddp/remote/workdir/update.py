"""Change a workdir's files to those of a manifest; an interruption at any moment leaves each file either old or new.

Contents are first assembled in a folder inside the workdir (chunk_files.py); only when all are complete is anything
replaced or deleted. A file that no sync wrote, or that was changed since, is never lost: where the manifest needs its
path it is kept as ``<name>.clusterddp-kept-<n>`` (a long name is shortened), and otherwise it stays where it is.
"""

import itertools
import os
import stat
from typing import TYPE_CHECKING, Callable, Dict, Iterable, Iterator, List, Optional, Protocol, Set, Tuple, TypeVar

from ..shared.wire.chunks import digest_of
from ..shared.workdir.manifest import FILE, LINK, Disk, Entry, Hashes, Stats, as_text, folders_above, on_disk, parents
from ..system.bootstrap import Refused
from ..transfer.descriptor_walk import FolderTree, path_of

T = TypeVar("T")
KEPT_SUFFIX = b".clusterddp-kept-"  # with a number behind it: ends the name of a kept file
MAX_KEPT = 3  # versions kept of a file
_MAX_NAME = 255  # bytes that Linux takes as a name

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
    """The update of one folder to a manifest: call ``check``, ``open_root``, ``stage``, ``commit``, ``close`` in turn.

    Entries of ``record`` that are not in ``plan`` are removed. ``plan`` is the manifest, or with ``earlier`` only its
    new entries; then of the record's entries only those in ``earlier`` are inspected, and the others stay.
    ``check_lock`` is called before each change and while contents arrive; it raises where the folder's lock was lost.
    ``disk`` is the folder's current state, by default the record's.
    """

    def __init__(
        self,
        record: Record,
        plan: List[Entry],
        check_lock: Callable[[], None] = lambda: None,
        earlier: Optional[List[Entry]] = None,
        disk: Optional[Disk] = None,
    ) -> None:
        self.sent = 0
        self.removed = 0
        self.kept: List[List[str]] = []
        self.placed: Dict[str, Stats] = {}  # files put in place, or whose mode was set: stats before, ctime 0
        self.as_verified: Hashes = {}  # those that were put in place exactly as they were verified on arrival
        self._check_lock = check_lock
        self._record = record
        self._plan = {entry.path: entry for entry in plan}
        self.disk = disk or record.disk()
        self.disk.check = check_lock
        self._earlier: Dict[str, List[Entry]] = {}
        for entry in record.entries if earlier is None else earlier:
            self._earlier.setdefault(entry.path, []).append(entry)
        self._present = dict(self._read_present((*self._plan, *self._earlier)))
        self._differing = [entry for entry in plan if self._present[entry.path] != entry]
        self._obsolete = [path for path in self._earlier if path not in self._plan and self._present[path]]
        self._staged: Set[str] = set()
        self._new_folders: Set[str] = set()  # folders that are new, so that nothing of anybody's can be in them
        self._existing_folder = ""  # a folder known to exist, with all its parents
        self._parts: "Assembly"
        self._tree = FolderTree(record.root)

    @property
    def planned(self) -> Set[str]:
        """The paths in the plan."""
        return set(self._plan)

    @property
    def changes(self) -> bool:
        """Whether anything in the folder would change."""
        return bool(self._differing) or any(self._is_ours(path) for path in self._obsolete)

    def spare(self, paths: Set[str]) -> List[Entry]:
        """Remove nothing at these paths; returns the entries there that would have been removed."""
        present = [self._present[path] for path in self._obsolete if path in paths and self._is_ours(path)]
        self._obsolete = [path for path in self._obsolete if path not in paths]
        return [entry for entry in present if entry]

    def lacking(self) -> List[Entry]:
        """The files to place whose content is not already at their path."""
        return [entry for entry in self._differing if self._needs_content(entry)]

    def foreign_entries(self) -> List[Tuple[str, Entry]]:
        """(path, entry there) where the folder has something else than is planned, not as a sync or push wrote it."""
        differing = [(entry.path, self._present[entry.path], entry) for entry in self._differing]
        return [
            (path, present)
            for path, present, entry in differing
            if present and not self._is_ours(path) and not self._is_planned(entry)
        ]

    def check(self) -> None:
        """Refuse, before any change, a manifest that would write through a link of the host's; raises Refused."""
        for folder in sorted(map(as_text, folders_above(on_disk(entry.path) for entry in self._differing))):
            info = self.disk.info(folder)
            if info and stat.S_ISLNK(info.st_mode) and not self._is_ours(folder):
                raise Refused(
                    "%s is a link on this host, but a folder in the project" % as_text(self.disk.full(folder)),
                    "remove the link, or keep that folder out of the sync (.gitignore)",
                )

    def open_root(self) -> bytes:
        """Open the workdir, and return a path by its descriptor, valid if it is renamed or replaced; raises Refused."""
        self.disk.root = path_of(self._tree.open_root())
        return self.disk.root

    def close(self) -> None:
        """Close the folder."""
        self._tree.close()

    def stage(self, parts: "Assembly", incoming: "ChunkStream", entries: Optional[Iterable[Entry]] = None) -> List[str]:
        """Assemble the contents that are needed; returns the paths whose content was not sent.

        ``entries``: all those of the transfer, where ``plan`` is a part of them.
        """
        needed = self.lacking()
        self._parts = parts
        parts.want(needed)
        parts.copy_chunks_of(self.disk)
        parts.receive(incoming, self._check_lock, self._plan.values() if entries is None else entries)
        missing = sorted(entry.path for entry in needed if not parts.whole(entry.content))
        self._staged = {entry.path for entry in needed} - set(missing)
        return missing

    def commit(self) -> None:
        """Delete obsolete files and move new ones into place.

        The host's own files in the way are kept under another name.
        """
        for path in sorted(self._obsolete, key=on_disk, reverse=True):
            self._check_lock()
            self._with_path_in_error(path, self._remove, path)
        for entry in self._differing:
            self._check_lock()
            self._with_path_in_error(entry.path, self._commit_entry, entry)
        self._tree.close_folder()

    def proved_stats(self, path: str) -> Stats:
        """The stats under which the content of a planned file was proved.

        The ctime is 0 where the update has changed it: it has put the file in place, or set its mode.
        """
        return self.placed.get(path) or self.disk.seen[path][0]

    def _commit_entry(self, entry: Entry) -> None:
        """Put one file or link in place, or only set its mode."""
        self._make_parents(entry.path)
        if entry.kind == LINK or entry.path in self._staged:
            self._put_in_place(entry)
        else:
            self._tree.set_executable(entry.path, executable=entry.executable)
            size, modified, _, inode = self.disk.seen[entry.path][0]
            self.placed[entry.path] = [size, modified, 0, inode]

    def _with_path_in_error(self, path: str, change: Callable[[T], None], what: T) -> None:
        """Make a change, and add the whole path to its errors: the kernel names only a file in an open folder."""
        try:
            change(what)
        except OSError as error:
            error.filename2 = os.path.join(self._record.root, on_disk(path))
            raise

    def _read_present(self, paths: Iterable[str]) -> Iterator[Tuple[str, Optional[Entry]]]:
        """Each path with the entry that is there now."""
        is_missing: Dict[str, bool] = {}
        for path in paths:
            folder = path.rpartition("/")[0]
            if folder not in is_missing:
                is_missing[folder] = self.disk.info(folder) is None
            yield path, None if is_missing[folder] else self.disk.entry(path)

    def _needs_content(self, entry: Entry) -> bool:
        present = self._present[entry.path]
        return entry.kind == FILE and not (present and present.kind == FILE and present.content == entry.content)

    def _is_ours(self, path: str) -> bool:
        """Whether the entry at ``path`` is one that a sync wrote, with the content it wrote."""
        present = self._present.get(path)
        return present is not None and any(
            (present.kind, present.content) == (entry.kind, entry.content) for entry in self._earlier.get(path, [])
        )

    def _is_planned(self, entry: Entry) -> bool:
        """Whether what is at the entry's path is what is planned there, whoever wrote it; modes do not count."""
        present = self._present[entry.path]
        return present is not None and (present.kind, present.content) == (entry.kind, entry.content)

    def _read_again(self, path: str) -> Optional[Entry]:
        """The entry at ``path`` right now: contents take time to arrive, and people edit files meanwhile."""
        self._present[path] = Disk(self.disk.root).entry(path)
        return self._present[path]

    def _remove(self, path: str) -> None:
        """Delete a file that an earlier sync wrote.

        A version changed on the host stays, and no longer counts as a sync's.
        """
        present = self._read_again(path)
        if present and self._is_ours(path):
            self._tree.unlink(path)
            self._remove_bytecode(path)
            self.removed += 1
            self._prune(path)
        elif present and present.kind in (FILE, LINK):
            self.kept.append([path, path])

    def _prune(self, path: str) -> None:
        """Remove the folders above ``path`` that have become empty."""
        for folder in reversed(parents(path)):
            try:
                self._tree.rmdir(folder)
            except OSError:  # not empty: it holds files of the host's own
                return

    def _make_parents(self, path: str) -> None:
        """Make the folders above ``path``; what is in their way keeps another name."""
        if path.rpartition("/")[0] == self._existing_folder:
            return
        for folder in parents(path):
            info = self.disk.info(folder)
            if info and not stat.S_ISDIR(info.st_mode):
                self._keep_aside(folder)
                info = None
            if info is None:
                self._tree.mkdir(folder)
                self._new_folders.add(folder)
            self._existing_folder = folder

    def _put_in_place(self, entry: Entry) -> None:
        """Replace what is at the entry's path by the assembled file, or by a new link."""
        info = None if entry.path.rpartition("/")[0] in self._new_folders else self.disk.info(entry.path)
        if info:
            self._read_again(entry.path)
        if info and stat.S_ISDIR(info.st_mode):
            self._clear_folder(entry.path)
        elif info and not self._is_ours(entry.path) and not self._is_planned(entry):
            self._keep_aside(entry.path)
        folder, name = self._tree.locate(entry.path)
        if entry.kind == LINK:
            self._parts.move_link(on_disk(entry.content), name, folder)
        else:
            stats = self.placed[entry.path] = self._parts.move(entry, name, folder)
            if self._parts.is_as_written(entry, stats):
                self.as_verified[entry.path] = (stats, [entry.content])
            self.sent += 1
        self._remove_bytecode(entry.path)

    def _clear_folder(self, path: str) -> None:
        try:
            self._tree.rmdir(path)
        except OSError:  # not empty
            self._keep_aside(path)

    def _keep_aside(self, path: str) -> None:
        """Keep the host's own version under another name.

        Where possible as a hard link, until the old name is replaced.
        """
        kept_path = _kept_name(path, self._kept_number(path))
        if not self._tree.exists(kept_path):
            self._tree.keep_as(path, kept_path)
        if path not in self._plan and self._tree.exists(path):
            self._tree.unlink(path)  # a folder is to be made at this path
        self.kept.append([path, kept_path])

    def _kept_number(self, path: str) -> int:
        """The number of the name to keep this version under: a free one, or the one that holds this version already.

        Only the latest versions are kept, or a job that rewrites a file of the project would fill the disk.
        """
        for number in range(1, MAX_KEPT + 1):
            name = _kept_name(path, number)
            if not self._tree.exists(name) or self._is_kept_version(path, self.disk.full(name)):
                return number
        if any(os.path.isdir(self.disk.full(_kept_name(path, number))) for number in range(1, MAX_KEPT + 1)):
            return next(n for n in itertools.count(MAX_KEPT + 1) if not self._tree.exists(_kept_name(path, n)))
        for number in range(1, MAX_KEPT):  # the oldest is replaced
            self._tree.rename(_kept_name(path, number + 1), _kept_name(path, number))
        return MAX_KEPT

    def _is_kept_version(self, path: str, kept: bytes) -> bool:
        """Whether the file ``kept`` holds this version: a job that rewrites a synced file must not pile up copies."""
        present = self._present.get(path)
        kept_entry = Disk(os.path.dirname(kept)).entry(as_text(os.path.basename(kept)))
        if not (present and kept_entry and present.kind == FILE):
            return False
        return (present.kind, present.content) == (kept_entry.kind, kept_entry.content)

    def _remove_bytecode(self, path: str) -> None:
        """Remove a module's bytecode: Python trusts its mtime, in whole seconds, and a left cache keeps a folder."""
        if not path.endswith(".py") or path.rpartition("/")[0] in self._new_folders:
            return
        self._tree.remove_bytecode(path)


def _kept_name(path: str, number: int) -> str:
    """The path to keep a version of a file under; of a name too long for the suffix only the beginning stays."""
    folder, name = os.path.split(on_disk(path))
    suffix = KEPT_SUFFIX + str(number).encode()
    if len(name) + len(suffix) > _MAX_NAME:
        suffix = b"-%s%s" % (digest_of(name)[:8].encode(), suffix)
        name = _beginning(name, _MAX_NAME - len(suffix))
    return as_text(os.path.join(folder, name + suffix))


def _beginning(name: bytes, size: int) -> bytes:
    """The first bytes of a name, at most ``size``, that end with a whole character if the name is UTF-8."""
    ends = (end for end in range(size, size - 4, -1) if name[end] & 0xC0 != 0x80)  # a character begins there
    return name[: next(ends, size)]
