"""The sync record of a workdir, in the state folder: which files syncs have put there; and the workdir's lock.

Not here: what follows from it (sync/apply.py, sync/place.py).
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from typing import Dict, Iterator, List, Tuple

from ..shared.manifest import Disk, Entry, as_text, on_disk
from ..system.bootstrap import Refused, private_folder, read_json, write_private

LOCK_WAIT = 120.0  # seconds for another sync of the same workdir to end


class SyncRecord:
    """The entries that syncs have put into one folder (of an interrupted sync: old and new), and their stats."""

    def __init__(self, state: str, root: bytes) -> None:
        self.root = root
        self.path = record_path(state, root)
        data = read_json(self.path) or {}
        self.digest: str = data.get("digest", "")
        self.entries = [Entry(*values) for values in data.get("entries", [])]
        self.links: List[str] = data.get("links", [])
        self.token: str = data.get("token", "")
        self.stats: Dict[str, Tuple[List[int], str]] = data.get("stats", {})
        self.scanned_ns: int = data.get("at", 0)
        self._boot: str = data.get("boot", "")

    def disk(self) -> Disk:
        """The folder as it is; hashes are reused within one boot only: a power cut can undo what stats promise."""
        return Disk(self.root, self.stats if self._boot == boot_id() else {}, self.scanned_ns)

    def present_entries(self, disk: Disk) -> List[Entry]:
        """The entries now on ``disk`` at the paths that syncs have put."""
        paths = dict.fromkeys(entry.path for entry in self.entries)
        return [entry for entry in map(disk.entry, paths) if entry]

    def unchanged_entries(self) -> List[Entry]:
        """The entries that nobody changed since they were put."""
        put = set(self.entries)
        return [entry for entry in self.present_entries(self.disk()) if entry in put]

    def begin(self, token: str, entries: List[Entry]) -> None:
        """Record, before any change, all that will be ours if the sync is cut, and its staging folder's name."""
        self.digest, self.token, self.entries = "", token, entries
        self.save()

    def complete(self, digest: str, entries: List[Entry], disk: Disk, looked: int) -> None:
        """Record a proved folder."""
        self.digest, self.entries, self.stats, self.scanned_ns, self.token = digest, entries, disk.seen, looked, ""
        self._boot = boot_id()
        self.save()

    def save(self) -> None:
        """Write the record."""
        value = {
            "workdir": as_text(self.root), "digest": self.digest, "entries": self.entries, "links": self.links,
            "token": self.token, "stats": self.stats, "at": self.scanned_ns, "boot": self._boot,
        }  # fmt: skip
        write_private(self.path, json.dumps(value, separators=(",", ":")).encode())


def changed_files(state: str, workdir: str) -> List[str]:
    """The paths in a workdir that were changed since the last sync; no lock is taken, nothing is written.

    Empty where no sync has put any, and after one that was cut: the next one mends that.
    """
    record = SyncRecord(state, os.path.realpath(on_disk(workdir)))
    if not record.digest:
        return []
    standing = set(record.unchanged_entries())
    return [entry.path for entry in record.entries if entry not in standing]


def record_path(state: str, root: bytes) -> str:
    """Where the record of a folder lies."""
    return os.path.join(state, "workdirs", hashlib.sha256(root).hexdigest()[:24] + ".json")


@contextlib.contextmanager
def locked(state: str, root: bytes) -> Iterator[None]:
    """Hold the workdir's lock.

    Raises:
        Refused: another sync holds it for longer than LOCK_WAIT.
    """
    private_folder(os.path.join(state, "workdirs"))
    handle = os.open(record_path(state, root) + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_WAIT
    try:
        while not _try_lock(handle):
            if time.monotonic() > deadline:
                raise Refused("another sync holds %s" % as_text(root), "wait for it to end")
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def boot_id() -> str:
    """The kernel's boot id, which changes with each boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        return stream.read().strip()
