"""The hash cache: hashes of earlier scans, each valid while the file's size, times and inode are unchanged."""

# Names are bytes, because a file name may be no valid text; pathlib has text only.
from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from clusterddp.project import project_folder
from clusterddp.remote.shared.wire.chunks import hash_file
from clusterddp.remote.shared.workdir.manifest import Hashes, as_text, stats_of

if TYPE_CHECKING:
    import os
    from pathlib import Path

FILE_NAME = "hashes.json"
_MIN_AGE = 2 * 10**9  # ns: a newer file is not cached, as it may change again without a change of its times


class HashCache:
    """The hashes kept in the file ``name`` of a project's folder, and those of the current scan."""

    def __init__(self, folder: Path, name: str = FILE_NAME) -> None:
        self._started = time.time_ns()
        self._current: Hashes = {}
        self.read = 0  # the number of files read and hashed
        self._loaded = _load(folder / name)

    @property
    def changed(self) -> bool:
        """Whether this scan's hashes differ from the loaded ones."""
        return self._current != self._loaded

    def encoded(self) -> bytes:
        """Encode the hashes of this scan, to be written for the next one."""
        return json.dumps(self._current, separators=(",", ":")).encode()

    def get(self, root: bytes, name: bytes, info: os.stat_result) -> tuple[int, list[str]]:
        """Return a file's size and the digests of its chunks; raises OSError if it cannot be read."""
        path, stats = as_text(name), stats_of(info)
        cached = self._loaded.get(path)
        if cached and cached[0] == stats:
            self._current[path] = cached
            return info.st_size, cached[1]
        self.read += 1
        size, digests = hash_file(root + b"/" + name)
        if max(info.st_mtime_ns, info.st_ctime_ns) < self._started - _MIN_AGE:
            self._current[path] = (stats, digests)
        return size, digests


def _load(path: Path) -> Hashes:
    """Read the hashes from a file; empty if it is missing or damaged: then every file is hashed again."""
    try:
        loaded = json.loads(project_folder.read(path))
    except (OSError, ValueError, RecursionError):
        return {}
    entries = loaded.items() if isinstance(loaded, dict) else ()
    return {name: (entry[0], entry[1]) for name, entry in entries if _is_entry(entry)}


def _is_entry(value: object) -> bool:
    """Whether a value looks like an entry of ``Hashes``: two lists, of stats and of digests."""
    return isinstance(value, list) and list(map(type, value)) == [list, list]
