"""Hashes of a folder's files, kept for one boot of a host, so that only changed files are read again."""

import os
import time
from typing import List, NamedTuple, Tuple

from ..shared.schema.fields import Fields
from ..shared.schema.json_text import read_json, to_json
from ..shared.schema.record import bulk, field, read_record, record, to_fields
from ..shared.wire.chunks import digest_of
from ..shared.workdir.manifest import Disk, Stats, as_text
from ..system.bootstrap import Refused, private_folder, write_private
from ..system.procfs import boot_id

_STATS = 4  # numbers in a file's stats (manifest.py)
FileHash = Tuple[str, Tuple[Stats, List[str]]]  # path → stats, digests of its chunks: an item of Hashes


def file_hashes(fields: Fields, name: str) -> List[FileHash]:
    """Read a long list of files with their stats and the digests of their chunks."""
    rows = fields.long_list(name)
    try:
        files = [(str(path), (list(stats), [str(one) for one in chunks])) for path, (stats, chunks) in rows]
    except (TypeError, ValueError):
        files = []
    if len(files) != len(rows) or not all(len(stats) == _STATS and chunks for _, (stats, chunks) in files):
        raise fields.wrong(name, rows, "a list of files")
    return files


@record
class HashFile(NamedTuple):
    """The stored hashes of one folder."""

    root: str = field(Fields.text)
    at: int = field(Fields.number)  # when the files were read, in ns
    boot: str = field(Fields.text)
    files: List[FileHash] = bulk(file_hashes)


class StoredHashes:
    """The hashes of files below ``root``, stored in the folder ``name`` of the state folder."""

    def __init__(self, state: str, root: bytes, name: str) -> None:
        self._root = root
        self._path = os.path.join(state, name, digest_of(root)[:24] + ".json")
        self._began = time.time_ns()

    def disk(self) -> Disk:
        """Return the folder's current state, with the stored hashes if they are of this boot."""
        try:
            stored = read_record(HashFile, read_json(self._path), "hashes")
        except (ValueError, RecursionError):  # there are none, or they are damaged
            return Disk(self._root)
        return Disk(self._root, dict(stored.files) if stored.boot == boot_id() else {}, stored.at)

    def save(self, disk: Disk) -> None:
        """Save the hashes that ``disk`` has collected; if that fails, the files are read again the next time."""
        stored = HashFile(as_text(self._root), self._began, boot_id(), list(disk.seen.items()))
        try:
            private_folder(os.path.dirname(self._path))
            write_private(self._path, to_json(to_fields(stored)).encode(), durable=False)  # for one boot
        except (Refused, OSError):  # the disk is full or read-only
            pass
