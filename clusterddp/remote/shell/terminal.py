"""The operation ``shell``: run the user's login shell in a pseudo-terminal on this host, over one request.

    operator → host   a ``ShellRequest``; data frames: keys; one with the header of ``WindowSize``: the window's size
    host → operator   data frames: the terminal's output; the result, a ``ShellEnd``

The records are in shared/shell/command_records.py.
The terminal hangs up when the request ends; processes that ignore SIGHUP live on, as after any login.
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
from ..shared.processes.exit_codes import EXIT_CANNOT_START
from ..shared.schema.record import read_record, to_fields
from ..shared.shell.command_records import ShellEnd, ShellRequest, WindowSize
from ..system.bootstrap import home_folder
from ..system.wait_status import exit_code
from ..worker.agent_environment import environment_of_run, worker_like
from ..worker.worker_env import original_environment
from .execute import start_folder

PIECE = 1 << 15
_RESET_SIGNALS = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD, signal.SIGTSTP,
    signal.SIGTTIN, signal.SIGTTOU,
)  # fmt: skip


def shell(request: Request) -> Dict[str, Any]:
    """Run the shell until it ends; raises Refused if a setup line fails, or the run's files are gone."""
    asked = request.read_args(ShellRequest)
    environment = original_environment(dict(os.environ))
    cwd = home = home_folder()
    if asked.spool:
        environment, cwd = environment_of_run(asked.spool)
    elif asked.place:
        environment = worker_like(asked.place, environment)
        cwd = start_folder(asked.place, home)
    cwd = cwd if os.path.isdir(cwd) else home
    environment.update(TERM=asked.term, PWD=cwd)
    pid, master = _fork_terminal(asked.window)
    if not pid:
        _become_shell(cwd, environment)
    os.set_blocking(master, False)
    _forward_terminal(request, master)
    os.close(master)
    return to_fields(ShellEnd(exit_code(os.waitpid(pid, 0)[1])))


def _fork_terminal(window: WindowSize) -> "tuple[int, int]":
    """Like ``pty.fork``, with the window's size set before the child runs."""
    master, slave = os.openpty()
    _resize(master, window)
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
    """Replace the child by the login shell, with default signal handling."""
    try:
        for number in _RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.chdir(cwd)
        program = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
        os.execve(program, [os.path.basename(program)], environment)
    except BaseException as error:  # noqa: BLE001 - it must never go on as a second helper
        os.write(2, ("clusterddp: the shell cannot be started: %s\r\n" % error).encode())
    finally:
        os._exit(EXIT_CANNOT_START)


def _resize(master: int, window: WindowSize) -> None:
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", window.rows, window.columns, 0, 0))


def _forward_terminal(request: Request, master: int) -> None:
    """Forward keys and terminal output until no process has the terminal open."""
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
                    if not frame.body:
                        _resize(master, read_record(WindowSize, frame.header, "window"))
                if ended:  # the user's input has ended: send Ctrl-D
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
                sent = os.write(master, bytes(keys[:PIECE]))
                request.grant(sent)
                del keys[:sent]
