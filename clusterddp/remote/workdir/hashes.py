"""Hashes of a folder's files, kept for one boot of a host, so that only changed files are read again."""

import os
import time
from typing import Any

from ..shared.schema.json_text import to_json
from ..shared.wire.chunks import digest_of
from ..shared.workdir.manifest import Disk, Hashes, as_text
from ..system.bootstrap import Refused, private_folder, read_json, write_private
from .stat_cache import boot_id


class KeptHashes:
    """The hashes of files below ``root``, stored in the folder ``name`` of the state folder."""

    def __init__(self, state: str, root: bytes, name: str) -> None:
        self._root = root
        self._path = os.path.join(state, name, digest_of(root)[:24] + ".json")
        self._looked = time.time_ns()

    def disk(self) -> Disk:
        """Return the folder's current state, with the stored hashes if they are of this boot."""
        try:
            data: Any = read_json(self._path) or {}
            known: Hashes = {str(path): (list(one), list(chunks)) for path, (one, chunks) in data["files"]}
            at, boot = int(data["at"]), data["boot"]
        except (ValueError, TypeError, LookupError, RecursionError):
            return Disk(self._root)
        return Disk(self._root, known if boot == boot_id() else {}, at)

    def keep(self, disk: Disk) -> None:
        """Save the hashes that ``disk`` has collected; if that fails, the files are read again the next time."""
        value = {"root": as_text(self._root), "at": self._looked, "boot": boot_id(), "files": list(disk.seen.items())}
        try:
            private_folder(os.path.dirname(self._path))
            write_private(self._path, to_json(value).encode(), durable=False)  # for one boot
        except (Refused, OSError):  # the disk is full or read-only
            pass
