"""The operation ``holdings``: all that clusterddp has in this account on a host, so that ``down`` can show it."""

import os
import stat
from typing import Any, Dict, Iterator, List, Set, Tuple

from ..helper.request import Request
from ..shared.cleanup.cleanup_records import ActiveRun, HoldingsAnswer, HoldingsRequest, SizedFolder, WorkdirHeld
from ..shared.schema.record import to_fields
from ..shared.workdir.manifest import as_text, on_disk
from ..spool.layout import all_spools
from ..system.bootstrap import Refused, home_folder
from ..system.disk_space import disk_usage
from ..workdir.data import DataRecord
from ..workdir.folder_lock import LIVE_FOLDER, folder_id
from ..workdir.live_runs import live_runs
from ..workdir.other_workdirs import files_of
from ..workdir.push_record import pushed_files
from ..workdir.stat_cache import stat_caches
from ..workdir.sync_record import SyncRecord
from ..workdir.workdir import named_workdirs, workdir_path
from .helpers import unended_jobs

_LARGEST = 3  # how many of a workdir's largest files are listed


def holdings(request: Request) -> Dict[str, Any]:
    """Operation: the state folders, runs, workdirs and pushed files of this account.

    Takes a ``HoldingsRequest``, returns a ``HoldingsAnswer``.
    """
    state = request.state
    states = state_folders(state)
    roots = workdirs(states, state, request.read_args(HoldingsRequest).workdir)
    return to_fields(
        HoldingsAnswer(
            states=tuple(SizedFolder(path=folder, size=disk_usage(folder)) for folder in states),
            runs=len({spool.run for folder in states for spool in all_spools(folder)}),
            live=tuple(find_live_runs(states, roots)),
            workdirs=tuple(_measure(state, root) for root in roots),
            pushed=tuple(_pushed_folders(states, roots)),
        )
    )


def state_folders(state: str) -> List[str]:
    """The state folder, and those of other settings that belong to this user; never a project's ``.clusterddp``."""
    default_folder = os.path.join(home_folder(), ".clusterddp")
    found = dict.fromkeys((state, os.path.realpath(default_folder), "/var/tmp/clusterddp-%d" % os.getuid()))  # noqa: S108 - proved
    return [path for path in found if _is_ours(path) and not os.path.lexists(os.path.join(path, "project.json"))]


def workdirs(states: List[str], state: str, project: str = "") -> List[bytes]:
    """The workdirs on record, the project's, and the folders beside them; each checked to have been made by a sync."""
    roots: Set[bytes] = set()
    for path in _recorded_workdirs(states, project):
        try:
            root = workdir_path(path, state)
        except Refused:  # it is a home, a state folder, or a file by now
            continue
        roots.update((root, *named_workdirs(root)))
    return sorted(root for root in roots if _is_ours(root) and _is_ours(os.path.join(root, LIVE_FOLDER)))


def find_live_runs(states: List[str], roots: List[bytes]) -> List[ActiveRun]:
    """The runs of anyone on this account that are live on this host, or on another host in a workdir that is here."""
    found: Dict[str, ActiveRun] = {}
    for state in states:
        for spool in all_spools(state):
            plan = spool.readable_plan() if spool.alive() and spool.run not in found else None
            record = plan.record if plan else None
            if spool.alive():
                found.setdefault(spool.run, ActiveRun(spool.run, *_label_and_operator(record)))
        for run in unended_jobs(state):
            found.setdefault(run, ActiveRun(run, "", ""))
        for root in roots:
            for marker in live_runs(state, root):
                found.setdefault(marker.run, ActiveRun(marker.run, "", ""))
    return sorted(found.values())


def _label_and_operator(record: Any) -> Tuple[str, str]:
    """A run's label and who started it; empty where the plan is damaged."""
    return (record.label or "", record.operator or "") if record else ("", "")


def _is_ours(path: Any) -> bool:
    """Whether a path is a folder, no link, that belongs to this user."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid()


def _recorded_workdirs(states: List[str], project: str) -> Iterator[str]:
    """The project's workdir, and those that a sync has recorded in the state folders."""
    if project:
        yield project
    for state in states:
        yield from (folder for _, folder in stat_caches(state) if folder)


def _measure(state: str, root: bytes) -> WorkdirHeld:
    """A workdir's size; ``own``: its files that no sync put there, or that were changed since."""
    code, data = SyncRecord(state, root), DataRecord(state, root)
    code_disk, data_disk = code.disk(), data.disk()
    synced = {entry.path: (code_disk, entry) for entry in code.entries}
    synced.update((path, (data_disk, entry)) for path, entry in data.entries(data_disk).items())
    taken = own = own_bytes = 0
    largest: List[Tuple[int, str]] = []
    for path, info in files_of(root):
        taken += info.st_blocks * 512
        disk, entry = synced.get(path, (None, None))
        current = disk.entry(path) if disk and entry and entry.size == info.st_size else None
        if current is None or entry is None or current.content != entry.content:
            own, own_bytes = own + 1, own_bytes + info.st_size
            largest = sorted([*largest, (info.st_size, path)], reverse=True)[:_LARGEST]
    return WorkdirHeld(
        path=as_text(root),
        ident=folder_id(root) or "",
        bytes=taken,
        own=own,
        own_bytes=own_bytes,
        largest=tuple(path for _, path in largest),
        live=tuple(sorted({marker.run for marker in live_runs(state, root)})),
    )


def _pushed_folders(states: List[str], roots: List[bytes]) -> List[SizedFolder]:
    """The folders outside workdirs that hold pushed files, with how many."""
    found: Dict[str, int] = {}
    ours = [*roots, *map(os.fsencode, states)]  # wheels of environments are pushed into state folders
    for state in states:
        for pushed in pushed_files(state):
            root = on_disk(pushed.root)
            try:
                paths = [os.path.join(root, on_disk(path)) for path, _ in pushed.files]
            except UnicodeEncodeError:  # the record is damaged
                continue
            if not any(root == folder or root.startswith(folder + b"/") for folder in ours):
                existing = sum(map(os.path.lexists, paths))
                if existing:
                    found[as_text(root)] = existing
    return [SizedFolder(path=path, size=count) for path, count in sorted(found.items())]
