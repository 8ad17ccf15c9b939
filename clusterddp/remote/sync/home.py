"""What runs have left in a workdir's siblings is brought home, once no run is live in either.

A new file is linked into the workdir and then unlinked in the sibling: it never takes the place of another, and after
an interruption both names are there, with which the next start goes on. A file that the run has put in the place of one
of the workdir's, by a rename, takes that place there too, if it is still as the sibling saw it; the old one keeps a
numbered name. What finds any other file in its place stays, and is named. A sibling in which nothing is left but what
syncs have put there, unchanged, is removed.
"""

import contextlib
import filecmp
import os
import posixpath
import shlex
import shutil
import stat
import time
from typing import Callable, Iterator, List, NamedTuple, Sequence

from ..shared.manifest import as_text, on_disk, parents
from .live import live_runs
from .lock import PLACE, FolderLock
from .memory import forget
from .record import SyncRecord
from .sibling import file_stats, sibling_path
from .workdir import siblings

NOT_HOME = b"not-home"  # beside the lock: the paths that stay, each with a NUL behind it
LIMIT = 30.0  # seconds that a start spends on it
_NAMED = 5  # files that a line names


class Brought(NamedTuple):
    """What became of a sibling's own files: paths brought home, paths that stay, whether time ran out.

    ``kept``: the new paths of what some of them have replaced.
    """

    home: List[str]
    staying: List[str]
    kept: List[str]
    cut: bool


def bring_home(state: str, primary: bytes, hold: Callable[[], None], digest: str = "") -> List[str]:
    """Bring home what can be; a line for the user on each sibling with something to tell.

    Args:
        state: The state folder.
        primary: The workdir; its lock is held.
        hold: Beats that lock.
        digest: Of the code to come: of the sibling that it may go to nothing is said while the workdir is busy.
    """
    told: List[str] = []
    busy = bool(live_runs(state, primary))
    deadline = time.monotonic() + LIMIT
    for path in siblings(primary):
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context(FolderLock(state, path))
                if not live_runs(state, path) and not (busy and path == sibling_path(primary, digest)):
                    mover = _Mover(SyncRecord(state, path), primary, (hold, lock.check))
                    told += _waiting(mover, path, primary) if busy else _moved(mover, state, path, primary, deadline)
            except OSError as error:  # it may hold another user's files, which must not keep a run from starting
                told.append("%s cannot be brought home: %s" % (as_text(path), error.strerror))
    return told


class _Mover:
    """The way home from one sibling; each of ``holds`` beats a lock."""

    def __init__(self, record: SyncRecord, primary: bytes, holds: Sequence[Callable[[], None]]) -> None:
        self._record, self._primary, self._holds = record, primary, holds
        self._put = {entry.path: entry for entry in record.entries}
        self._disk = record.disk()
        self._kept: List[str] = []

    def own_files(self, folder: str = "") -> Iterator[str]:
        """The paths that no sync has put, or that were changed since."""
        for name in sorted(os.listdir(self._disk.full(folder))):
            path = posixpath.join(folder, as_text(name))
            info = self._disk.info(path)
            if info is None or self._is_ours(path, info):
                continue
            if stat.S_ISDIR(info.st_mode):
                yield from self.own_files(path)
            else:
                yield path

    def _is_ours(self, path: str, info: os.stat_result) -> bool:
        """Whether it needs no way home: what a sync has put, a link back, bytecode, our own folder."""
        if path.startswith(".clusterddp-"):
            return True
        if stat.S_ISDIR(info.st_mode):
            return False
        if stat.S_ISLNK(info.st_mode) and os.readlink(self._disk.full(path)) == self._home(path):
            return True
        if path.endswith(".pyc") and posixpath.basename(posixpath.dirname(path)) == "__pycache__":
            return True
        return path in self._put and self._disk.entry(path) == self._put[path]

    def _home(self, path: str) -> bytes:
        return os.path.join(self._primary, on_disk(path))

    def _hold(self) -> None:
        for hold in self._holds:
            hold()

    def move(self, deadline: float) -> Brought:
        """Bring home all that nothing stands in the way of."""
        home: List[str] = []
        staying: List[str] = []
        for path in list(self.own_files()):
            if time.monotonic() > deadline:
                return Brought(home, staying, self._kept, cut=True)
            self._hold()
            (home if self._move_file(path) else staying).append(path)
        if staying:
            with open(os.path.join(self._record.root, PLACE, NOT_HOME), "wb") as stream:
                stream.write(b"".join(on_disk(path) + b"\0" for path in staying))
        return Brought(home, staying, self._kept, cut=False)

    def _move_file(self, path: str) -> bool:
        source, target = self._disk.full(path), self._home(path)
        if not os.path.lexists(target):
            return self._make_parents(path) and self._rename(source, target)
        same = (os.path.islink(target) and os.readlink(target) == self._leads(source)) or _same(source, target)
        if same:
            os.unlink(source)
        elif file_stats(source) and file_stats(target) and file_stats(target) == self._record.linked.get(path):
            self._kept.append(path + as_text(_keep(target)))
            os.rename(source, target)
            return True
        return same

    def _make_parents(self, path: str) -> bool:
        for folder in parents(path):
            full = self._home(folder)
            try:
                os.mkdir(full)
            except FileExistsError:
                if os.path.islink(full) or not os.path.isdir(full):
                    return False
            else:
                shutil.copymode(self._disk.full(folder), full)
        return True

    def _rename(self, source: bytes, target: bytes) -> bool:
        """Give the file its name at home; False where that has come into being meanwhile."""
        try:
            if os.path.islink(source):
                os.symlink(self._leads(source), target)
            else:
                os.link(source, target)
        except FileExistsError:
            return False
        except OSError:  # a filesystem without hard links, or another user's file
            os.rename(source, target)
        else:
            os.unlink(source)
        return True

    def _leads(self, link: bytes) -> bytes:
        """Where a link is to lead from home: not to the sibling, which may go. Empty where it is none."""
        leads = os.readlink(link) if os.path.islink(link) else b""
        inside = self._record.root + b"/"
        return os.path.join(self._primary, leads[len(inside) :]) if leads.startswith(inside) else leads

    def remove(self, state: str, folder: str = "") -> None:
        """Remove the sibling once all in it is ours; our own folder, with the record, last. What else comes stays."""
        for name in os.listdir(self._disk.full(folder)):
            path = posixpath.join(folder, as_text(name))
            info = self._disk.info(path)
            if info is None or name == PLACE:
                continue
            self._hold()
            if not stat.S_ISDIR(info.st_mode):
                if self._is_ours(path, info):
                    os.unlink(self._disk.full(path))
            elif self._is_ours(path, info):
                shutil.rmtree(self._disk.full(path))
            else:
                self.remove(state, path)
        if folder:
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(self._disk.full(folder))
        elif os.listdir(self._record.root) == [PLACE]:
            shutil.rmtree(os.path.join(self._record.root, PLACE))
            os.rmdir(self._record.root)
            forget(state, self._record.root)


