"""A host's warm server: a process of no run that has imported torch, and forks a run's fork server from that.

It has a folder of its own, no port, no secrets, none of a run's names; it never imports the project's code. The helper
starts it for the next run (supervisor/warm.py); first it waits until the present one has ended. A request of the
helper becomes the processes that a start has otherwise, so that all of the run descends from its supervisor:

    warm server ── (ends) ── fence ── supervisor ── fork server of the run
                              exec      exec         as in worker/fork_server.py, with the run's command line and folder

What was imported is what it would be now, or the request is refused: every file that was read, and every folder that is
searched, is compared. It ends when nobody has asked for so long as it is to stay, when its folder is gone, and when it
has become large.

Besides torch it imports the installed packages that the project's last run had at its end, but for those that would not
be the same then. Where they are to be others it begins anew, by executing itself; without them where they are large.

Not here: which runs may be begun from it, and its start (supervisor/warm.py); which packages (worker/learning.py).
"""

import contextlib
import gc
import json
import os
import select
import socket
import sys
import time
from typing import Any, Dict, Iterable, List, NamedTuple, NoReturn, Optional, Set, Tuple

from ..system import cgroups, prctl, procfs
from ..system.bootstrap import write_json
from ..system.clock import boot_clock
from ..system.rename import rename
from . import learned
from .environment import fork_server_environment
from .folder_holders import Holders
from .fork_checks import (
    FORK_SOCKET,
    NO_RENAME,
    RefusedError,
    first_folders,
    import_state,
    mapped_files,
    refuse_start_up_code,
    refuse_unknown_python,
)
from .fork_imports import AGENT_MODULES, Imports, worker_modules
from .fork_keeper import receive
from .fork_server import listen_in
from .import_trial import reason_against
from .learned import Learned, Package
from .learning import Runs, clash_with
from .warm_folder import BEGUN_WITH, SCRIPT, state_of
from .warm_start import Beginning, Request, be_fence

TITLE = "clusterddp: warm server"  # its command line, for `ps`
LOOK = 2.0  # seconds between looks at what ends it, and for runs that have ended
SOON = 0.2  # seconds between looks at what learns from one
HELD_UP = 127
PATIENCE = 5.0  # seconds for a request to come whole
LARGEST = 600 << 10  # KiB of memory that no file holds
TO_SPARE = 2 * LARGEST  # KiB that the host has to have left before it begins
FIRST_TO_GO = 1000  # its oom_score_adj; forks have the helper's
DRIVER = "/proc/driver/nvidia/version"


class Begun(NamedTuple):
    """A run that was begun here: its fence, its project's key, its spool."""

    fence: procfs.ProcStat
    project: str
    spool: str


def serve(folder: str, told: str, loaded: Iterable[str]) -> Tuple[str, str]:
    """Import and fork until it is time to end; returns in each worker alone, with its spool and name.

    Args:
        folder: Its own.
        told: ``warm``, the seconds that it stays, pid and start ticks of a process whose end it awaits (0: none), key
            and spool of the project whose run that is; these may be missing.
        loaded: The modules that were loaded before any of ours.
    """
    try:
        _, stays, pid, ticks, project, spool = [*told.split(" ", 5), "", ""][:6]
        imports = Imports(loaded)
        refuse_unknown_python()
        refuse_start_up_code()
        server = WarmServer(folder, float(stays), imports, project)
        server.await_end(int(pid), int(ticks))
        server.load(spool)
        return server.run()
    except BaseException as error:  # noqa: BLE001 - whatever it is, runs are started without
        sys.stderr.write("%s\n" % (error if isinstance(error, RefusedError) else repr(error)))
        os._exit(0)


