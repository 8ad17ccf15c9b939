"""The guard: a process that starts one command, adopts all of its descendants, and ends them.

It is separate from the helper, which may be killed with its connection at any moment: the guard then reads the end of
its orders pipe and ends all of its descendants. It holds the command's input open until then, or the command would take
what has come of it for the whole. Background processes of a command that exited by itself are kept.
"""

import errno
import math
import os
import select
import time
from typing import Dict, List, NamedTuple, NoReturn, Optional, Tuple

from ..processes import terminate
from ..shared.processes.exit_codes import EXIT_CANNOT_START, EXIT_STOPPED, EXIT_TIME_LIMIT
from ..shared.processes.signal_numbers import signal
from ..shared.run.spool_records import LeftProcess
from ..shared.schema.json_text import to_json
from ..shared.schema.record import to_fields
from ..shared.shell.command_records import ExecEnd
from ..system import prctl, procfs
from ..system.descriptors import close_all_but
from ..system.programs import find_program
from ..system.wait_status import exit_code, reap

INPUT_ENDED, STOP = b"e", b"s"
LONGEST_POLL = 2**31 - 1  # milliseconds, about 25 days: a C int


class GuardedCommand(NamedTuple):
    """The command to run; ``timeout`` in seconds, None for no limit."""

    argv: List[str]
    cwd: str
    environment: Dict[str, str]
    timeout: Optional[float]
    grace: float  # seconds between SIGTERM and SIGKILL


class GuardPipes(NamedTuple):
    """The guard's ends of its pipes."""

    stdin: int
    stdout: int
    stderr: int
    orders: int  # INPUT_ENDED: all of the input was written; STOP or end of file: end the command
    answer: int  # takes an ``ExecEnd`` as JSON
    given: int  # the other end of ``stdin``


def guard(command: GuardedCommand, streams: GuardPipes) -> NoReturn:
    """Run the guard in the forked process: start the command, wait, end it if ordered, answer, exit."""
    status = 1
    try:
        os.setsid()
        prctl.set_pdeathsig(0)
        prctl.set_subreaper()
        close_all_but({2, *streams})
        os.dup2(streams.stderr, 2)  # else the connection would stay open as long as this process
        answer = _run(command, streams)
        with os.fdopen(streams.answer, "wb") as stream:
            stream.write(to_json(to_fields(answer)).encode())
        status = 0
    finally:
        os._exit(status)


def _run(command: GuardedCommand, streams: GuardPipes) -> ExecEnd:
    """Start the command, wait for it, and end its descendants if it was stopped or timed out."""
    woken, wake = os.pipe()  # a byte arrives at each SIGCHLD
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        child = _start(command, streams)
    except (OSError, ValueError) as error:
        return ExecEnd(code=EXIT_CANNOT_START, error=_start_failure(command, error), stopped=False, left=())
    for handle in (streams.stdin, streams.stdout, streams.stderr):
        os.close(handle)
    code, timed_out = _wait(child, streams, woken, command.timeout)
    if code is not None:
        return ExecEnd(code=code, error="", stopped=False, left=tuple(descendants()))
    left = terminate.terminate_all(descendants, command.grace)
    suffix = "; nothing of it is left" if not left else ""
    timeout_message = "out of time after %g s%s" % (command.timeout or 0, suffix) if timed_out else ""
    code = EXIT_TIME_LIMIT if timed_out else EXIT_STOPPED
    return ExecEnd(code=code, error=timeout_message, stopped=not timed_out, left=tuple(left))


def _start(command: GuardedCommand, streams: GuardPipes) -> int:
    """Start the command in a process group of its own; return its pid. Raises OSError or ValueError.

    ``subprocess`` would take longer to import than the rest of this process's work, and copy this process once more.
    """
    os.chdir(command.cwd)
    name = command.argv[0]
    program = name if "/" in name else find_program(name, command.environment)
    if not program:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return os.posix_spawn(
        program,
        command.argv,
        command.environment,
        file_actions=[(os.POSIX_SPAWN_DUP2, handle, number) for number, handle in enumerate(streams[:3])],
        setpgroup=0,
        setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # which Python ignores
    )


def descendants() -> List[LeftProcess]:
    """List every live descendant of this process, a subreaper: orphans among them are its children."""
    for _ in reap():
        pass
    table = procfs.snapshot()
    return [terminate.describe(table[pid]) for pid in procfs.subtree([os.getpid()], table, ()) - {os.getpid()}]


def _wait(pid: int, streams: GuardPipes, woken: int, timeout: Optional[float]) -> Tuple[Optional[int], bool]:
    """Wait; return the command's exit code, or None if it has to be ended, and whether it timed out."""
    deadline = None if timeout is None else time.monotonic() + timeout
    poll = select.poll()  # the module selectors takes as long to import as all else here
    poll.register(streams.orders, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        for ended, status in reap():
            if ended == pid:
                return exit_code(status), False
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return None, True
        for handle, _ in poll.poll(None if left is None else min(math.ceil(left * 1000), LONGEST_POLL)):
            if handle == woken:
                os.read(woken, 4096)
            elif os.read(streams.orders, 1) == INPUT_ENDED:
                os.close(streams.given)
            else:
                return None, False


def _start_failure(command: GuardedCommand, error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and os.path.isdir(command.cwd):
        return "%s: command not found" % command.argv[0]
    return "%s cannot be started: %s" % (command.argv[0], getattr(error, "strerror", None) or error)
