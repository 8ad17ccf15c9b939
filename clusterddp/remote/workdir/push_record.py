"""The record of what pushes (user_files/push_operations.py) have put into one folder, kept in the state folder."""

import hashlib
import os
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..shared.schema.fields import Fields
from ..shared.schema.json_text import read_json, to_json
from ..shared.schema.record import bulk, checked, field, read_record, record, to_fields
from ..shared.wire.chunks import content_of
from ..shared.workdir.manifest import (
    FILE,
    LINK,
    Disk,
    Entry,
    Hashes,
    Stats,
    as_text,
    checked_entry,
    folders_above,
    link_entry,
    on_disk,
    stats_of,
)
from ..system.bootstrap import private_folder, write_private
from ..system.procfs import boot_id
from ..system.small_files import names_in
from .hashes import FileHash, file_hashes

_MTIME_RESOLUTION = 0.03  # seconds after which a further change of a file shows in its times


@record
class PushedFiles(NamedTuple):
    """What pushes have put into one folder, as it is stored."""

    root: str = field(checked(on_disk, "a path"))
    boot: str = field(Fields.text)
    at: int = field(Fields.number)  # of the last push, in ns
    files: List[FileHash] = bulk(file_hashes)  # as of the push
    links: Tuple[Tuple[str, str], ...] = field(Fields.text_pairs)  # path, target
    placing: Sequence[Any] = bulk(Fields.long_list, default=())  # entries that an interrupted push may have put there


def pushed_files(state: str) -> Iterator[PushedFiles]:
    """What pushes have put into each folder; records that are damaged or cannot be read are left out."""
    folder = os.path.join(state, "pushed")
    for name in names_in(folder):
        try:
            pushed = read_record(PushedFiles, read_json(os.path.join(folder, name)), "pushed")
        except (OSError, ValueError, RecursionError):
            continue
        yield pushed


def pushed_in(state: str, root: bytes) -> Dict[str, List[int]]:
    """The files that pushes have put into a folder or below it: path → stats as of the latest push of it."""
    stats_by_path: Dict[str, List[int]] = {}
    for pushed in sorted(pushed_files(state), key=lambda one: one.at):
        for path, (stats, _) in pushed.files:
            inside = _path_from(root, on_disk(pushed.root), path)
            if inside:
                stats_by_path[inside] = stats
    return stats_by_path


def _path_from(root: bytes, folder: bytes, path: str) -> Optional[str]:
    """The path below ``root`` of a path below ``folder``, which may lie above or below it; None if it is elsewhere."""
    full, start = os.path.join(as_text(folder), path), os.path.join(as_text(root), "")
    return full[len(start) :] if full.startswith(start) else None


class PushRecord:
    """What pushes have put into the folder ``root``, with the interface that WorkdirUpdate takes.

    ``entries`` are those that a push may replace while they are unchanged; ``choose`` sets them.
    """

    def __init__(self, state: str, root: bytes) -> None:
        self.root = root
        self.entries: List[Entry] = []
        self._state = state
        self._path = os.path.join(state, "pushed", _file_name(root))
        self._files: Hashes = {}
        self._targets: Dict[str, str] = {}
        self._placing: List[Entry] = []
        self._at, self._boot = 0, ""
        self._read()

    def _read(self) -> None:
        """Read the record; a damaged one counts as empty, so the files there count as the host's own."""
        try:
            pushed = read_record(PushedFiles, read_json(self._path), "pushed")
            self._placing = [checked_entry(entry) for entry in pushed.placing]
        except (ValueError, RecursionError):  # there is none, or it is damaged
            return
        self._at, self._boot = pushed.at, pushed.boot
        self._files, self._targets = dict(pushed.files), dict(pushed.links)

    def disk(self) -> Disk:
        """The folder as it is; hashes are reused only within one boot."""
        return Disk(self.root, self._files if self._boot == boot_id() else {}, self._at)

    def choose(self, plan: Iterable[Entry], *, overwrite: bool) -> None:
        """Add to ``entries`` what pushes have put at the paths of ``plan``; with ``overwrite`` whatever is there."""
        disk, paths = self.disk(), {entry.path for entry in plan}
        for other in (self, *self._overlapping(paths)):
            for entry in other.recorded():
                path = _path_from(self.root, other.root, entry.path)
                if path in paths:
                    self.entries.append(entry._replace(path=path))
        present = [disk.entry(path) for path in paths] if overwrite else []
        self.entries += [entry for entry in present if entry and entry.kind in (FILE, LINK)]

    def _overlapping(self, paths: Set[str]) -> "Iterator[PushRecord]":
        """The records of pushes into folders above this one, and into those below it in which these paths lie."""
        names = set(names_in(os.path.dirname(self._path)))
        above = [self.root[:end] or b"/" for end, sign in enumerate(self.root) if sign == ord("/")]
        below = (os.path.join(self.root, folder) for folder in folders_above(map(on_disk, paths)))
        for folder in (*above, *below):
            if folder != self.root and _file_name(folder) in names:
                yield PushRecord(self._state, folder)

    def recorded(self) -> List[Entry]:
        """What pushes into this folder have put there, or may have before they broke off."""
        files = [
            Entry(path, FILE, False, stats[0], content_of(chunks)) for path, (stats, chunks) in self._files.items()
        ]
        return [*files, *(link_entry(path, target) for path, target in self._targets.items()), *self._placing]

    def begin(self, plan: Iterable[Entry]) -> None:
        """Record, before any change, that ``plan`` counts as a push's from now on, where it is on disk."""
        recorded = {(entry.path, entry.content) for entry in self.recorded()}
        new = [entry for entry in plan if (entry.path, entry.content) not in recorded]
        if new:
            self._placing += new
            self._save()

    def complete(
        self, plan: Iterable[Entry], chunk_lists: Dict[str, List[str]], proved_stats: Callable[[str], Stats]
    ) -> None:
        """Record that ``plan`` is in place; ``proved_stats`` is WorkdirUpdate's.

        A file that was changed since its content was proved is recorded with the stats of then: it counts as changed.
        """
        time.sleep(_MTIME_RESOLUTION)
        for entry in plan:
            self._files.pop(entry.path, None)
            self._targets.pop(entry.path, None)
            if entry.kind == LINK:
                self._targets[entry.path] = entry.content
            else:
                stats = self._with_ctime(entry.path, proved_stats(entry.path))
                self._files[entry.path] = (stats, chunk_lists.get(entry.content) or [entry.content])
        placed = {entry.path for entry in plan}
        self._placing = [entry for entry in self._placing if entry.path not in placed]
        self._at, self._boot = time.time_ns(), boot_id()
        self._save()

    def _save(self) -> None:
        pushed = PushedFiles(
            root=as_text(self.root),
            boot=self._boot,
            at=self._at,
            files=list(self._files.items()),
            links=tuple(self._targets.items()),
            placing=self._placing,
        )
        private_folder(os.path.dirname(self._path))
        write_private(self._path, to_json(to_fields(pushed)).encode())

    def _with_ctime(self, path: str, stats: Stats) -> Stats:
        """Fill in a ctime of 0, unless the file was changed since it had these stats."""
        if stats[2]:
            return stats
        info = Disk(self.root).info(path)
        now = stats_of(info) if info else stats
        return now if [now[0], now[1], 0, now[3]] == stats else stats


def _file_name(root: bytes) -> str:
    """The name of the record of pushes into this folder."""
    return hashlib.sha256(root).hexdigest()[:24] + ".json"