def _keep(target: bytes) -> bytes:
    """Give a file that is about to be replaced one more name, as ``cp --backup=numbered`` does; its end: ``.~1~``."""
    number = 0
    while True:
        number += 1
        end = b".~%d~" % number
        name = target + end
        if not os.path.lexists(name):
            try:
                os.link(target, name)
            except FileExistsError:
                continue
            except OSError:  # a filesystem without hard links
                os.rename(target, name)
            return end
        if os.path.samestat(os.lstat(name), os.lstat(target)):  # by a start that was cut
            return end


def _same(source: bytes, target: bytes) -> bool:
    """Whether both names are one file, or two with the same content."""
    here, there = os.lstat(source), os.lstat(target)
    if os.path.samestat(here, there):
        return True
    files = stat.S_ISREG(here.st_mode) and stat.S_ISREG(there.st_mode)
    return files and here.st_size == there.st_size and filecmp.cmp(source, target, shallow=False)


def _moved(mover: _Mover, state: str, path: bytes, primary: bytes, deadline: float) -> List[str]:
    """Bring home, and remove the sibling if nothing is left in it; what to tell."""
    told = _told(mover.move(deadline), path, primary)
    if not any(mover.own_files()):
        mover.remove(state)
    return told


def _told(brought: Brought, path: bytes, primary: bytes) -> List[str]:
    lines = []
    if brought.home:
        kept = "; what that replaced is kept: %s" % _listed(brought.kept) if brought.kept else ""
        lines.append("brought home from %s: %s%s" % (as_text(path), _listed(brought.home), kept))
    if brought.cut:
        lines.append("%s holds more, which comes home at the next start" % as_text(path))
    if brought.staying:
        command = "cd %s && xargs -0 -a %s cp -a --parents --backup=numbered -t %s" % (
            shlex.quote(as_text(path)),
            as_text(os.path.join(PLACE, NOT_HOME)),
            shlex.quote(as_text(primary)),
        )
        named = (as_text(path), as_text(primary), _listed(brought.staying), command)
        lines.append("%s holds other versions of what is in %s: %s; to take these (the old are kept): %s" % named)
    return lines


def _waiting(mover: _Mover, path: bytes, primary: bytes) -> List[str]:
    own = list(mover.own_files())
    named = (as_text(path), _listed(own), as_text(primary))
    line = "%s holds files of an earlier run: %s; they come home at a start while no run is live in %s" % named
    return [line] if own else []


def _listed(paths: List[str]) -> str:
    more = len(paths) - _NAMED
    return ", ".join(paths[:_NAMED]) + (" and %d more" % more if more > 0 else "")
