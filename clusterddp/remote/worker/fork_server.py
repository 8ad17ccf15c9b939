"""A run's fork server: imports torch once, then forks the agent and each worker from itself.

The supervisor starts it with the very command line of a worker, `python -u SCRIPT ARGS`, and the start-up hook
(worker/hook/sitecustomize.py) calls ``serve`` while the interpreter is still starting. A worker is a fork that returns
from there into Python's own start: it runs the script as any other.

    supervisor ── fork server ── keeper ── worker    one keeper a worker, between it and its shim
        └─ agent   forked too, adopted by the supervisor; it waits for its order

The server reads no request itself and installs no signal handler; a keeper that fails harms one start. If the server
dies the workers go on, and later ones are started plainly.

Not here: a fork's life as a keeper (worker/fork_keeper.py), as a worker (worker/fork_worker.py), as the agent
(worker/fork_agent.py); the shim's side (worker/fork_client.py), the supervisor's (supervisor/fork_server.py).
"""

import gc
import importlib
import os
import select
import socket
import sys
from typing import Iterable, Optional, Sequence, Set

from ..system.rename import rename
from . import fork_agent
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
REAP = 0.5  # seconds between looks for keepers that have ended
TITLE = "clusterddp: fork server of %s"  # its command line and its keepers', for `ps`


def serve(spool: str, descriptor: int, loaded: Iterable[str]) -> str:
    """Import and fork until killed; returns in each worker alone, with its ``<start>.<local_rank>``.

    Args:
        spool: The node's.
        descriptor: The socket to the supervisor.
        loaded: The modules that were loaded before any of ours.
    """
    try:
        server = Server(spool, descriptor, loaded)
        listener = server.listen()
        server.load(AGENT_MODULES)
        server.fork_agent(listener)
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

    def fork_agent(self, listener: socket.socket) -> None:
        """Fork the agent, which waits for its order; the supervisor adopts it from the process between."""
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            return
        middle = os.getpid()
        if os.fork():
            os._exit(0)
        try:
            listener.close()
            fork_agent.run(self.spool, self.descriptor, self.supervisor, middle)
        finally:
            os._exit(1)

    def run(self, listener: socket.socket) -> str:
        """Fork a keeper for each connection; returns in a worker."""
        while True:
            ready = select.select([listener], [], [], REAP)[0]
            _reap()
            if not ready:
                continue
            connection = listener.accept()[0]
            if not os.fork():
                listener.close()
                os.close(self.descriptor)
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
