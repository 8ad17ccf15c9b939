"""A run's fork server: imports torch once, then forks the agents, the store and each worker from itself.

Besides torch it imports the packages of clusterddp_preload (fork_server/preload_packages.py).

The supervisor starts it with the very command line of a worker, `python -u SCRIPT ARGS`, and the start-up hook
(worker/hook/sitecustomize.py) calls ``serve`` while the interpreter is still starting. A worker is a fork that returns
from there into Python's own start: it runs the script as any other.

    supervisor ── fork server ── worker parent ── worker    a worker parent for each worker, between it and its shim
        └─ agent, store   forked too, adopted by the supervisor; they wait for their orders

The server reads requests of the supervisor alone, and installs no signal handler. A worker parent reads its shim's
request, so one that fails harms one start. If the server dies the workers go on, and later ones are started plainly.
"""

import array
import json
import os
import select
import socket
import sys
import time
from typing import Iterable, List, NoReturn, Tuple

from ..shared.run.fork_requests import AgentRequest
from ..shared.run.plan import FORK_SOCKET
from ..spool.layout import Spool
from ..system.rename import rename
from ..system.wait_status import reap
from . import forked_agent
from .environ_writes import mattering_write
from .fork_checks import (
    NO_RENAME,
    RefusedError,
    first_folders,
    refuse_start_up_code,
    refuse_unknown_python,
    script_path,
    socket_of,
    tell,
)
from .forked_worker import WorkerInputs
from .imports import AGENT_MODULES, Imports, worker_modules
from .preload_packages import Preload, clash_with
from .script_imports import folders_put_first, needs_packages
from .worker_parent import WorkerParent

MAX_REQUEST = 65536  # bytes of a request
MAX_HANDLES = 8  # with a request
PRELOAD_TIMEOUT = (
    20.0  # seconds after which nothing more is imported ahead: workers wait for us no longer than a minute
)
REAP_INTERVAL = 0.5  # seconds between looks for worker parents that have ended
TITLE = "clusterddp: fork server of %s"  # its command line and its worker parents', for `ps`


def serve(spool: str, descriptor: str, loaded: Iterable[str]) -> Tuple[str, str]:
    """Import and fork until killed; returns in each worker alone, with its spool and ``<start>.<local_rank>``.

    ``descriptor`` is that of the socket to the supervisor; ``loaded`` are the modules loaded before any of ours.
    """
    try:
        began = time.monotonic()
        imports = Imports(loaded, hurried=True)
        refuse_unknown_python()
        refuse_start_up_code()
        orders = socket.socket(fileno=int(descriptor))
        server = Server(spool, orders, WorkerInputs.of_this_process(imports.asked))
        listener = server.listen()
        imports.load(AGENT_MODULES)
        server.fork_requested(listener)
        if needs_packages(server.given.argv, server.folders):  # else it waits for no more than its agent did
            imports.load(worker_modules(sys.modules["torch"].__version__))
            server.preload(imports, listener, began)
        return server.run(listener)
    except BaseException as error:  # noqa: BLE001 - whatever it is, workers are started plainly
        tell(int(descriptor), "refused %s" % (error if isinstance(error, RefusedError) else repr(error)))
        os._exit(0)


