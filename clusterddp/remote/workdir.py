"""workdir_state and sync_apply: a run's code in its workdir, the same on every host, proved.

A record in the state folder, never in the workdir, tells what earlier syncs put there. Only that is replaced
or deleted, and only while nobody changed it. While a run is live in the workdir and the code there would
have to change, the new code goes to a sibling, ``<workdir>~<digest>``, that links back to everything else.

Not here: the changes on disk (placing.py), the sibling's links (sibling.py). On a network filesystem every
host has a record and a lock of its own; the operator lets such hosts go one after the other.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from . import manifest, sibling
from .manifest import Disk, Entry, as_text, on_disk
from .placing import Placing
from .request import Request
from .spool import all_spools
from .state import NETWORK_FILESYSTEMS, Refused, filesystem_type, home_folder, private_folder, read_json, write_private
from .stream import Incoming

LOCK_WAIT = 120.0  # seconds for another sync of the same workdir to end


class Record:
    """What syncs have put into one folder: entries (of a sync that was cut: old and new), and their stats."""

    def __init__(self, state: str, root: bytes) -> None:
        self.root = root
        self.path = record_path(state, root)
        data = read_json(self.path) or {}
        self.digest: str = data.get("digest", "")
        self.entries = [Entry(*values) for values in data.get("entries", [])]
        self.links: List[str] = data.get("links", [])
        self.token: str = data.get("token", "")
        self.stats: Dict[str, Tuple[List[int], str]] = data.get("stats", {})
        self.at: int = data.get("at", 0)
        self._boot: str = data.get("boot", "")

    def disk(self) -> Disk:
        """The folder as it is; hashes are reused within one boot only: a power cut can undo what stats promise."""
        return Disk(self.root, self.stats if self._boot == boot() else {}, self.at)

    def settle(self, digest: str, entries: List[Entry], disk: Disk, looked: int) -> None:
        """Record a proved folder."""
        self.digest, self.entries, self.stats, self.at, self.token = digest, entries, disk.seen, looked, ""
        self._boot = boot()
        self.save()

    def save(self) -> None:
        """Write the record."""
        value = {
            "workdir": as_text(self.root), "digest": self.digest, "entries": self.entries, "links": self.links,
            "token": self.token, "stats": self.stats, "at": self.at, "boot": self._boot,
        }  # fmt: skip
        write_private(self.path, json.dumps(value, separators=(",", ":")).encode())


def workdir_state(request: Request) -> Dict[str, Any]:
    """Whether a workdir holds the code of ``digest``, proved; else what it holds.

    Args:
        request: args ``workdir``, ``digest``, ``folders`` (to be there for a worker's cwd), ``aside`` (True: another
            host that shares this folder has a live run in it).

    Returns:
        ``{ready, workdir, notice, shared, live}``, and ``have`` (entries) where it is not ready.
        ``shared`` names the folder where other hosts may see it too, else null.

    Raises:
        Refused: the folder may not be a workdir, or another sync holds it for long.
    """
    args = request.args
    with guarded(args) as primary:
        target, record, live = choose(args, primary)
        looked = time.time_ns()
        disk = record.disk()
        have = _have(record, disk)
        ready = bool(record.digest) and record.digest == args["digest"] and have == record.entries
        answer = {"ready": ready, "workdir": as_text(target), "live": live, "shared": _shared(primary)}
        answer["notice"] = sibling.notice(primary, target, live)
        if not ready:
            return dict(answer, have=have)
        if disk.hashed:
            record.settle(record.digest, record.entries, disk, looked)
        _finish(args, primary, record)
        return answer


def sync_apply(request: Request) -> Dict[str, Any]:
    """Bring a workdir to the manifest sent, then read every file of it again and prove the digest.

    The operator's data (stream.py): the manifest, then the contents this host lacks.

    Args:
        request: args as for ``workdir_state``, and ``manifest`` (bytes), ``encoding``.

    Returns:
        ``{workdir, digest, sent, removed, kept: [[path, kept as]], notice}``; or ``{missing}``, and nothing was
        changed, when the host changed since it was asked and lacks contents that were not sent.

    Raises:
        Refused: a path leads out of the workdir, the disk is full, the digest differs, …
    """
    args = request.args
    incoming = Incoming(request.read, args["encoding"])
    try:
        plan = manifest.decode(incoming.take(args["manifest"]))
    except manifest.BadManifest as error:
        raise Refused(str(error)) from error
    if manifest.digest(plan) != args["digest"]:
        raise Refused("the manifest came damaged", "sync again")
    with guarded(args) as primary:
        try:
            return _apply(args, primary, plan, incoming)
        except OSError as error:
            place = os.fsdecode(error.filename) if error.filename else as_text(primary)
            raise Refused(
                "cannot sync to %s: %s" % (place, error.strerror), "make room or give rights there, then sync again"
            ) from error


def _apply(args: Dict[str, Any], primary: bytes, plan: List[Entry], incoming: Incoming) -> Dict[str, Any]:
    target, record, live = choose(args, primary, plan)
    os.makedirs(target, exist_ok=True)
    placing = Placing(record, plan)
    if placing.changes and live_runs(args["state"], target):
        raise Refused(
            "the code in %s was changed on this host while a run uses it" % as_text(target),
            "undo the change or stop that run",
        )
    placing.check()
    record.token = placing.token
    record.entries = placing.either()
    record.digest = ""
    record.save()
    missing = placing.stage(incoming)
    if missing:
        return {"missing": missing[:20]}
    placing.place()
    looked = time.time_ns()
    proof = Disk(target)
    found = [proof.entry(entry.path) for entry in plan]
    for entry, there in zip(plan, found):
        if entry != there:
            raise Refused("%s on this host is not what was synced" % entry.path, "sync again; is another program writing there?")
    record.settle(args["digest"], plan, proof, looked)
    _finish(args, primary, record)
    return {
        "workdir": as_text(target),
        "digest": manifest.digest(entry for entry in found if entry),
        "sent": placing.sent,
        "removed": placing.removed,
        "kept": placing.kept,
        "notice": sibling.notice(primary, target, live),
    }


def choose(
    args: Dict[str, Any], primary: bytes, plan: Optional[List[Entry]] = None
) -> Tuple[bytes, Record, List[str]]:
    """The folder for this code: the workdir, or its sibling while a live run forbids a change there.

    Returns: the folder, its record, and the live runs in the workdir.
    """
    state, record = args["state"], Record(args["state"], primary)
    live = live_runs(state, primary) or (["of another host"] if args.get("aside") else [])
    if not live or _in_place(args, record, plan):
        return primary, record, live
    target = sibling.path(primary, args["digest"])
    return target, Record(state, target), live


def _in_place(args: Dict[str, Any], record: Record, plan: Optional[List[Entry]]) -> bool:
    if plan is not None:
        return not Placing(record, plan).changes
    return record.digest == args["digest"] and _have(record, record.disk()) == record.entries


def _have(record: Record, disk: Disk) -> List[Entry]:
    paths = dict.fromkeys(entry.path for entry in record.entries)
    return [entry for entry in map(disk.entry, paths) if entry]


def _finish(args: Dict[str, Any], primary: bytes, record: Record) -> None:
    """What a ready workdir has besides its code: the worker's cwd, and a sibling's links."""
    for folder in args.get("folders") or []:
        os.makedirs(os.path.join(record.root, on_disk(manifest.checked_path(folder))), exist_ok=True)
    if record.root != primary:
        main = Record(args["state"], primary)
        links = sibling.link_back(primary, record.root, record.entries, _have(main, main.disk()), record.links)
        if links != record.links:
            record.links = links
            record.save()


def confirm(state: str, workdir: str, digest: str) -> None:
    """Whether the workdir still holds the code of ``digest`` by its record; call it once the run's lock is held.

    A sync that came in between either saw that lock, and left the workdir alone, or is seen here.

    Raises:
        Refused: another sync has put other code there meanwhile.
    """
    root = os.path.realpath(on_disk(workdir))
    with locked(state, root):
        if Record(state, root).digest != digest:
            raise Refused("another sync has changed the code in %s meanwhile" % workdir, "run again")


@contextlib.contextmanager
def guarded(args: Dict[str, Any]) -> Iterator[bytes]:
    """The workdir's real path, locked against other syncs."""
    root = locate(args["workdir"], args["state"])
    with locked(args["state"], root):
        yield root


