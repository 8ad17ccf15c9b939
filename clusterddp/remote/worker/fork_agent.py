"""The agent as a fork of the run's fork server: torchrun, whose order comes over the supervisor's socket.

Our own process: its main function is called, where a worker returns into Python's own start (worker/fork_worker.py).
Not here: the order (supervisor/fork_server.py).
"""

import atexit
import importlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict, NoReturn

from ..system import prctl
from ..system.clock import boot_clock
from ..system.rename import rename, set_environment
from .fork_checks import tell

HELD_UP = 127
POLL = 0.001  # seconds between looks for the new parent


def run(spool: str, descriptor: int, supervisor: int, middle: int) -> NoReturn:
    """Get ready, wait for the order, run torchrun to its end.

    Args:
        spool: The node's.
        descriptor: The socket to the supervisor.
        supervisor: Its pid.
        middle: The process between, which is ending.
    """
    while os.getppid() == middle:
        time.sleep(POLL)
    prctl.set_pdeathsig(signal.SIGKILL)  # only now: the process between had to end
    if os.getppid() != supervisor:
        os._exit(HELD_UP)
    os.setpgid(0, 0)
    try:
        torchrun = _get_ready(spool)
    except Exception as error:  # noqa: BLE001 - then the supervisor starts it plainly
        tell(descriptor, "no agent: %r" % (error,))
        os._exit(0)
    tell(descriptor, "agent %d" % os.getpid())
    order = _order(descriptor)
    if order["until"] is not None and boot_clock() >= order["until"]:
        os._exit(HELD_UP)  # we were held up, and the others may be in a later attempt
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for handle in (1, 2):
        os.dup2(log, handle)
    os.close(log)
    os.close(descriptor)
    set_environment(order["env"].items())
    rename(order["argv"], order["env"].items())
    sys.argv = [str(torchrun.__file__), *order["argv"][3:]]  # behind python -m MODULE
    _end(torchrun.main)


def _get_ready(spool: str) -> Any:
    """Torchrun's module, with our rendezvous plugin registered as torch does it."""
    sys.path[:0] = [os.getcwd(), os.path.join(spool, "remote.pyz")]
    backend = importlib.import_module("clusterddp_remote.shared.plan").BACKEND
    creator = importlib.import_module("clusterddp_remote.rendezvous").creator
    importlib.import_module("clusterddp_remote.rendezvous.handler")
    rendezvous = importlib.import_module("torch.distributed.elastic.rendezvous")
    rendezvous.rendezvous_handler_registry.register(backend, creator())
    return importlib.import_module("torch.distributed.run")


def _order(descriptor: int) -> Dict[str, Any]:
    """The supervisor's order: a line of JSON; ends this process where none comes any more."""
    data = b""
    while not data.endswith(b"\n"):
        more = os.read(descriptor, 65536)
        if not more:
            os._exit(0)
        data += more
    order: Dict[str, Any] = json.loads(data)
    return order


def _end(main: Callable[[], object]) -> NoReturn:
    """Run ``main`` and end as an interpreter does, without taking torch apart."""
    code: object = 0
    try:
        main()
    except SystemExit as error:
        code = error.code
    except BaseException as error:  # noqa: BLE001 - printed as Python prints it
        trace = error.__traceback__
        sys.excepthook(type(error), error, trace.tb_next if trace else None)
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