class Server:
    """The process that imports and forks; ``orders`` is the socket to the supervisor. Raises RefusedError."""

    def __init__(self, spool: str, orders: socket.socket, given: WorkerInputs) -> None:
        self.spool, self.orders, self.given = spool, orders, given
        self.orders.setblocking(False)
        self.supervisor = os.getppid()
        self.folders = list(dict.fromkeys([os.getcwd(), *first_folders(given.argv)]))  # the project's
        self.refuse_late_variables()
        first = [*first_folders(given.argv), *folders_put_first(self.folders)]  # its files can be read: see above
        self.given = given._replace(first=first)

    def refuse_late_variables(self) -> None:
        """Refuse where the project sets a variable that torch, imported here, has read before; raises RefusedError."""
        write = mattering_write(self.folders, script_path(self.given.argv))
        if write:
            raise RefusedError("%s, which torch may read when it is imported" % write)

    def listen(self) -> socket.socket:
        """The socket for shims, who wait until all is imported; where it never is, they are let go by our end.

        Raises RefusedError if this kernel cannot have two command lines in one program.
        """
        if not rename([TITLE % self.spool], self.given.env.items()):
            raise RefusedError(NO_RENAME)
        return listen_in(self.spool)

    def fork_requested(self, listener: socket.socket) -> None:
        """Fork what the supervisor has asked for by now; it adopts each from a process between.

        With an ``AgentRequest`` come the socket for its order and the role's own descriptors.
        """
        while True:
            handles = array.array("i")
            try:
                data, ancillary, _, _ = self.orders.recvmsg(
                    MAX_REQUEST, socket.CMSG_SPACE(MAX_HANDLES * handles.itemsize)
                )
            except BlockingIOError:
                return
            for _, _, rights in ancillary:
                handles.frombytes(rights)
            if not data:  # the supervisor is gone
                os._exit(0)
            request = AgentRequest(**json.loads(data))
            between = os.fork()
            if between:
                os.waitpid(between, 0)
            else:
                self.fork_adopted(listener, request, list(handles))
            for handle in handles:
                os.close(handle)

    def fork_adopted(self, listener: socket.socket, request: AgentRequest, handles: List[int]) -> NoReturn:
        """In the process between: fork once more, and end."""
        middle = os.getpid()
        if os.fork():
            os._exit(0)
        try:
            listener.close()
            self.orders.close()
            forked_agent.run(request.role, request.spool, handles, self.supervisor, middle)
        finally:
            os._exit(1)

    def preload(self, imports: Imports, listener: socket.socket, began: float) -> None:
        """Import the plan's packages; agent and store do not wait for it, nor workers for a disk that is slow."""
        run = Spool(self.spool)
        plan = run.readable_plan()
        preload = Preload(run.state, plan.host_settings.preload if plan else ())
        preload.decide(lambda: self.fork_requested(listener))
        asks = {name for one in preload.to_import for name in one.asks}
        reads = {name for one in preload.to_import for name in one.reads}
        clash = ""
        if preload.to_import:
            clash = clash_with(self.folders, script_path(self.given.argv), asks, reads, self.given.first)
        preload.leave_out(lambda _: clash)
        slow = "importing had taken %d s by then" % PRELOAD_TIMEOUT
        for one in preload.to_import:
            if time.monotonic() - began > PRELOAD_TIMEOUT:
                preload.leave_out(lambda verdict: "" if verdict in preload.imported else slow)
                break
            preload.load(one, imports)
            self.fork_requested(listener)
        self.given = self.given._replace(left_out=preload.left_out_names)
        if preload.imported:
            tell(self.orders.fileno(), "preloaded " + ", ".join(one.name for one in preload.imported))
        for one in preload.left_out:
            tell(self.orders.fileno(), "left %s: %s" % (one.name, one.left_out))

    def run(self, listener: socket.socket) -> Tuple[str, str]:
        """Report ``ready``, then fork a worker parent for each connection, and what the supervisor requests.

        Returns only in a forked worker: its spool, and ``<start>.<local_rank>``.
        """
        tell(self.orders.fileno(), "ready")
        while True:
            ready = select.select([listener, self.orders], [], [], REAP_INTERVAL)[0]
            list(reap())  # worker parents that have ended
            if self.orders in ready:
                self.fork_requested(listener)
            if listener not in ready:
                continue
            connection = listener.accept()[0]
            if not os.fork():
                listener.close()
                self.orders.close()
                return WorkerParent(self.given, connection).run()
            connection.close()


def listen_in(folder: str) -> socket.socket:
    """A listening socket, which is in the folder only once somebody can connect to it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.fchmod(listener.fileno(), 0o600)  # the file that bind makes has this mode, whatever the umask
    path = socket_of(folder)
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # By this name, for a folder's own path may be too long for an address.
        listener.bind("/proc/self/fd/%d/%s.new" % (handle, FORK_SOCKET))
    finally:
        os.close(handle)
    listener.listen(128)
    os.rename(path + ".new", path)
    return listener
