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
BEGUN_WITH = "packages.json"  # what it has imported for a project


class WarmServer(NamedTuple):
    """A live one."""

    pid: int
    ticks: int
    python: str
    code: str
    ready: bool
    project: str = ""  # the key of the one whose packages it has imported; empty: of none
    packages: Tuple[str, ...] = ()
    reads: Tuple[str, ...] = ()  # variables that these read


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
        with_it = read_json(os.path.join(folder, BEGUN_WITH)) if ready else None
        if not with_it:
            return found
        packages, reads = (tuple(map(str, with_it[name])) for name in ("packages", "reads"))
        return found._replace(project=str(with_it["project"]), packages=packages, reads=reads)
    except (KeyError, TypeError, ValueError):
        return None


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
    return server is not None
