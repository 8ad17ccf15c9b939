"""The folder of a host's warm server: whether one is alive, and its end.

Not here: its start (supervisor/warm.py), what it does (worker/warm_server.py).
"""

import contextlib
import os
import signal
from typing import Any, NamedTuple, Optional, Tuple

from ..system import procfs
from ..system.bootstrap import read_json
from .fork_checks import FORK_SOCKET

RECORD = "server.json"
SCRIPT = "clusterddp-warm"  # the word in place of a script that a warm server is begun with
WISHES = "wishes.json"  # what it is to import, written before it is started
BEGUN_WITH = "packages.json"  # what it has imported


class WarmServer(NamedTuple):
    """A live one."""

    pid: int
    ticks: int
    python: str
    code: str
    ready: bool
    preload: Tuple[str, ...] = ()  # packages that it was asked for
    packages: Tuple[str, ...] = ()  # those that it has imported
    left_out: Tuple[str, ...] = ()  # the others, each with the reason
    reads: Tuple[str, ...] = ()  # variables that they read


def folder_of(state: str) -> str:
    """This host's; other hosts may see the same state folder."""
    return os.path.join(state, "warm", os.uname().nodename)


def state_of(folder: str) -> str:
    """The state folder that a warm server's lies in."""
    return os.path.dirname(os.path.dirname(folder))


def find(state: str) -> Optional[WarmServer]:
    """The live warm server of a state folder."""
    folder = folder_of(state)
    record = read_json(os.path.join(folder, RECORD))
    try:
        if (
            not record
            or record["boot"] != procfs.boot_identity()
            or procfs.start_ticks(record["pid"]) != record["ticks"]
        ):
            return None
        ready = os.path.exists(os.path.join(folder, FORK_SOCKET))
        found = WarmServer(int(record["pid"]), int(record["ticks"]), str(record["python"]), str(record["code"]), ready)
        found = found._replace(preload=read_wishes(folder)[0])
        with_it = read_json(os.path.join(folder, BEGUN_WITH)) if ready else None
        if not with_it:
            return found
        packages, left_out, reads = (_texts(with_it[name]) for name in ("packages", "left_out", "reads"))
        return found._replace(packages=packages, left_out=left_out, reads=reads)
    except (KeyError, TypeError, ValueError):
        return None


def read_wishes(folder: str) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    """The packages that a warm server is to import, and the names of its runs' secrets.

    Raises:
        KeyError, TypeError, ValueError: what stands there is damaged.
    """
    wishes = read_json(os.path.join(folder, WISHES)) or {"preload": [], "secrets": []}
    return _texts(wishes["preload"]), _texts(wishes["secrets"])


def _texts(value: Any) -> Tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(value)
    return tuple(map(str, value))


def warm_server(request: Any) -> Optional[int]:
    """Operation: KiB of memory of this host's warm server, by ``procfs.own_memory``; None: there is none."""
    server = find(request.args["state"])
    if not server or not server.ready:
        return None
    try:
        return procfs.own_memory(server.pid)
    except OSError:  # it has just ended
        return None


def end(state: str) -> bool:
    """End it and remove its folder; whether there was one. Runs that were begun from it go on."""
    server, folder = find(state), folder_of(state)
    if server:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGKILL)
    import shutil  # dear: `status` asks every host for its warm server

    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(os.path.join(state, "learned"), ignore_errors=True)  # earlier versions kept what runs had imported
    return server is not None
