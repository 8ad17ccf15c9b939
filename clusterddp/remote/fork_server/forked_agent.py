"""Run the agent or the store as a fork of the run's fork server; the supervisor adopts it."""

import atexit
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NoReturn

from ..shared.processes.exit_codes import EXIT_CANNOT_START
from ..shared.run.fork_requests import BeginOrder
from ..shared.run.plan import PARTICIPANTS
from ..system import prctl
from ..system.clock import boot_clock
from ..system.rename import rename, set_environment
from .fork_checks import tell

POLL_INTERVAL = 0.001  # seconds between checks for the new parent
Main = Callable[[], object]


def run(role: str, spool: str, handles: List[int], supervisor: int, middle: int) -> NoReturn:
    """Prepare, wait for the supervisor's order, then run the main function of ``role`` to its end.

    ``role`` is ``agent`` or ``store``. ``handles`` are the socket for the order, then the agent's socket to the
    supervisor or the store's listening socket. ``supervisor`` is a pid, ``middle`` that of the intermediate process,
    which is ending.
    """
    while os.getppid() == middle:
        time.sleep(POLL_INTERVAL)
    prctl.set_pdeathsig(signal.SIGKILL)  # only now: the intermediate process had to end
    if os.getppid() != supervisor:
        os._exit(EXIT_CANNOT_START)
    os.setpgid(0, 0)
    descriptor, *sockets = handles
    try:
        sys.path[:0] = [os.getcwd(), os.path.join(spool, "remote.pyz")]
        main = {"agent": _prepare_agent, "store": _prepare_store}[role](sockets)
    except Exception as error:  # noqa: BLE001 - then the supervisor starts it plainly
        tell(descriptor, "no %s: %r" % (role, error))
        os._exit(0)
    tell(descriptor, "%d" % os.getpid())
    order = _read_order(descriptor)
    if order.until is not None and boot_clock() >= order.until:
        os._exit(EXIT_CANNOT_START)  # we were delayed, and the other nodes may be in a later attempt
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for handle in (1, 2):
        os.dup2(log, handle)
    os.close(log)
    os.close(descriptor)
    set_environment(order.env.items())
    rename(order.argv, order.env.items())
    sys.argv = order.argv[2:]  # after python -m or -u
    _run_and_exit(main)


def _prepare_agent(sockets: List[int]) -> Main:
    """Register our rendezvous plugin as torch does, and return torchrun's main function."""
    backend = importlib.import_module("clusterddp_remote.shared.run.plan").BACKEND
    creator = importlib.import_module("clusterddp_remote.rendezvous").creator
    importlib.import_module("clusterddp_remote.rendezvous.handler")
    rendezvous = importlib.import_module("torch.distributed.elastic.rendezvous")
    rendezvous.rendezvous_handler_registry.register(backend, creator())
    torchrun = importlib.import_module("torch.distributed.run")

    def main() -> object:
        if sockets:
            os.environ[PARTICIPANTS] = str(sockets[0])
        sys.argv[0] = str(torchrun.__file__)
        spare_module_search()
        return torchrun.main()

    return main


def spare_module_search() -> None:
    """Tell ``inspect`` which module each frame below is of, as their files are of none in ``sys.modules``.

    Otherwise ``inspect.stack()``, which torch's c10d rendezvous calls all the time, searches all modules for each.
    """
    known: Dict[str, str] = importlib.import_module("inspect").modulesbyfile
    frame: Any = sys._getframe()  # noqa: SLF001 - the documented way to the callers
    while frame:
        known.setdefault(frame.f_code.co_filename, str(frame.f_globals.get("__name__")))
        frame = frame.f_back


def _prepare_store(sockets: List[int]) -> Main:
    """Import the store, and return the function that runs it on the listening socket."""
    (listener,) = sockets
    with socket.socket(fileno=os.dup(listener)) as sock:
        sock.getsockname()  # fails unless the descriptor is a socket
    serve = importlib.import_module("clusterddp_remote.rendezvous.store").main
    return lambda: serve([str(listener), "forked"])


def _read_order(descriptor: int) -> BeginOrder:
    """Read the supervisor's order, a line of JSON; exit if the socket is closed before."""
    data = b""
    while not data.endswith(b"\n"):
        more = os.read(descriptor, 65536)
        if not more:
            os._exit(0)
        data += more
    return BeginOrder(**json.loads(data))


def _run_and_exit(main: Main) -> NoReturn:
    """Run ``main`` and exit as an interpreter does, but without tearing torch down."""
    code: object = 0
    try:
        main()
    except SystemExit as error:
        code = error.code
    except BaseException as error:  # noqa: BLE001 - printed as Python prints it
        trace = error.__traceback__
        for _ in range(2):  # leave out this frame and that of ``main``
            trace = trace.tb_next if trace else None
        sys.excepthook(type(error), error, trace)
        code = 1
    if code is not None and not isinstance(code, int):
        sys.stderr.write("%s\n" % (code,))
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001 - what Python itself calls at its end
        atexit._run_exitfuncs()  # noqa: SLF001
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit((code or 0) & 255)
