"""The operations ``mark``, ``marked`` and ``unmark``: which folders of a run are one and the same on several hosts.

Each host leaves a small file with a nonce in its folders, looks for those of the others, and removes its own. What a
host that was lost meanwhile has left is removed by its next mark.
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
    """Leave our mark in ``folders`` (name → path); args ``nonce`` too. The names of those where it is now."""
    return sorted(name for name, done in _everywhere(request, _leave, str(request.args["nonce"])).items() if done)


def marked(request: Request) -> Dict[str, Any]:
    """``{folders: {name: hosts}}``: whose marks are in ``folders``; args ``nonces`` (host → nonce) too."""
    nonces = {str(host): str(nonce) for host, nonce in request.args["nonces"].items()}

    def look(folder: str) -> List[str]:
        return [host for host, nonce in nonces.items() if os.path.exists(os.path.join(folder, _NAME + nonce))]

    return {"folders": _everywhere(request, look)}


def unmark(request: Request) -> None:
    """Remove our mark of ``nonce`` from ``folders``."""
    _everywhere(request, _remove, str(request.args["nonce"]))


def _everywhere(request: Request, act: Callable[..., Any], *words: str) -> Dict[str, Any]:
    """The results by folder (or its nearest parent that exists); folders that hang are left out."""

    def acting(path: str) -> Callable[[], Any]:
        return lambda: act(standing(os.path.expanduser(path)), *words)

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
        return False  # whether it can be written is another check's
    return True


def _remove(folder: str, nonce: str) -> None:
    try:
        os.unlink(os.path.join(folder, _NAME + nonce))
    except FileNotFoundError:
        pass  # two folders of ours may be one
