"""Retention: old spools are removed by age and by size, at the start of a run and by ``down``.

A spool is one node's folder of one attempt of a run.
Spools of a live run stay, and those whose processes may still exist: a stop finds these by the spool. Only spools of
the hosts that this connection represents are removed; other hosts may share the folder.
"""

import os
import shutil
import time
from typing import Container, Dict, List, Optional, Set, Tuple

from ..processes.ownership import NodeProcesses
from ..shared.cleanup.cleanup_records import PathLeft
from ..shared.run.run_state import RunState
from ..spool.layout import Spool, all_spools, is_starting
from ..system import procfs
from ..system.bootstrap import Refused
from ..system.disk_space import disk_usage
from ..system.small_files import names_in
from .helpers import remove_unused_helpers

MAX_AGE_DAYS = 30  # spools that ended earlier are removed
MAX_BYTES = 20 * 10**9  # for each host
PRUNE_INTERVAL = 3600.0  # seconds between two prunes at the start of runs
PRUNE_TIMEOUT = 2.0  # seconds that a run's start spends on it
TRASH = "trash"  # begins the names, in the state folder, of spools whose removal goes on or was interrupted


class RemovalCounts:
    """Removes spools, and counts them, their run dirs, and the bytes of both."""

    def __init__(self) -> None:
        self.spools = self.run_dirs = self.bytes = 0
        self._left: Dict[str, str] = {}  # run dirs that stay → why

    @property
    def left(self) -> Tuple[PathLeft, ...]:
        """The run dirs that could not be removed."""
        return tuple(PathLeft(path, why) for path, why in self._left.items())

    def remove(self, state: str, spool: Spool, *, run_dir: bool) -> None:
        """Remove a spool; with ``run_dir`` first its workers' run dir. If that cannot be removed, the spool is kept."""
        path = os.path.join(state, "rundirs", "%s-%s" % (spool.run, spool.host))
        if run_dir and (path in self._left or (os.path.isdir(path) and not self._remove_run_dir(path))):
            return
        self.bytes += disk_usage(spool.folder)
        self.spools += 1
        remove_spool(state, spool)

    def _remove_run_dir(self, path: str) -> bool:
        """Remove a run dir as far as possible; return whether all of it was removed."""
        size = disk_usage(path)
        try:
            shutil.rmtree(path)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            if os.path.isdir(path):
                self._left[path] = error.strerror or str(error)
        self.bytes += max(0, size - disk_usage(path))  # a container may still write into it
        self.run_dirs += path not in self._left
        return path not in self._left


def prune_at_start(state: str, hosts: Container[str]) -> None:
    """Prune at most once an hour, for two seconds at most; errors are ignored, since the run can start without it.

    Helpers that nobody has used for as long as runs are kept are removed too: each version of clusterddp leaves one.
    """
    try:
        if take_hourly_turn(os.path.join(state, "pruned")):
            prune(state, hosts, time.monotonic() + PRUNE_TIMEOUT)
            remove_unused_helpers(state, this_version=False, unused=MAX_AGE_DAYS * 86400)
    except (OSError, ValueError, Refused):  # a full disk, another user's folder: the next start or `down` tries again
        pass


def take_hourly_turn(stamp_file: str) -> bool:
    """Return whether ``stamp_file`` is missing or over an hour old, and if so set its modification time to now."""
    if os.path.exists(stamp_file) and abs(time.time() - os.stat(stamp_file).st_mtime) < PRUNE_INTERVAL:
        return False
    os.close(os.open(stamp_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    os.utime(stamp_file)
    return True


def prune(state: str, hosts: Container[str], deadline: float = float("inf")) -> RemovalCounts:
    """Remove spools that ended more than 30 days ago, then the oldest ones beyond 20 GB."""
    for name in names_in(state):
        if name == TRASH or (name.startswith(TRASH + ".") and name.endswith(".tmp")):  # the former: earlier versions'
            shutil.rmtree(os.path.join(state, name), ignore_errors=True)
    spools = [spool for spool in all_spools(state) if spool.host in hosts]
    of_run: Dict[str, List[Spool]] = {}
    for spool in spools:
        of_run.setdefault(spool.run, []).append(spool)
    live, removed = live_runs(state), RemovalCounts()
    is_over: Dict[str, bool] = {}  # run → whether it has ended and left no process
    total: Optional[int] = None  # bytes of all spools, measured when the old ones have gone
    for ended, spool in sorted(((ended_at(spool), spool) for spool in spools), key=lambda pair: pair[0]):
        if time.monotonic() > deadline:
            break
        if time.time() - ended <= MAX_AGE_DAYS * 86400:
            if total is None:  # of as many as the time allows
                folders = (one.folder for one in spools if time.monotonic() <= deadline)
                total = removed.bytes + sum(map(disk_usage, folders))
            if total - removed.bytes <= MAX_BYTES:
                break
        if spool.run not in is_over:
            is_over[spool.run] = spool.run not in live and all(map(nothing_left, of_run[spool.run]))
        if is_over[spool.run]:
            removed.remove(state, spool, run_dir=False)
    return removed


def live_runs(state: str) -> Set[str]:
    """The runs that have a live supervisor, or are being started, on any host that shares this state folder."""
    return {spool.run for spool in all_spools(state) if spool.alive() or is_starting(spool)}


def ended_at(spool: Spool) -> float:
    """When the node ended (seconds since the epoch), or when its folder was last changed if that is not known."""
    record = spool.exit_record()
    try:
        return (record.ended / 1e9 if record else 0.0) or os.stat(spool.folder).st_mtime
    except FileNotFoundError:  # another connection has just removed it: too young for this one
        return time.time()


def nothing_left(spool: Spool) -> bool:
    """Whether no process of the node can be left, by its exit record or by a search of all processes."""
    record = spool.exit_record()
    if record and record.state != RunState.LOST and not record.survivors and not record.unseen:
        return True
    if any(map(procfs.exists, record.unseen if record else ())):
        return False
    return not spool.alive() and not NodeProcesses.of(spool, spool.supervisor()).find()


def remove_spool(state: str, spool: Spool) -> None:
    """Rename one spool and then remove it, so that none is ever seen half removed; then remove empty folders above."""
    trashed = os.path.join(state, "%s.%s.tmp" % (TRASH, os.urandom(8).hex()))
    try:
        os.rename(spool.folder, trashed)
    except FileNotFoundError:  # another connection has just removed it
        return
    shutil.rmtree(trashed, ignore_errors=True)
    attempt = os.path.dirname(spool.folder)
    remove_empty(attempt, os.path.dirname(attempt))


def remove_empty(*folders: str) -> None:
    """Remove those of the folders that are empty."""
    for folder in folders:
        try:
            os.rmdir(folder)
        except OSError:  # something is in it, or it was never there
            continue