class WarmServer:
    """The process.

    Args:
        folder: Its own.
        stays: Seconds.
        imports: What it imports by.
        project: The key of the one whose packages it imports.

    Raises:
        RefusedError: it cannot be one.
    """

    def __init__(self, folder: str, stays: float, imports: Imports, project: str) -> None:
        self.folder, self.stays, self.imports, self.project = folder, stays, imports, project
        self.here = os.getcwd()  # a name that stands nowhere else: whoever keeps it is found by it
        self.live: List[Begun] = []
        self.ended: List[Begun] = []  # of which it has not learned yet
        self.learning: Optional[Tuple[int, str]] = None  # a process that does, and the project's key
        self.packages: List[Package] = []  # that it has imported for the project
        self.env = dict(os.environ)
        if not rename([TITLE], self.env.items()):
            raise RefusedError(NO_RENAME)
        for path in sys.path:
            if not os.path.isabs(path):
                raise RefusedError("the search path holds %r" % path)

    def await_end(self, pid: int, ticks: int) -> None:
        """Wait until that process has ended: it has the machine's cores."""
        while pid and procfs.start_ticks(pid) == ticks:
            self.end_if_gone(self.here)
            time.sleep(LOOK)

    def end_if_gone(self, path: str) -> None:
        """End where a file of ours is gone: somebody has removed us."""
        if not os.path.exists(path):
            os._exit(0)

    def load(self, spool: str) -> None:
        """Import; note what that has read, and who remembers the folder.

        Args:
            spool: Of a run of the project's that has ended; empty: of none.

        Raises:
            RefusedError: something but modules was left of it, or the host has too little memory.
        """
        for left in (procfs.available_bytes(), cgroups.told()["memory_left"]):
            if left is not None and left >> 10 < TO_SPARE:
                raise RefusedError("only %d MB of memory are left here" % (left >> 20))
        self.imports.load(AGENT_MODULES)
        self.imports.load(worker_modules(sys.modules["torch"].__version__))
        self.runs = Runs(state_of(self.folder), self.project, frozenset(sys.modules), self.here)
        if self.project:
            os.waitpid(self.runs.revise(spool, trial=True), 0)
            self.load_packages()
        self.holders = Holders()
        gc.unfreeze()  # what is frozen is not listed
        self.holders.find(self, self.here)
        gc.collect()
        gc.freeze()
        os.chdir("/")
        self.seen = {path: import_state(path, self.imports.asked) for path in _read_paths()}
        self.driver = _driver()
        prctl.set_oom_score_adj(FIRST_TO_GO)
        told = {"project": self.project if self.packages else "", "reads": sorted(self.imports.reads)}
        told["packages"] = [one.name for one in self.packages]
        write_json(os.path.join(self.folder, BEGUN_WITH), told, durable=False)

    def load_packages(self) -> None:
        """Import what the project's next run is to have; begin anew without one that is not as it was tried."""
        known = self.runs.wanted()
        for package in known.wanted if known else ():
            reason = reason_against(package, self.imports)
            if procfs.own_memory(os.getpid()) > LARGEST:
                reason = reason or "with it the warm server has more than %d MB" % (LARGEST >> 10)
            if known and reason:
                self.leave_out(known, {package.name: reason})
            self.packages.append(package)

    def leave_out(self, known: Learned, reasons: Dict[str, str]) -> NoReturn:
        """Remember packages as not to be imported, and begin anew."""
        packages = [one._replace(left_out=reasons.get(one.name, one.left_out)) for one in known.packages]
        learned.keep(self.runs.state, known._replace(packages=tuple(packages)))
        self.begin_anew()

    def begin_anew(self, project: str = "") -> NoReturn:
        """Execute the server again, with the same pid; it awaits the end of a run that was begun here."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder, FORK_SOCKET))
        told = "warm %g 0 0 %s" % (self.stays, project or self.project)
        if self.live:
            fence, theirs, spool = self.live[0]
            told = "warm %g %d %d %s %s" % (self.stays, fence.pid, fence.ticks, theirs, spool)
        env = dict(self.env)
        if "PYTHONPATH" in env:
            env["CLUSTERDDP_USER_PYTHONPATH"] = env["PYTHONPATH"]
        os.chdir(self.here)
        os.closerange(3, 1024)
        argv: List[str] = [getattr(sys, "orig_argv", [sys.executable])[0], "-u", SCRIPT]
        os.execve(argv[0], argv, fork_server_environment(env, self.folder, told))

    def run(self) -> Tuple[str, str]:
        """Serve; returns in a worker."""
        path = os.path.join(self.folder, FORK_SOCKET)
        listener = listen_in(self.folder)
        last = boot_clock()
        while True:
            ready = select.select([listener], [], [], SOON if self.learning else LOOK)[0]
            self.end_if_gone(path)
            self.look_at_runs()
            now = boot_clock()
            last = now if self.live else last
            if not ready and now - last > self.stays:
                os._exit(0)
            if not ready:
                self.learn()
                self.keep_small()
                continue
            last = now
            connection = listener.accept()[0]
            told, tells = os.pipe()
            between = os.fork()
            if not between:
                listener.close()
                os.close(told)
                return self.begin(connection, tells)
            os.close(tells)
            connection.close()
            with os.fdopen(told, "rb") as stream:
                pid, project, spool = json.loads(stream.read() or b'[0, "", ""]')
            os.waitpid(between, 0)
            fence = procfs.read_process(pid)
            self.live += [Begun(fence, project, spool)] if fence else []

    def look_at_runs(self) -> None:
        """Which of them have ended."""
        over = [one for one in self.live if procfs.start_ticks(one.fence.pid) != one.fence.ticks]
        self.live = [one for one in self.live if one not in over]
        self.ended += over

    def learn(self) -> None:
        """While no run is live: of those that have ended, one after the other; begin anew for what they have shown."""
        if self.learning:
            child, project = self.learning
            if not os.waitpid(child, os.WNOHANG)[0]:
                return
            self.learning = None
            if not self.live and Runs(self.runs.state, project, self.runs.base, self.here).begins_anew(self.packages):
                self.begin_anew(project)
        if self.ended and not self.live:
            begun = self.ended.pop(0)
            runs = Runs(self.runs.state, begun.project, self.runs.base, self.here)
            self.learning = runs.revise(begun.spool, trial=False), begun.project

    def keep_small(self) -> None:
        """Where it has become large: begin anew without the project's packages; without any, end."""
        if procfs.own_memory(os.getpid()) <= LARGEST:
            return
        known = learned.find(self.runs.state, self.project)
        if not self.packages or not known:
            os._exit(0)
        reason = "with it the warm server had more than %d MB" % (LARGEST >> 10)
        self.leave_out(known, {one.name: reason for one in self.packages})

    def begin(self, connection: socket.socket, tells: int) -> Tuple[str, str]:
        """In the process between: check, fork the fence, end; returns in a worker."""
        try:
            connection.settimeout(PATIENCE)
            data, handles = receive(connection, 4)
            request = Request(**data)
            self.refuse_changes()
            self.refuse_project(request)
            connection.sendall(b'{"ready": true}\n')
            if connection.recv(1) != b"g":  # it waited too long, and has started the run plainly
                os._exit(0)
            os.setsid()
            fence = os.fork()
        except BaseException as error:  # noqa: BLE001 - the helper starts it plainly
            reason = str(error) if isinstance(error, RefusedError) else repr(error)
            _answer(connection, {"refused": reason})
        if fence:
            os.write(tells, json.dumps([fence, request.project, request.spool]).encode())
            os._exit(0)
        os.close(tells)
        connection.close()
        try:
            return be_fence(Beginning(self.here, self.holders, self.imports.asked), request, handles)
        except BaseException:  # noqa: BLE001 - the helper hears that there is no supervisor
            os._exit(HELD_UP)

    def refuse_changes(self) -> None:
        """Refuse where an import would find something else now.

        Raises:
            RefusedError: names the file.
        """
        for path, state in self.seen.items():
            if import_state(path, self.imports.asked) != state:
                raise RefusedError("%s has changed since it was started" % path)
        if _driver() != self.driver:
            raise RefusedError("the driver has changed since it was started")

    def refuse_project(self, request: Request) -> None:
        """Refuse where the project's code would have made another thing of a package.

        Raises:
            RefusedError: says what.
        """
        if not self.packages:
            return
        os.chdir(request.cwd)
        folders = list(dict.fromkeys([request.cwd, *first_folders(request.argv)]))
        clash = clash_with(folders, {name for one in self.packages for name in one.asks}, self.imports.reads)
        os.chdir("/")
        if clash:
            raise RefusedError(clash)


def _answer(connection: socket.socket, answer: Dict[str, Any]) -> NoReturn:
    """Say it, and end."""
    try:
        connection.sendall(json.dumps(answer).encode() + b"\n")
    finally:
        os._exit(0)


def _read_paths() -> Set[str]:
    """What an import here has read or searched."""
    paths = {sys.executable, os.path.realpath(sys.executable), os.path.join(sys.prefix, "pyvenv.cfg"), *sys.path}
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        paths.update([file] if isinstance(file, str) else [])
    paths.update(mapped_files())
    return paths


def _driver() -> bytes:
    try:
        with open(DRIVER, "rb") as stream:
            return stream.read()
    except OSError:  # no such driver on this host
        return b""
