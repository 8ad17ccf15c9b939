"""The mark of a run's start in its workdir: files that are newer were written by the run, or while it ran.

It is a file in the workdir's ``.clusterddp-live`` folder, so that its time and those of the run's files come from one
clock, the file server's. It stays for at least a month after the run, and lists the runs that were live there at the
start.
"""

import json
import os
from typing import Any, Iterable, List, NamedTuple, Optional

from ..shared.workdir.manifest import as_text
from ..system.small_files import open_regular
from .folder_lock import LIVE_FOLDER

_PREFIX = b"start."
_MAX_AGE_NS = 30 * 86400 * 10**9


class RunBegin(NamedTuple):
    """When a run began in a folder, by the folder's clock in ns, and the other runs that wrote there then or since."""

    time_ns: int
    others: List[str]


def mark_start(root: bytes, run: str, live: Iterable[str]) -> None:
    """Create the start mark of a run in the workdir ``root``, unless it exists; the caller holds the workdir's lock.

    Marks older than a month are removed, if their runs are not live.
    """
    path = os.path.join(root, LIVE_FOLDER, _PREFIX + os.fsencode(run))
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:  # a later attempt
        return
    with os.fdopen(handle, "wb") as stream:
        stream.write(json.dumps(sorted(set(live) - {run})).encode())
    now = os.lstat(path).st_mtime_ns
    for name, time_ns in _read_marks(root):
        if time_ns < now - _MAX_AGE_NS and name not in live:
            os.unlink(os.path.join(root, LIVE_FOLDER, _PREFIX + os.fsencode(name)))


def start_of(root: bytes, run: str) -> Optional[RunBegin]:
    """Return the start of a run in a workdir; None if there is no mark of it."""
    marks = dict(_read_marks(root))
    if run not in marks:
        return None
    later = [name for name, time_ns in marks.items() if name != run and time_ns >= marks[run]]
    return RunBegin(marks[run], sorted({*later, *_live_at_start(root, run)}))


def _live_at_start(root: bytes, run: str) -> List[str]:
    """The runs that were live in the workdir at this run's start, as its mark lists them."""
    try:
        with open(os.path.join(root, LIVE_FOLDER, _PREFIX + os.fsencode(run)), "rb", opener=open_regular) as stream:
            listed: Any = json.loads(stream.read(1 << 16))
    except (OSError, ValueError, RecursionError):  # others may write in the folder
        return []
    return [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []


def _read_marks(root: bytes) -> "List[tuple[str, int]]":
    """Each run with a start mark in the workdir, and the mark's mtime in ns."""
    marks = []
    try:
        names = os.listdir(os.path.join(root, LIVE_FOLDER))
    except OSError:  # no run was ever started here
        return []
    for name in names:
        if name.startswith(_PREFIX):
            try:
                marks.append(
                    (as_text(name[len(_PREFIX) :]), os.lstat(os.path.join(root, LIVE_FOLDER, name)).st_mtime_ns)
                )
            except OSError:  # removed meanwhile
                continue
    return marks
