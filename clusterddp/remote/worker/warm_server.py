"""A host's warm server: a process of no run that has imported torch, and forks a run's fork server from that.

It has a folder of its own, no port, no secrets, none of a run's names; it never imports the project's code. The helper
starts it for the next run (supervisor/warm.py); first it waits until the present one has ended. A request of the
helper becomes the processes that a start has otherwise, so that all of the run descends from its supervisor:

    warm server ── (ends) ── fence ── supervisor ── fork server of the run
                              exec      exec         as in worker/fork_server.py, with the run's command line and folder

What was imported is what it would be now, or the request is refused: every file that was read, and every folder that is
searched, is compared. It ends when nobody has asked for so long as it is to stay, when its folder is gone, and when it
has become large.

Not here: which runs may be begun from it, and its start (supervisor/warm.py).
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any, Dict, Iterable, List, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple

from ..system import prctl, procfs
from ..system.clock import boot_clock
from ..system.interpreter_argv import NotFoundError, begin_otherwise
from ..system.rename import rename, set_environment
from .fork_checks import FORK_SOCKET, NO_RENAME, RefusedError, refuse_start_up_code, refuse_unknown_python, tell
from .fork_imports import AGENT_MODULES, WORKER_MODULES, Imports
from .fork_keeper import receive
from .fork_server import Server, listen_in
from .fork_worker import Given

SCRIPT = "clusterddp-warm"  # the word in place of a script that it is begun with
TITLE = "clusterddp: warm server"  # its command line, for `ps`
LOOK = 2.0  # seconds between looks at what ends it
HELD_UP = 127
PATIENCE = 5.0  # seconds for a request to come whole
LARGEST = 600 << 10  # KiB of its own share of memory (PSS)
FIRST_TO_GO = 1000  # its oom_score_adj; forks have the helper's
DRIVER = "/proc/driver/nvidia/version"


class Request(NamedTuple):
    """What the helper asks for.

    Attributes:
        program: The helper's interpreter, with the words up to the zipapp.
        spool: The node's.
        env: Of fence and supervisor.
        listening: Which listening sockets came behind the supervisor's stdin and stdout: store's, run control's.
        score: The oom_score_adj of all of them.
        cwd: The workers'.
        argv: A worker's command line.
        worker_env: What all workers have in common.
        log: The fork server's output.
    """

    program: List[str]
    spool: str
    env: Dict[str, str]
    listening: List[bool]
    score: int
    cwd: str
    argv: List[str]
    worker_env: Dict[str, str]
    log: str


def serve(folder: str, told: str, loaded: Iterable[str]) -> Tuple[str, str]:
    """Import and fork until it is time to end; returns in each worker alone, with its spool and name.

    Args:
        folder: Its own.
        told: ``warm``, the seconds that it stays, pid and start ticks of a supervisor whose end it awaits (0: none).
        loaded: The modules that were loaded before any of ours.
    """
    try:
        _, stays, pid, ticks = told.split()
        imports = Imports(loaded)
        refuse_unknown_python()
        refuse_start_up_code()
        server = WarmServer(folder, float(stays), imports)
        server.await_end(int(pid), int(ticks))
        server.load()
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

    Raises:
        RefusedError: it cannot be one.
    """

    def __init__(self, folder: str, stays: float, imports: Imports) -> None:
        self.folder, self.stays, self.imports = folder, stays, imports
        self.here = os.getcwd()  # a name that stands nowhere else: whoever keeps it is found by it
        self.live: List[procfs.ProcStat] = []  # fences of runs that were begun here
        if not rename([TITLE], dict(os.environ).items()):
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

    def load(self) -> None:
        """Import; note what that has read, and who remembers the folder.

        Raises:
            RefusedError: something but modules was left of it.
        """
        self.imports.load((*AGENT_MODULES, *WORKER_MODULES))
        self.holders = Holders()
        gc.unfreeze()  # what is frozen is not listed
        self.holders.find(self)
        gc.collect()
        gc.freeze()
        os.chdir("/")
        self.seen = {path: _state(path) for path in _read_paths()}
        self.driver = _driver()
        prctl.set_oom_score_adj(FIRST_TO_GO)

    def run(self) -> Tuple[str, str]:
        """Serve; returns in a worker."""
        path = os.path.join(self.folder, FORK_SOCKET)
        listener = listen_in(self.folder)
        last = boot_clock()
        while True:
            ready = select.select([listener], [], [], LOOK)[0]
            self.end_if_gone(path)
            self.live = [one for one in self.live if procfs.start_ticks(one.pid) == one.ticks]
            now = boot_clock()
            last = now if self.live else last
            if not ready and (now - last > self.stays or procfs.pss(os.getpid()) > LARGEST):
                os._exit(0)
            if not ready:
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
                fence = procfs.read_process(int(stream.read() or 0))
            os.waitpid(between, 0)
            self.live += [fence] if fence else []

    def begin(self, connection: socket.socket, tells: int) -> Tuple[str, str]:
        """In the process between: check, fork the fence, end; returns in a worker."""
        try:
            connection.settimeout(PATIENCE)
            data, handles = receive(connection, 4)
            request = Request(**data)
            self.refuse_changes()
            connection.sendall(b'{"ready": true}\n')
            if connection.recv(1) != b"g":  # it waited too long, and has started the run plainly
                os._exit(0)
            os.setsid()
            fence = os.fork()
        except BaseException as error:  # noqa: BLE001 - the helper starts it plainly
            reason = str(error) if isinstance(error, RefusedError) else repr(error)
            _answer(connection, {"refused": reason})
        if fence:
            os.write(tells, b"%d" % fence)
            os._exit(0)
        os.close(tells)
        connection.close()
        try:
            return self.be_fence(request, handles)
        except BaseException:  # noqa: BLE001 - the helper hears that there is no supervisor
            os._exit(HELD_UP)

    def refuse_changes(self) -> None:
        """Refuse where an import would find something else now.

        Raises:
            RefusedError: names the file.
        """
        for path, state in self.seen.items():
            if _state(path) != state:
                raise RefusedError("%s has changed since it was started" % path)
        if _driver() != self.driver:
            raise RefusedError("the driver has changed since it was started")

    def be_fence(self, request: Request, handles: List[int]) -> Tuple[str, str]:
        """Fork the supervisor, execute the fence; returns in a worker."""
        for handle in handles:
            os.set_inheritable(handle, False)
        stdin, stdout, *rest = handles
        store, control = (rest.pop(0) if there else None for there in request.listening)
        _reset_score(request.score)
        prctl.set_subreaper()
        feed, told = os.pipe(), os.pipe()
        supervisor = os.fork()
        if supervisor:
            null = os.open(os.devnull, os.O_RDWR)
            _execute(request, ("fence", supervisor), (null, null, null), (feed[0], told[1], control))
        prctl.set_subreaper()
        ours, its = (one.detach() for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        server = os.fork()
        if server:
            log = os.open(os.path.join(request.spool, "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            handed = (store, control, feed[1], told[0], ours)
            _execute(request, ("supervisor", server), (stdin, stdout, log), handed)
        return self.be_fork_server(request, its)

    def be_fork_server(self, request: Request, orders: int) -> Tuple[str, str]:
        """Become what the supervisor would have started as `python -u SCRIPT`; returns in a worker."""
        try:
            parent = os.getppid()
            log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            null = os.open(os.devnull, os.O_RDONLY)
            for number, handle in enumerate((null, log, log)):
                os.dup2(handle, number)
            for name in os.listdir("/proc/self/fd"):
                if int(name) > 2 and int(name) != orders:
                    _close(int(name))
            if not prctl.set_pdeathsig(signal.SIGKILL) or os.getppid() != parent:
                os._exit(1)
            os.setpgid(0, 0)
            os.chdir(request.cwd)
            set_environment(request.worker_env.items())
            self.holders.replace(os.getcwd())
            begin_otherwise(SCRIPT, self.here, request.argv, os.getcwd())
            given = Given(request.argv, request.worker_env, self.imports.asked)
            server = Server(request.spool, socket.socket(fileno=orders), given)
            return server.run(server.listen())
        except BaseException as error:  # noqa: BLE001 - workers are started plainly then
            known = isinstance(error, (RefusedError, NotFoundError))
            tell(orders, "refused %s" % (error if known else repr(error)))
            os._exit(0)


class Holders:
    """Who keeps a text that was the working folder's name while torch was imported."""

    def __init__(self) -> None:
        self.text = ""
        self.places: List[Tuple[Any, Any]] = []

    def find(self, server: WarmServer) -> None:
        """Find them all but the server itself.

        Raises:
            RefusedError: somebody keeps it in whose place nothing can be put.
        """
        text, ours = server.here, vars(server)
        for holder in gc.get_objects():
            if not _mentions(holder, text):
                continue
            if isinstance(holder, (WarmServer, Holders, FrameType)) or holder is ours or holder is vars(self):
                continue
            inside = holder if isinstance(holder, (dict, list)) else getattr(holder, "__dict__", None)
            names = _names(inside, text)
            if not names:
                raise RefusedError("a %s remembers the working folder" % type(holder).__name__)
            self.places += [(inside, name) for name in names]
        self.text = text

    def replace(self, folder: str) -> None:
        """Put another folder's name in its place."""
        for inside, name in self.places:
            inside[name] = inside[name].replace(self.text, folder)


def _mentions(holder: object, text: str) -> bool:
    found = False
    for one in gc.get_referents(holder):  # no expression: its cell would be such a holder too
        found = found or (type(one) is str and text in one)
    return found


def _names(inside: Any, text: str) -> List[Any]:
    if isinstance(inside, dict):
        return [name for name, value in inside.items() if type(value) is str and text in value]
    if isinstance(inside, list):
        return [at for at, value in enumerate(inside) if type(value) is str and text in value]
    return []


def _execute(
    request: Request, role: Tuple[str, int], streams: Tuple[int, int, int], handed: Sequence[Optional[int]]
) -> NoReturn:
    """Execute a role of the zipapp: with its spool, a pid, and the descriptors it has, or ``-``."""
    for handle in handed:
        if handle is not None:
            os.set_inheritable(handle, True)
    for number, handle in enumerate(streams):
        os.dup2(handle, number)
    os.chdir("/")
    numbers = ["-" if handle is None else str(handle) for handle in handed]
    argv = [*request.program, role[0], request.spool, *numbers, str(role[1])]
    os.execve(argv[0], argv, request.env)


def _answer(connection: socket.socket, answer: Dict[str, Any]) -> NoReturn:
    """Say it, and end."""
    try:
        connection.sendall(json.dumps(answer).encode() + b"\n")
    finally:
        os._exit(0)


def _reset_score(score: int) -> None:
    with open("/proc/self/oom_score_adj", "w") as stream:
        stream.write(str(score))


def _close(handle: int) -> None:
    try:
        os.close(handle)
    except OSError:
        pass


def _read_paths() -> Set[str]:
    """What an import here has read or searched."""
    paths = {sys.executable, os.path.realpath(sys.executable), os.path.join(sys.prefix, "pyvenv.cfg"), *sys.path}
    for module in list(sys.modules.values()):
        file = vars(module).get("__file__")
        paths.update([file] if isinstance(file, str) else [])
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as stream:
        places = [line.rstrip("\n").split(None, 5) for line in stream]
    paths.update(place[5] for place in places if len(place) > 5 and place[5].startswith("/"))
    return paths


def _state(path: str) -> Optional[Tuple[int, int, int, int]]:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _driver() -> bytes:
    try:
        with open(DRIVER, "rb") as stream:
            return stream.read()
    except OSError:
        return b""