def locate(workdir: str, state: str) -> bytes:
    """The real path of a workdir.

    Raises:
        Refused: it is not absolute, or it is a folder that holds other things than a project.
    """
    setting = "set clusterddp_workdir to a folder of its own"
    if workdir.startswith("~/"):
        workdir = os.path.join(home_folder(), workdir[2:])
    if not os.path.isabs(workdir):
        raise Refused("the workdir %r is not absolute" % workdir, setting)
    root = os.path.realpath(on_disk(workdir))
    folder, home, own = root + b"/", os.path.realpath(on_disk(home_folder())), os.path.realpath(on_disk(state))
    if root == b"/" or (home + b"/").startswith(folder) or root == own or root.startswith(own + b"/"):
        raise Refused("%s cannot be a workdir" % as_text(root), setting)
    if os.path.lexists(root) and not os.path.isdir(root):
        raise Refused("the workdir %s is not a folder" % as_text(root), setting)
    return root


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


def live_runs(state: str, root: bytes) -> List[str]:
    """The runs that live in this very folder now."""
    found = []
    for spool in all_spools(state):
        if spool.alive():
            workdir = spool.plan().get("workdir")
            if workdir and os.path.realpath(on_disk(workdir)) == root:
                found.append(spool.run)
    return sorted(set(found))


def boot() -> str:
    """This boot, as far as the page cache goes."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        return stream.read().strip()


def _shared(root: bytes) -> Optional[str]:
    """A name for the folder where other hosts may see the same one, else None."""
    there = root
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    if filesystem_type(as_text(there)) not in NETWORK_FILESYSTEMS:
        return None
    return "%s %d" % (as_text(root), os.stat(there).st_ino)
