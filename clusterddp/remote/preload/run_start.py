"""Turn a request to a warm server into a run's fence, supervisor and fork server, in forks of that server."""

import os
import signal
import socket
from typing import FrozenSet, List, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple

from ..fork_server.cwd_references import PathHolders
from ..fork_server.fork_checks import RefusedError, tell
from ..fork_server.forked_worker import WorkerInputs
from ..fork_server.server import Server
from ..system import prctl
from ..system.descriptors import close_all_but
from ..system.interpreter_argv import NotFoundError, replace_argv
from ..system.rename import set_environment
from .server_folder import SCRIPT
from .start_request import StartRequest


class Inherited(NamedTuple):
    """What a run's fork server inherits from the warm server."""

    here: str  # the working directory that the warm server began in
    holders: PathHolders  # the objects that hold its path
    asked: Set[str]  # the top-level names of the modules that were searched for
    left_out: FrozenSet[str]  # those of packages that it could not preload


def become_fence(inherited: Inherited, request: StartRequest, handles: List[int]) -> Tuple[str, str]:
    """Fork the supervisor and execute the fence; return only in a worker."""
    for handle in handles:
        os.set_inheritable(handle, False)
    stdin, stdout, *rest = handles
    store, control = (rest.pop(0) if is_listening else None for is_listening in request.listening)
    _reset_score(request.score)
    prctl.set_subreaper()
    feed, reports = os.pipe(), os.pipe()
    supervisor = os.fork()
    if supervisor:
        null = os.open(os.devnull, os.O_RDWR)
        _execute(request, ("fence", supervisor), (null, null, null), (feed[0], reports[1], control))
    prctl.set_subreaper()
    ours, its = (one.detach() for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    server = os.fork()
    if server:
        log = os.open(os.path.join(request.spool, "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        passed = (store, control, feed[1], reports[0], ours)
        _execute(request, ("supervisor", server), (stdin, stdout, log), passed)
    return become_fork_server(inherited, request, its)


def become_fork_server(inherited: Inherited, request: StartRequest, orders: int) -> Tuple[str, str]:
    """Become what the supervisor would have started as `python -u SCRIPT`; return only in a worker."""
    try:
        parent = os.getppid()
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for number, handle in enumerate((null, log, log)):
            os.dup2(handle, number)
        close_all_but({0, 1, 2, orders}, code=True)
        if not prctl.set_pdeathsig(signal.SIGKILL) or os.getppid() != parent:
            os._exit(1)
        os.setpgid(0, 0)
        os.chdir(request.cwd)
        set_environment(request.worker_env.items())
        inherited.holders.replace(os.getcwd())
        replace_argv(SCRIPT, inherited.here, request.argv, os.getcwd())
        given = WorkerInputs(request.argv, request.worker_env, inherited.asked, inherited.left_out)
        server = Server(request.spool, socket.socket(fileno=orders), given)
        return server.run(server.listen())
    except BaseException as error:  # noqa: BLE001 - workers are started plainly then
        is_expected = isinstance(error, (RefusedError, NotFoundError))
        tell(orders, "refused %s" % (error if is_expected else repr(error)))
        os._exit(0)


def _execute(
    request: StartRequest, role: Tuple[str, int], streams: Tuple[int, int, int], passed: Sequence[Optional[int]]
) -> NoReturn:
    """Execute a role of the zipapp with its spool, its descriptors (``-`` for one that it lacks) and a pid."""
    for handle in passed:
        if handle is not None:
            os.set_inheritable(handle, True)
    for number, handle in enumerate(streams):
        os.dup2(handle, number)
    os.chdir("/")
    numbers = ["-" if handle is None else str(handle) for handle in passed]
    argv = [*request.program, role[0], request.spool, *numbers, str(role[1])]
    os.execve(argv[0], argv, request.env)


def _reset_score(score: int) -> None:
    with open("/proc/self/oom_score_adj", "w") as stream:
        stream.write(str(score))
