"""The sync record of a workdir: which files syncs have put there, for all hosts that share the folder.

It lies in the workdir's own dotted folder (lock.py). What each host keeps in its state folder is a memory of hashes.
Not here: what follows from it (sync/apply.py, sync/place.py).
"""

import hashlib
import json
import os
from typing import Any, Dict, List

from ..shared.fields import Fields
from ..shared.manifest import Disk, Entry, Hashes, as_text, checked_entry, checked_path, on_disk
from ..system.bootstrap import private_folder, read_json, write_private
from .lock import PLACE

RECORD = b"record.json"
_MOST = 1 << 22  # entries; a sync has 20,000 files at most unless more are asked for


class SyncRecord:
    """The entries that syncs have put into one folder (of an interrupted sync: old and new), and their stats."""

    def __init__(self, state: str, root: bytes) -> None:
        self.root = root
        self.path = os.path.join(root, PLACE, RECORD)
        self._memory = memory_path(state, root)
        known = _read(self._memory)
        self.digest = ""
        self.entries: List[Entry] = []
        self.links: List[str] = []
        self.linked: Dict[str, List[int]] = {}  # of a sibling: what the workdir's files were when it last saw them
        self._take(_read(os.fsdecode(self.path)) or known)
        self.stats: Hashes = known.get("chunks", {})
        self.scanned_ns: int = known.get("at", 0)
        self._boot: str = known.get("boot", "")

    def _take(self, data: Dict[str, Any]) -> None:
        """Take the record as it was written; one that is damaged says nothing, and what is there is the host's own.

        Others may write in the folder, so each path is looked at as one that was sent.
        """
        try:
            fields = Fields(data, most=_MOST)
            entries = [checked_entry(values) for values in data.get("entries", [])]
            links = [checked_path(link) for link in data.get("links", [])]
            linked = fields.mapping("linked", Fields.numbers) if fields.given("linked") else {}
            digest = fields.text("digest") if fields.given("digest") else ""
        except (ValueError, AttributeError, TypeError):
            return
        self.digest, self.entries, self.links = digest, entries, links
        self.linked = {checked_path(path): list(stats) for path, stats in linked.items()}

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

    def begin(self, entries: List[Entry]) -> None:
        """Record, before any change, all that will be ours if the sync is cut."""
        self.digest, self.entries = "", entries
        self.save(durable=False)  # a disk takes its time; after a power cut more is kept aside, and nothing is lost

    def complete(self, digest: str, entries: List[Entry], disk: Disk, looked: int) -> None:
        """Record a proved folder."""
        self.digest, self.entries = digest, entries
        self.save()
        self.remember(disk, looked)

    def save(self, *, durable: bool = True) -> None:
        """Write the record."""
        value = {"digest": self.digest, "entries": self.entries, "links": self.links, "linked": self.linked}
        write_private(os.fsdecode(self.path), json.dumps(value, separators=(",", ":")).encode(), durable=durable)

    def remember(self, disk: Disk, looked: int) -> None:
        """Keep the hashes of the files on ``disk`` as they were from ``looked`` (ns) on."""
        self.stats, self.scanned_ns, self._boot = disk.seen, looked, boot_id()
        value = {"workdir": as_text(self.root), "chunks": self.stats, "at": self.scanned_ns, "boot": self._boot}
        private_folder(os.path.dirname(self._memory))
        write_private(self._memory, json.dumps(value, separators=(",", ":")).encode(), durable=False)  # for one boot


def _read(path: str) -> Dict[str, Any]:
    try:
        data = read_json(path)
    except (ValueError, RecursionError):  # others may write in the folder
        return {}
    return data if isinstance(data, dict) else {}


def changed_files(state: str, workdir: str) -> List[str]:
    """The paths in a workdir that were changed since the last sync; no lock is taken, nothing is written.

    Empty where no sync has put any, and after one that was cut: the next one mends that.
    """
    record = SyncRecord(state, os.path.realpath(on_disk(workdir)))
    if not record.digest:
        return []
    standing = set(record.unchanged_entries())
    return [entry.path for entry in record.entries if entry not in standing]


def memory_path(state: str, root: bytes) -> str:
    """Where this host keeps the hashes of a folder's files."""
    return os.path.join(state, "workdirs", hashlib.sha256(root).hexdigest()[:24] + ".json")


def boot_id() -> str:
    """The kernel's boot id, which changes with each boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        return stream.read().strip()
