"""The operation ``shell``: the user's login shell on a terminal of this host, its keys and its screen over one request.

    operator → host   data frames: keys; one with ``rows`` and ``columns``: the window's size
    host → operator   data frames: what it writes on its terminal; the result ``{code, cwd}``

It hangs up, as a terminal does, when the request ends; what ignores that lives on, as after any login.
"""

import fcntl
import os
import pwd
import selectors
import signal
import struct
import termios
from typing import Any, Dict, NoReturn

from ..helper.request import Request
from ..spool.layout import Spool
from ..supervisor.start import agent_environment
from ..system.bootstrap import Refused, home_folder
from ..system.wait_status import exit_code
from ..worker.worker_env import PRIVATE, PRIVATE_PREFIX, original_environment
from .execute import folder_of, worker_like

PIECE = 1 << 15
_DEFAULT = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD, signal.SIGTSTP,
    signal.SIGTTIN, signal.SIGTTOU,
)  # fmt: skip


def shell(request: Request) -> Dict[str, Any]:
    """Run the shell to its end.

    Args of the request: as of ``exec``, and ``spool`` (in the environment and folder of that run; else empty),
    ``rows``, ``columns``, ``term``.

    Raises:
        Refused: a setup line fails, or the run's files are gone.
    """
    args = request.args
    environment = original_environment(dict(os.environ))
    cwd = home = home_folder()
    if args["spool"]:
        environment, cwd = _of_run(args["spool"])
    elif not args["bare"]:
        environment = worker_like(args, environment)
        cwd = folder_of(args["workdir"], args["subfolder"], home)
    cwd = cwd if os.path.isdir(cwd) else home
    environment.update(TERM=args["term"], PWD=cwd)
    pid, master = _fork_terminal(args["rows"], args["columns"])
    if not pid:
        _become_shell(cwd, environment)
    os.set_blocking(master, False)
    _pass_on(request, master)
    os.close(master)
    return {"code": exit_code(os.waitpid(pid, 0)[1]), "cwd": cwd}


def _of_run(folder: str) -> "tuple[Dict[str, str], str]":
    """The environment and the folder of a run's workers; without secrets, and without what a rank has of its own."""
    spool = Spool(folder)
    try:
        plan = spool.plan()
    except (OSError, ValueError) as error:
        raise Refused("the run's files cannot be read: %s" % error) from None
    environment = agent_environment(plan, spool)
    environment.pop("CLUSTERDDP_RUN_ID")  # whose bearer is the run's own, and ends with it
    user = environment.pop("CLUSTERDDP_USER_PYTHONPATH", None)
    environment.pop("PYTHONPATH", None)
    environment.update({} if user is None else {"PYTHONPATH": user})
    own = {name for name in environment if name.startswith(PRIVATE_PREFIX) or name in PRIVATE}
    return {name: value for name, value in environment.items() if name not in own}, plan.cwd


def _fork_terminal(rows: int, columns: int) -> "tuple[int, int]":
    """As ``pty.fork``, with the window's size set before the child runs."""
    master, slave = os.openpty()
    _resize(master, rows, columns)
    pid = os.fork()
    if pid:
        os.close(slave)
        return pid, master
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for handle in range(3):
        os.dup2(slave, handle)
    return 0, -1


def _become_shell(cwd: str, environment: Dict[str, str]) -> NoReturn:
    """The child: nothing of ours is open or ignored in it."""
    try:
        for number in _DEFAULT:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.chdir(cwd)
        program = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
        os.execve(program, [os.path.basename(program)], environment)
    except BaseException as error:  # noqa: BLE001 - it must never go on as a second helper
        os.write(2, ("clusterddp: the shell cannot be started: %s\r\n" % error).encode())
    finally:
        os._exit(127)


def _resize(master: int, rows: Any, columns: Any) -> None:
    if all(type(one) is int and 0 <= one < 1 << 16 for one in (rows, columns)):
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _pass_on(request: Request, master: int) -> None:
    """Keys one way, the screen the other, until the terminal has no more users."""
    keys = bytearray()
    selector = selectors.DefaultSelector()
    selector.register(request.handle, selectors.EVENT_READ)
    selector.register(master, selectors.EVENT_READ)
    while True:
        selector.modify(master, selectors.EVENT_READ | (selectors.EVENT_WRITE if keys else 0))
        for key, ready in selector.select():
            if key.fd == request.handle:
                frames, ended = request.take()
                for frame in frames:
                    keys += frame.body
                    _resize(master, frame.header.get("rows"), frame.header.get("columns"))
                if ended:  # the user's input has: the shell reads its end
                    keys += b"\x04"
                    selector.unregister(request.handle)
                continue
            if ready & selectors.EVENT_READ:
                try:
                    data = os.read(master, PIECE)
                except OSError:  # EIO: nobody has it open any more
                    return
                request.send(data)
            if ready & selectors.EVENT_WRITE and keys:
                written = os.write(master, bytes(keys[:PIECE]))
                request.grant(written)
                del keys[:written]
