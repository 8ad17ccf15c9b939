"""A host's warm server: it belongs to no run, has imported torch, and forks a run's fork server from itself.

It has a folder of its own, no port, no secrets and none of a run's names, and never imports the project's code. The
helper starts it for the next run (supervisor/preload_client.py); first it waits until the present run has ended. A
request of the helper starts the processes that a plain start has, so that all of the run descends from its supervisor:

    warm server ── (ends) ── fence ── supervisor ── fork server of the run
                              exec      exec         as in fork_server/server.py, with the run's command line and folder

A request is refused if an import would give something else now: every file that was read, and every folder that was
searched, is compared. The server ends when it has had no request for its time to stay, when its folder is gone, and
when it has become large.

Besides torch it imports the packages of clusterddp_preload that have passed their trial
(fork_server/preload_packages.py).
"""

import gc
import json
import os
import select
import socket
import sys
import time
from typing import Any, Dict, Iterable, List, NoReturn, Sequence, Tuple

from ..fork_server.cwd_references import PathHolders
from ..fork_server.fork_checks import (
    NO_RENAME,
    RefusedError,
    first_folders,
    import_state,
    read_paths,
    refuse_start_up_code,
    refuse_unknown_python,
    script_path,
    socket_of,
)
from ..fork_server.imports import AGENT_MODULES, Imports, worker_modules
from ..fork_server.preload_packages import Preload, clash_with
from ..fork_server.preload_trial import MAX_MEMORY, PreloadVerdict
from ..fork_server.server import listen_in
from ..fork_server.worker_parent import receive
from ..shared.processes.exit_codes import EXIT_CANNOT_START
from ..shared.schema.record import to_fields
from ..system import cgroups, prctl, procfs
from ..system.bootstrap import write_json
from ..system.clock import boot_clock
from ..system.rename import rename
from ..system.small_files import text_of
from .run_start import Inherited, become_fence
from .server_folder import BEGUN_WITH, REFUSED, ImportedRecord, read_wishes, state_of
from .start_request import StartRequest

TITLE = "clusterddp: warm server"  # its command line, for `ps`
CHECK_INTERVAL = 2.0  # seconds between checks whether it has to end, and which runs have ended
REQUEST_TIMEOUT = 5.0  # seconds for a whole request to arrive
MIN_AVAILABLE_MEMORY = 2 * MAX_MEMORY  # KiB of memory that must be available before it imports
OOM_SCORE = 1000  # its oom_score_adj; forks get the helper's
DRIVER = "/proc/driver/nvidia/version"  # without a driver there is no such file


def serve(folder: str, argument: str, loaded: Iterable[str]) -> Tuple[str, str]:
    """Import and fork until it is time to end; return only in each worker, with its spool and name.

    ``argument`` is ``warm``, the seconds that the server stays, pid and start ticks of the process whose end it awaits
    (0: none). ``loaded`` are the modules loaded before any of ours.
    """
    try:
        _, stays, pid, ticks = argument.split(" ")
        imports = Imports(loaded)
        refuse_unknown_python()
        refuse_start_up_code()
        server = PreloadServer(folder, float(stays), imports)
        server.await_end(int(pid), int(ticks))
        server.load()
        return server.run()
    except BaseException as error:  # noqa: BLE001 - whatever it is, runs are started without
        sys.stderr.write("%s%s\n" % (REFUSED, error if isinstance(error, RefusedError) else repr(error)))
        os._exit(0)


