"""The operations ``mark``, ``marked`` and ``unmark``: which folders of a run are the same folder on several hosts.

Each host puts a small file with a nonce into its folders, looks for those of the others, and removes its own. A file
that a lost host left behind is removed by the next mark.
"""

import os
import time
from typing import Any, Callable, Dict, List

from ..helper.request import Request
from ..system.bootstrap import private
from .filesystems import standing
from .health import PATIENCE, ask_all

_NAME = ".clusterddp-mark-"
_STALE = 600  # seconds


def mark(request: Request) -> List[str]:
    """Operation: put our mark for ``nonce`` into ``folders`` (name → path).

    Returns the names of those where it is now.
    """
    return sorted(name for name, done in _everywhere(request, _leave, str(request.args["nonce"])).items() if done)


def marked(request: Request) -> Dict[str, Any]:
    """Operation: ``{folders: {name: hosts}}``: whose marks are in ``folders``, by ``nonces`` (host → nonce)."""
    nonces = {str(host): str(nonce) for host, nonce in request.args["nonces"].items()}

    def look(folder: str) -> List[str]:
        return [host for host, nonce in nonces.items() if os.path.exists(os.path.join(folder, _NAME + nonce))]

    return {"folders": _everywhere(request, look)}


def unmark(request: Request) -> None:
    """Operation: remove our mark for ``nonce`` from ``folders``."""
    _everywhere(request, _remove, str(request.args["nonce"]))


def _everywhere(request: Request, act: Callable[..., Any], *arguments: str) -> Dict[str, Any]:
    """The results of ``act`` by folder (or its nearest parent that exists); folders that hang are left out."""

    def acting(path: str) -> Callable[[], Any]:
        return lambda: act(standing(os.path.expanduser(path)), *arguments)

    return ask_all({name: acting(str(path)) for name, path in request.args["folders"].items()}, PATIENCE)


def _leave(folder: str, nonce: str) -> bool:
    now = time.time()
    try:
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith(_NAME) and now - os.lstat(path).st_mtime > _STALE:
                os.unlink(path)
        os.close(private(os.path.join(folder, _NAME + nonce), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW))
    except OSError:
        return False  # another check reports folders that cannot be written
    return True


def _remove(folder: str, nonce: str) -> None:
    try:
        os.unlink(os.path.join(folder, _NAME + nonce))
    except FileNotFoundError:
        pass  # two of our folders may be the same one
