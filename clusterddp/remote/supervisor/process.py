"""Start of the supervisor, our process on a host that owns the agent of one run and outlives every connection."""

import json
import os
import signal
import sys
from typing import List, Optional, Tuple

from ..control.connection import Secret
from ..processes.terminate import STOP_SIGNAL
from ..shared.processes.exit_codes import EXIT_STOPPED
from ..shared.run.run_state import RunState
from ..spool.layout import Spool
from ..system import prctl
from .fence import fork_fence
from .fence_pipe import FencePipe
from .node import Supervisor


def main(argv: List[str]) -> int:
    """Run the supervisor.

    ``argv``: the spool, then the listening descriptors of the store and of run control, or ``-``. From a warm server
    (preload/preload_server.py) there are more: the pipes of the fence, which exists already, the fork server's socket
    and its pid. Prints ``ready`` on stdout.
    """
    spool = Spool(argv[0])
    store, listener, *inherited = (None if argument == "-" else int(argument) for argument in argv[1:])
    try:
        secret: Optional[Secret] = Secret(spool.control_key(), spool.run, spool.plan().member)
    except FileNotFoundError:  # a stop of the run has removed it meanwhile
        secret = None
    forks: Optional[Tuple[int, int]] = None
    if inherited:
        feed, reports, fork_socket, server = (number or 0 for number in inherited)
        fence, forks = FencePipe(os.getppid(), feed, reports), (server, fork_socket)
    else:
        fence = fork_fence((spool.run, spool.host), secret, listener, [store] if store is not None else [])
    try:
        return _supervise(spool, fence, (store, listener), forks)
    finally:
        fence.release()


def _supervise(
    spool: Spool, fence: FencePipe, listeners: Tuple[Optional[int], Optional[int]], forks: Optional[Tuple[int, int]]
) -> int:
    """Run the supervisor unless the node has one or was stopped; ``forks``: a fork server's pid and socket."""
    environment = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    if not spool.take_lock():
        sys.stdout.write("another supervisor has this node\n")
        return 1
    order = spool.stop_order()
    if order:  # its writer saw no lock, and has reported that nothing is left
        if not spool.exit_record():
            spool.write_exit(RunState.STOPPED, EXIT_STOPPED, order.reason, agent_exit=None, survivors=[])
        sys.stdout.write("the run was stopped meanwhile\n")
        return 1
    prctl.set_subreaper()
    spool.write_supervisor()
    supervisor = Supervisor(spool, environment, *listeners, fence)
    if forks:
        supervisor.children.adopt_fork_server(*forks)

    def terminate(*_: object) -> None:
        supervisor.conditions.terminated = True

    def stop(*_: object) -> None:
        supervisor.conditions.stopped = True

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(STOP_SIGNAL, stop)
    for number in (signal.SIGCHLD, signal.SIGUSR1):  # they wake the loop
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    os.dup2(null, 1)
    supervisor.run()
    return 0