class PreloadServer:
    """The warm server's process; it ends after ``stays`` seconds without a request. Raises RefusedError."""

    def __init__(self, folder: str, stays: float, imports: Imports) -> None:
        self.folder, self.stays, self.imports = folder, stays, imports
        self.here = os.getcwd()  # a unique path, by which the objects that keep it are found
        self.live: List[procfs.ProcStat] = []  # fences of runs that were started from here
        self.candidates: Tuple[PreloadVerdict, ...] = ()  # packages that it may import for some project
        self.clash = ""  # why the run that started it let it import none of them
        if not rename([TITLE], dict(os.environ).items()):
            raise RefusedError(NO_RENAME)
        for path in sys.path:
            if not os.path.isabs(path):
                raise RefusedError("the search path holds %r" % path)

    def await_end(self, pid: int, ticks: int) -> None:
        """Wait until that process has ended: its run needs the machine's cores."""
        while procfs.is_process(pid, ticks):
            self.end_if_gone(self.here)
            time.sleep(CHECK_INTERVAL)

    def end_if_gone(self, path: str) -> None:
        """Exit if a file of ours is gone: the server has been removed."""
        if not os.path.exists(path):
            os._exit(0)

    def load(self) -> None:
        """Import; record what the imports have read, and which objects keep the folder's path. Raises RefusedError."""
        for left in (procfs.available_bytes(), cgroups.limits().memory_left):
            if left is not None and left >> 10 < MIN_AVAILABLE_MEMORY:
                raise RefusedError("only %d MB of memory are left here" % (left >> 20))
        self.imports.load(AGENT_MODULES)
        self.imports.load(worker_modules(sys.modules["torch"].__version__))
        self.load_packages()
        self.holders = PathHolders()
        gc.unfreeze()  # the collector does not list frozen objects
        self.holders.find(self, self.here)
        gc.collect()
        gc.freeze()
        os.chdir("/")
        self.seen = {path: import_state(path, self.imports.asked) for path in read_paths()}
        self.driver = text_of(DRIVER)
        prctl.set_oom_score_adj(OOM_SCORE)
        imported = ImportedRecord(
            packages=tuple(one.name for one in self.preload.imported),
            left_out=tuple("%s: %s" % (one.name, one.left_out) for one in self.preload.left_out),
            reads=tuple(sorted(self.imports.reads)),
            considered=tuple(sorted({name for one in self.preload.verdicts for name in one.reads})),
        )
        write_json(os.path.join(self.folder, BEGUN_WITH), to_fields(imported), durable=False)

    def load_packages(self) -> None:
        """Import the inventory's packages, except those that failed their trial or read a secret.

        Import none where the project could notice it: its runs are started here with torch alone. Raises RefusedError
        if a package is no longer as it was when it was tried.
        """
        wishes = read_wishes(self.folder)

        def against(one: PreloadVerdict) -> str:
            secret = next((name for name in one.reads if name in wishes.secrets), "")
            return "it reads %s, a secret, when it is imported" % secret if secret else ""

        self.preload = Preload(state_of(self.folder), wishes.preload)
        self.preload.decide(lambda: self.end_if_gone(self.here))
        self.preload.leave_out(against)
        self.candidates = tuple(self.preload.to_import)
        self.clash = self.clash_of(wishes.cwd, wishes.argv) if wishes.cwd else ""
        os.chdir(self.here)
        self.preload.leave_out(lambda _: self.clash)
        for one in self.preload.to_import:
            self.preload.load(one, self.imports)
            self.imports.reads.update(one.reads)

    def clash_of(self, cwd: str, argv: Sequence[str]) -> str:
        """Return why a project could notice that packages were imported before its script began; empty if it cannot."""
        if not self.candidates:
            return ""
        try:
            os.chdir(cwd)
        except OSError:  # it was removed: there is no such project
            return ""
        folders = list(dict.fromkeys([cwd, *first_folders(argv)]))
        asks = {name for one in self.candidates for name in one.asks}
        reads = {name for one in self.candidates for name in one.reads}
        return clash_with(folders, script_path(argv), asks, reads | self.imports.reads)

    def run(self) -> Tuple[str, str]:
        """Fork a run's start for each request; return only in a worker. Exits when it is time to end."""
        path = socket_of(self.folder)
        listener = listen_in(self.folder)
        last = boot_clock()
        while True:
            ready = select.select([listener], [], [], CHECK_INTERVAL)[0]
            self.end_if_gone(path)
            self.live = [fence for fence in self.live if procfs.is_process(fence.pid, fence.ticks)]
            now = boot_clock()
            last = now if self.live else last
            if not ready and now - last > self.stays:
                os._exit(0)
            if not ready:
                self.end_if_large()
                continue
            last = now
            connection = listener.accept()[0]
            reader, writer = os.pipe()
            between = os.fork()
            if not between:
                listener.close()
                os.close(reader)
                return self.begin(connection, writer)
            os.close(writer)
            connection.close()
            with os.fdopen(reader, "rb") as stream:
                pid = int(stream.read() or 0)
            os.waitpid(between, 0)
            fence = procfs.read_process(pid)
            self.live += [fence] if fence else []

    def end_if_large(self) -> None:
        """Exit if this process uses more than ``MAX_MEMORY``."""
        size = procfs.own_memory(os.getpid())
        if size > MAX_MEMORY:
            sys.stderr.write("%sit had grown to %d MB\n" % (REFUSED, size >> 10))
            sys.stderr.flush()
            os._exit(0)

    def begin(self, connection: socket.socket, pid_writer: int) -> Tuple[str, str]:
        """In the intermediate process: check the request, fork the fence, exit; return only in a worker."""
        try:
            connection.settimeout(REQUEST_TIMEOUT)
            data, handles = receive(connection, 4)
            request = StartRequest(**data)
            self.refuse_changes()
            self.refuse_project(request)
            connection.sendall(b'{"ready": true}\n')
            if connection.recv(1) != b"g":  # it waited too long, and has started the run plainly
                os._exit(0)
            os.setsid()
            fence = os.fork()
        except BaseException as error:  # noqa: BLE001 - the helper starts it plainly
            reason = str(error) if isinstance(error, RefusedError) else repr(error)
            _answer_and_exit(connection, {"refused": reason})
        if fence:
            os.write(pid_writer, b"%d" % fence)
            os._exit(0)
        os.close(pid_writer)
        connection.close()
        try:
            left_out = self.preload.left_out_names
            return become_fence(Inherited(self.here, self.holders, self.imports.asked, left_out), request, handles)
        except BaseException:  # noqa: BLE001 - the helper hears that there is no supervisor
            os._exit(EXIT_CANNOT_START)

    def refuse_changes(self) -> None:
        """Refuse if an import would find something else now; raises RefusedError if something has changed."""
        for path, state in self.seen.items():
            if import_state(path, self.imports.asked) != state:
                raise RefusedError("%s has changed since it was started" % path)
        if text_of(DRIVER) != self.driver:
            raise RefusedError("the driver has changed since it was started")

    def refuse_project(self, request: StartRequest) -> None:
        """Refuse if a server started for this project would have imported other packages; raises RefusedError."""
        clash = self.clash_of(request.cwd, request.argv)
        os.chdir("/")
        if clash and not self.clash:
            raise RefusedError(clash)
        if self.clash and not clash:
            raise RefusedError("it has no packages, since for another run %s" % self.clash)


def _answer_and_exit(connection: socket.socket, answer: Dict[str, Any]) -> NoReturn:
    """Send an answer, and exit."""
    try:
        connection.sendall(json.dumps(answer).encode() + b"\n")
    finally:
        os._exit(0)
