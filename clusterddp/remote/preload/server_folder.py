"""The folder of a host's warm server: whether a server is alive, what it has imported, and its end."""

import contextlib
import os
import signal
from typing import Any, NamedTuple, Optional, Tuple

from ..fork_server.fork_checks import socket_of
from ..shared.schema.fields import Fields
from ..shared.schema.json_text import read_json
from ..shared.schema.record import field, read_record, record
from ..system import procfs

RECORD = "server.json"
SCRIPT = "clusterddp-warm"  # the word in place of a script that a warm server is begun with
WISHES = "wishes.json"  # what it is to import, written before it is started
LOG = "warm.log"  # what it and its imports print
REFUSED = "refused: "  # begins the log's last line when a server could not go on
MAX_LOG = 4096  # bytes of the log's end that are read
BEGUN_WITH = "packages.json"  # what it has imported


class LivePreloadServer(NamedTuple):
    """A warm server that is alive."""

    pid: int
    ticks: int
    python: str
    code: str
    ready: bool
    preload: Tuple[str, ...] = ()  # packages that it was asked for
    packages: Tuple[str, ...] = ()  # those of them that it has imported
    left_out: Tuple[str, ...] = ()  # the others, each with the reason
    reads: Tuple[str, ...] = ()  # variables that they read
    secrets: Tuple[str, ...] = ()  # names of those of the run that started it
    considered: Tuple[str, ...] = ()  # variables that any package it was asked for reads
    awaits: Tuple[int, int] = (0, 0)  # pid and start ticks of the process whose end it awaits before it imports

    @property
    def waiting(self) -> bool:
        """Whether it has not begun to import because the run that started it is still live."""
        return procfs.is_process(*self.awaits)


def folder_of(state: str) -> str:
    """Return the folder of this host's warm server; several hosts may share a state folder."""
    return os.path.join(state, "warm", os.uname().nodename)


def state_of(folder: str) -> str:
    """Return the state folder that contains a warm server's folder."""
    return os.path.dirname(os.path.dirname(folder))


def find(state: str) -> Optional[LivePreloadServer]:
    """Return the live warm server of a state folder; None if there is none."""
    folder = folder_of(state)
    kept = read_json(os.path.join(folder, RECORD))
    try:
        if not kept:
            return None
        server = read_record(ServerRecord, kept, RECORD)
        if server.boot != procfs.boot_identity() or not procfs.is_process(server.pid, server.ticks):
            return None
        ready = os.path.exists(socket_of(folder))
        found = LivePreloadServer(server.pid, server.ticks, server.python, server.code, ready)
        wishes = read_wishes(folder)
        found = found._replace(preload=wishes.preload, secrets=wishes.secrets, awaits=server.awaits)
        with_it = read_json(os.path.join(folder, BEGUN_WITH)) if ready else None
        return found._replace(**read_record(ImportedRecord, with_it, BEGUN_WITH)._asdict()) if with_it else found
    except ValueError:
        return None


@record
class ServerRecord(NamedTuple):
    """A warm server that was started (``server.json``)."""

    pid: int = field(Fields.number)
    ticks: int = field(Fields.number)  # since boot, of its start
    boot: str = field(Fields.text)
    python: str = field(Fields.text)
    code: str = field(Fields.text)  # the name of its zipapp
    awaits: Tuple[int, int] = field(Fields.pair, default=(0, 0))


@record
class ImportedRecord(NamedTuple):
    """What a warm server has imported (``packages.json``); fields as in ``LivePreloadServer``."""

    packages: Tuple[str, ...] = field(Fields.texts)
    left_out: Tuple[str, ...] = field(Fields.texts)
    reads: Tuple[str, ...] = field(Fields.texts)
    considered: Tuple[str, ...] = field(Fields.texts)


@record
class Wishes(NamedTuple):
    """The settings that a warm server is started with."""

    preload: Tuple[str, ...] = field(Fields.texts, default=())  # the packages to import
    secrets: Tuple[str, ...] = field(Fields.texts, default=())  # the names of the secrets of the run that starts it
    cwd: str = field(Fields.text, default="")  # the folder of that run's workers; empty: unknown
    argv: Tuple[str, ...] = field(Fields.texts, default=())  # their command line


def read_wishes(folder: str) -> Wishes:
    """Read the settings of the warm server that a folder belongs to; raises ValueError if they are damaged."""
    return read_record(Wishes, read_json(os.path.join(folder, WISHES)) or {}, WISHES)


def why_refused(state: str) -> str:
    """Return why a state folder's last warm server ended early; empty if it did not, or the reason is not known."""
    try:
        with open(os.path.join(folder_of(state), LOG), "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - MAX_LOG))
            last = stream.read(MAX_LOG).decode(errors="replace").rstrip("\n").rpartition("\n")[2]
    except OSError:  # there was none
        return ""
    return last[len(REFUSED) :] if last.startswith(REFUSED) else ""


def warm_server(request: Any) -> Optional[int]:
    """Operation: KiB of memory of this host's warm server, by ``procfs.own_memory``; None: there is none."""
    server = find(request.state)
    if not server or not server.ready:
        return None
    try:
        return procfs.own_memory(server.pid)
    except OSError:  # it has just ended
        return None


def end(state: str) -> bool:
    """Kill the warm server and remove its folder; return whether there was one. Runs started from it go on."""
    server, folder = find(state), folder_of(state)
    if server:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGKILL)
    import shutil  # expensive: `status` asks every host for its warm server

    shutil.rmtree(folder, ignore_errors=True)
    return server is not None
