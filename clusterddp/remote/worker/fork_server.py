"""A run's fork server: imports torch once, then forks the agents, the store and each worker from itself.

The supervisor starts it with the very command line of a worker, `python -u SCRIPT ARGS`, and the start-up hook
(worker/hook/sitecustomize.py) calls ``serve`` while the interpreter is still starting. A worker is a fork that returns
from there into Python's own start: it runs the script as any other.

    supervisor ── fork server ── keeper ── worker    one keeper a worker, between it and its shim
        └─ agent, store   forked too, adopted by the supervisor; they wait for their orders

The server reads no request itself and installs no signal handler; a keeper that fails harms one start. If the server
dies the workers go on, and later ones are started plainly.

Not here: a fork's life as a keeper (worker/fork_keeper.py), as a worker (worker/fork_worker.py), as agent or store
(worker/fork_adopted.py); the shim's side (worker/fork_client.py), the supervisor's (supervisor/fork_server.py).
"""

import array
import gc
import importlib
import json
import os
import select
import socket
import sys
from typing import Iterable, List, NoReturn, Optional, Sequence, Set, Tuple

from ..system.rename import rename
from . import fork_adopted
from .environment_writes import mattering_write
from .fork_checks import (
    FORK_SOCKET,
    NO_RENAME,
    RefusedError,
    first_folders,
    process_state,
    refuse_start_up_code,
    refuse_unknown_python,
    tell,
    threads,
)
from .fork_keeper import Keeper
from .fork_worker import Given

AGENT_MODULES = ("torch", "torch.distributed.run")
WORKER_MODULES = ("torch._dynamo",)  # what DDP's constructor and every optimizer import: 823 modules of torch 2.13
LONGEST = 65536  # bytes of a request
MOST_HANDLES = 8  # with a request
REAP = 0.5  # seconds between looks for keepers that have ended
TITLE = "clusterddp: fork server of %s"  # its command line and its keepers', for `ps`


def serve(spool: str, descriptor: int, loaded: Iterable[str]) -> Tuple[str, str]:
    """Import and fork until killed; returns in each worker alone, with its spool and ``<start>.<local_rank>``.

    Args:
        spool: The node's.
        descriptor: The socket to the supervisor.
        loaded: The modules that were loaded before any of ours.
    """
    try:
        server = Server(spool, descriptor, loaded)
        listener = server.listen()
        server.load(AGENT_MODULES)
        server.obey(listener)
        server.load(WORKER_MODULES)
        tell(descriptor, "ready")
        return server.run(listener)
    except BaseException as error:  # noqa: BLE001 - whatever it is, workers are started plainly
        tell(descriptor, "refused %s" % (error if isinstance(error, RefusedError) else repr(error)))
        os._exit(0)


class Server:
    """The process that imports and forks.

    Args:
        spool: The node's.
        descriptor: The socket to the supervisor.
        loaded: The modules that were loaded before any of ours.
    """

    def __init__(self, spool: str, descriptor: int, loaded: Iterable[str]) -> None:
        self.spool, self.descriptor = spool, descriptor
        self.orders = socket.socket(fileno=descriptor)
        self.orders.setblocking(False)
        self.supervisor = os.getppid()
        self.given = Given.of_this_process()
        self.given.asked.update(name.partition(".")[0] for name in set(sys.modules) - set(loaded))
        refuse_unknown_python()
        refuse_start_up_code()
        self.refuse_late_variables()

    def refuse_late_variables(self) -> None:
        """Refuse where the project sets a variable that torch, imported here, has read before.

        Raises:
            RefusedError: names the line.
        """
        write = mattering_write([os.getcwd(), *first_folders(self.given.argv)])
        if write:
            raise RefusedError("%s, which torch may read when it is imported" % write)

    def listen(self) -> socket.socket:
        """The socket for shims, who wait until all is imported; where it never is, they are let go by our end.

        Raises:
            RefusedError: this kernel cannot have two command lines in one program.
        """
        if not rename([TITLE % self.spool], self.given.env.items()):
            raise RefusedError(NO_RENAME)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(self.spool, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # By this name, for a spool's own path may be too long for an address.
            listener.bind("/proc/self/fd/%d/%s" % (folder, FORK_SOCKET))
        finally:
            os.close(folder)
        os.chmod(os.path.join(self.spool, FORK_SOCKET), 0o600)
        listener.listen(128)
        return listener

    def load(self, modules: Sequence[str]) -> None:
        """Import, with the collector off; nothing but modules may be left of it.

        Raises:
            RefusedError: something was: a thread, a descriptor, output, a variable.
        """
        before = process_state()
        gc.disable()
        finder = Asked(self.given.asked)
        sys.meta_path.insert(0, finder)  # type: ignore[arg-type,unused-ignore]
        try:
            for name in modules:
                importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a broken installation
            raise RefusedError("%s cannot be imported: %r" % (name, error)) from None
        finally:
            sys.meta_path.remove(finder)  # type: ignore[arg-type,unused-ignore]
            gc.enable()
        gc.collect()
        gc.freeze()
        if threads() > 1:  # OpenBLAS ends its own at a fork
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)
        after = process_state()
        for what, value in before.items():
            if after[what] != value:
                raise RefusedError("importing %s changed %s" % (", ".join(modules), what))

    def obey(self, listener: socket.socket) -> None:
        """Fork what the supervisor has asked for by now; it adopts each from a process between.

        A request is ``{role, spool}``; with it come the socket for its order and the role's own descriptors.
        """
        while True:
            handles = array.array("i")
            try:
                data, ancillary, _, _ = self.orders.recvmsg(LONGEST, socket.CMSG_SPACE(MOST_HANDLES * handles.itemsize))
            except BlockingIOError:
                return
            for _, _, rights in ancillary:
                handles.frombytes(rights)
            if not data:  # the supervisor is gone
                os._exit(0)
            request = json.loads(data)
            between = os.fork()
            if between:
                os.waitpid(between, 0)
            else:
                self.fork_adopted(listener, request["role"], request["spool"], list(handles))
            for handle in handles:
                os.close(handle)

    def fork_adopted(self, listener: socket.socket, role: str, spool: str, handles: List[int]) -> NoReturn:
        """In the process between: fork once more, and end."""
        middle = os.getpid()
        if os.fork():
            os._exit(0)
        try:
            listener.close()
            self.orders.close()
            fork_adopted.run(role, spool, handles, self.supervisor, middle)
        finally:
            os._exit(1)

    def run(self, listener: socket.socket) -> Tuple[str, str]:
        """Fork a keeper for each connection, and what the supervisor asks for; returns in a worker."""
        while True:
            ready = select.select([listener, self.orders], [], [], REAP)[0]
            _reap()
            if self.orders in ready:
                self.obey(listener)
            if listener not in ready:
                continue
            connection = listener.accept()[0]
            if not os.fork():
                listener.close()
                self.orders.close()
                return Keeper(self.given, connection).run()
            connection.close()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


class Asked:
    """A finder that finds nothing, and notes every top-level name that is looked for."""

    def __init__(self, names: Set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, _path: Optional[object] = None, _target: Optional[object] = None) -> None:
        """Note the name."""
        self.names.add(name.partition(".")[0])
