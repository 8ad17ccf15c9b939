"""The record of what pushes (user_files/push_operations.py) have put into one folder, kept in the state folder."""

import hashlib
import os
import time
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Tuple

from ..shared.schema.fields import Fields
from ..shared.schema.json_text import read_json, to_json
from ..shared.schema.record import bulk, checked, field, read_record, record, to_fields
from ..shared.wire.chunks import content_of
from ..shared.workdir.manifest import FILE, LINK, Disk, Entry, Hashes, Stats, as_text, link_entry, on_disk, stats_of
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
    """The files that pushes have put into a folder or below it: path → stats as of the push."""
    stats_by_path: Dict[str, List[int]] = {}
    for pushed in pushed_files(state):
        folder = on_disk(pushed.root)
        inside = as_text(folder[len(root) + 1 :]) + "/" if folder != root else ""
        if folder == root or folder.startswith(root + b"/"):
            stats_by_path.update((inside + path, stats) for path, (stats, _) in pushed.files)
    return stats_by_path


class PushRecord:
    """What pushes have put into the folder ``root``, with the interface that WorkdirUpdate takes.

    ``entries`` are those that a push may replace while they are unchanged; ``choose`` sets them.
    """

    def __init__(self, state: str, root: bytes) -> None:
        self.root = root
        self.entries: List[Entry] = []
        self._path = os.path.join(state, "pushed", hashlib.sha256(root).hexdigest()[:24] + ".json")
        self._files: Hashes = {}
        self._targets: Dict[str, str] = {}
        self._at, self._boot = 0, ""
        self._read()

    def _read(self) -> None:
        """Read the record; a damaged one counts as empty, so the files there count as the host's own."""
        try:
            pushed = read_record(PushedFiles, read_json(self._path), "pushed")
        except (ValueError, RecursionError):  # there is none, or it is damaged
            return
        self._at, self._boot = pushed.at, pushed.boot
        self._files, self._targets = dict(pushed.files), dict(pushed.links)

    def disk(self) -> Disk:
        """The folder as it is; hashes are reused only within one boot."""
        return Disk(self.root, self._files if self._boot == boot_id() else {}, self._at)

    def choose(self, plan: Iterable[Entry], *, overwrite: bool) -> None:
        """Add to ``entries`` what pushes have put at the paths of ``plan``; with ``overwrite`` whatever is there."""
        disk = self.disk()
        for path in (entry.path for entry in plan):
            if path in self._files:
                stats, chunks = self._files[path]
                self.entries.append(Entry(path, FILE, False, stats[0], content_of(chunks)))
            elif path in self._targets:
                self.entries.append(link_entry(path, self._targets[path]))
            present = disk.entry(path) if overwrite else None
            if present and present.kind in (FILE, LINK):
                self.entries.append(present)

    def complete(
        self, plan: Iterable[Entry], chunk_lists: Dict[str, List[str]], proved_stats: Callable[[str], Stats]
    ) -> None:
        """Record that ``plan`` is in place; ``proved_stats`` is WorkdirUpdate's.

        A file that was changed since its content was proved is recorded with the stats of then: it counts as changed.
        """
        time.sleep(_MTIME_RESOLUTION)
        for entry in plan:
            if entry.kind == LINK:
                self._targets[entry.path] = entry.content
                self._files.pop(entry.path, None)
            else:
                stats = self._with_ctime(entry.path, proved_stats(entry.path))
                self._files[entry.path] = (stats, chunk_lists.get(entry.content) or [entry.content])
        files, links = list(self._files.items()), tuple(self._targets.items())
        pushed = PushedFiles(root=as_text(self.root), boot=boot_id(), at=time.time_ns(), files=files, links=links)
        private_folder(os.path.dirname(self._path))
        write_private(self._path, to_json(to_fields(pushed)).encode())

    def _with_ctime(self, path: str, stats: Stats) -> Stats:
        """Fill in a ctime of 0, unless the file was changed since it had these stats."""
        if stats[2]:
            return stats
        info = Disk(self.root).info(path)
        now = stats_of(info) if info else stats
        return now if [now[0], now[1], 0, now[3]] == stats else stats
