"""The operations ``mark``, ``marked`` and ``unmark``: which folders of a run are the same folder on several hosts.

Each host puts a small file with a nonce into its folders, looks for those of the others, and removes its own. A file
that a lost host left behind is removed by the next mark.
"""

import contextlib
import os
from typing import Any, Callable, Dict, List, Mapping, Tuple

from ..helper.request import Request
from ..shared.probes.mark_records import FolderMarks, MarkedRequest, MarkRequest
from ..shared.schema.record import to_fields
from ..system.bootstrap import private
from ..system.small_files import nearest_folder
from .health import ANSWER_TIMEOUT, ask_all

_NAME = ".clusterddp-mark-"
_STALE_AGE = 600  # seconds


def mark(request: Request) -> List[str]:
    """Operation: put our mark into the folders of a ``MarkRequest``; the names of those where it is now."""
    asked = request.read_args(MarkRequest)
    return sorted(name for name, done in _in_all_folders(asked.folders, _put_mark, asked.nonce).items() if done)


def marked(request: Request) -> Dict[str, Any]:
    """Operation: whose marks are in the folders of a ``MarkedRequest``, as ``FolderMarks``."""
    asked = request.read_args(MarkedRequest)

    def look_up(folder: str) -> Tuple[str, ...]:
        seen = (host for host, nonce in asked.nonces.items() if os.path.exists(os.path.join(folder, _NAME + nonce)))
        return tuple(seen)

    return to_fields(FolderMarks(_in_all_folders(asked.folders, look_up)))


def unmark(request: Request) -> None:
    """Operation: remove our mark from the folders of a ``MarkRequest``."""
    asked = request.read_args(MarkRequest)
    _in_all_folders(asked.folders, _remove_mark, asked.nonce)


def _in_all_folders(folders: Mapping[str, str], act: Callable[..., Any], *arguments: str) -> Dict[str, Any]:
    """The results of ``act`` by folder (or its nearest parent that exists); folders that hang are left out."""

    def acting(path: str) -> Callable[[], Any]:
        return lambda: act(nearest_folder(os.path.expanduser(path)), *arguments)

    return ask_all({name: acting(path) for name, path in folders.items()}, ANSWER_TIMEOUT)


def _put_mark(folder: str, nonce: str) -> bool:
    """Put our mark into a folder, and remove stale ones; whether ours is there."""
    try:
        handle = private(os.path.join(folder, _NAME + nonce), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)
    except OSError:
        return False  # another check reports folders that cannot be written
    now = os.fstat(handle).st_mtime  # by the file server's clock, as all marks there
    os.close(handle)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):  # another user's, or already gone
                if name.startswith(_NAME) and now - os.lstat(path).st_mtime > _STALE_AGE:
                    os.unlink(path)
    return True


def _remove_mark(folder: str, nonce: str) -> None:
    try:
        os.unlink(os.path.join(folder, _NAME + nonce))
    except FileNotFoundError:
        pass  # two of our folders may be the same one
