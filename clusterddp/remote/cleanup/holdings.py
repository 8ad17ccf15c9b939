"""The operation ``holdings``: all that clusterddp has in this account on a host, so that ``down`` can show it."""

import os
import stat
from typing import Any, Dict, Iterator, List, Set, Tuple

from ..helper.request import Request
from ..shared.cleanup.cleanup_records import ActiveRun, HoldingsAnswer, HoldingsRequest, SizedFolder, WorkdirHeld
from ..shared.schema.record import written
from ..shared.workdir.manifest import as_text, on_disk
from ..spool.layout import all_spools
from ..system.bootstrap import Refused, home_folder
from ..system.disk_space import disk_usage
from ..workdir.data import DataRecord
from ..workdir.folder_lock import LIVE_FOLDER, folder_id
from ..workdir.live_runs import live_runs
from ..workdir.push_record import pushed_files
from ..workdir.stat_cache import folder_of
from ..workdir.sync_record import SyncRecord
from ..workdir.workdir import named_workdirs, workdir_path
from .helpers import unended_jobs

_NAMED = 3  # how many of a workdir's largest files are listed


def holdings(request: Request) -> Dict[str, Any]:
    """Operation: the state folders, runs, workdirs and pushed files of this account.

    Takes a ``HoldingsRequest``, returns a ``HoldingsAnswer``.
    """
    state = request.state
    states = state_folders(state)
    roots = workdirs(states, state, request.read_args(HoldingsRequest).workdir)
    return written(
        HoldingsAnswer(
            states=tuple(SizedFolder(path=one, size=disk_usage(one)) for one in states),
            runs=len({spool.run for one in states for spool in all_spools(one)}),
            live=tuple(live(states, roots)),
            workdirs=tuple(_measured(state, root) for root in roots),
            pushed=tuple(_pushed(states, roots)),
        )
    )


def state_folders(state: str) -> List[str]:
    """The state folder, and those of other settings that belong to this user; never a project's ``.clusterddp``."""
    usual = os.path.join(home_folder(), ".clusterddp")
    found = dict.fromkeys((state, os.path.realpath(usual), "/var/tmp/clusterddp-%d" % os.getuid()))  # noqa: S108 - proved
    return [path for path in found if _is_ours(path) and not os.path.lexists(os.path.join(path, "project.json"))]


def workdirs(states: List[str], state: str, project: str = "") -> List[bytes]:
    """The workdirs on record, the project's, and the folders beside them; each checked to have been made by a sync."""
    found: Set[bytes] = set()
    for path in _recorded(states, project):
        try:
            root = workdir_path(path, state)
        except Refused:  # it is a home, a state folder, or a file by now
            continue
        found.update((root, *named_workdirs(root)))
    return sorted(root for root in found if _is_ours(root) and _is_ours(os.path.join(root, LIVE_FOLDER)))


def live(states: List[str], roots: List[bytes]) -> List[ActiveRun]:
    """The runs of anyone on this account that are live on this host, or on another host in a workdir that is here."""
    found: Dict[str, ActiveRun] = {}
    for state in states:
        for spool in all_spools(state):
            plan = spool.readable_plan() if spool.alive() and spool.run not in found else None
            record = plan.record if plan else None
            if spool.alive():
                found.setdefault(spool.run, ActiveRun(spool.run, *_named(record)))
        for run in unended_jobs(state):
            found.setdefault(run, ActiveRun(run, "", ""))
        for root in roots:
            for one in live_runs(state, root):
                found.setdefault(one.run, ActiveRun(one.run, "", ""))
    return sorted(found.values())


def _named(record: Any) -> Tuple[str, str]:
    return (record.label or "", record.operator or "") if record else ("", "")


def _is_ours(path: Any) -> bool:
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid()


def _recorded(states: List[str], project: str) -> Iterator[str]:
    if project:
        yield project
    for state in states:
        folder = os.path.join(state, "workdirs")
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            path = folder_of(os.path.join(folder, name))
            if path:
                yield path


def _measured(state: str, root: bytes) -> WorkdirHeld:
    code, data = SyncRecord(state, root), DataRecord(state, root)
    put = {entry.path: (code.disk(), entry) for entry in code.entries}
    put.update((path, (data.disk(), entry)) for path, entry in data.entries().items())
    taken = own = own_bytes = 0
    largest: List[Tuple[int, str]] = []
    for path, info in _files(root):
        taken += info.st_blocks * 512
        disk, entry = put.get(path, (None, None))
        now = disk.entry(path) if disk and entry and entry.size == info.st_size else None
        if now is None or entry is None or now.content != entry.content:
            own, own_bytes = own + 1, own_bytes + info.st_size
            largest = sorted([*largest, (info.st_size, path)], reverse=True)[:_NAMED]
    return WorkdirHeld(
        path=as_text(root),
        ident=folder_id(root) or "",
        bytes=taken,
        own=own,
        own_bytes=own_bytes,
        largest=tuple(path for _, path in largest),
        live=tuple(sorted({one.run for one in live_runs(state, root)})),
    )


def _files(root: bytes) -> Iterator[Tuple[str, os.stat_result]]:
    """The files of a workdir by their path in it, without those of ``.clusterddp-live``."""
    for base, folders, names in os.walk(root):
        if base == root and LIVE_FOLDER in folders:
            folders.remove(LIVE_FOLDER)
        for name in names:
            path = os.path.join(base, name)
            try:
                yield as_text(path[len(root) + 1 :]), os.lstat(path)
            except OSError:  # removed meanwhile
                continue


def _pushed(states: List[str], roots: List[bytes]) -> List[SizedFolder]:
    """The folders outside workdirs that hold pushed files, with how many."""
    found: Dict[str, int] = {}
    known = [*roots, *map(os.fsencode, states)]  # wheels of environments are pushed into state folders
    for state in states:
        for pushed in pushed_files(state):
            root = on_disk(pushed.root)
            try:
                paths = [os.path.join(root, on_disk(path)) for path, _ in pushed.files]
            except UnicodeEncodeError:  # the record is damaged
                continue
            if not any(root == one or root.startswith(one + b"/") for one in known):
                there = sum(map(os.path.lexists, paths))
                if there:
                    found[as_text(root)] = there
    return [SizedFolder(path=path, size=count) for path, count in sorted(found.items())]
