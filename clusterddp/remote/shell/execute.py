"""The operation ``exec``: run a command on this host and stream its input and output over one request.

    operator → host   an ``ExecRequest``; data frames: its stdin; a frame with ``stop``: end it
    host → operator   data frames with the header of ``ExecOutput``; the result, an ``ExecEnd``

The records are in shared/shell/command_records.py.
The command is also ended when the request ends, as when the connection is closed (guard.py).
"""

import os
import select
from typing import Any, Callable, Deque, Dict, List, Optional

from ..helper.request import Request
from ..shared.schema.record import parse_record, read_record, to_fields
from ..shared.shell.command_records import ERR, OUT, ExecEnd, ExecInput, ExecOutput, ExecRequest, WorkerPlace
from ..system.bootstrap import Refused, home_folder
from ..system.programs import find_program
from ..system.queues import deque
from ..worker.agent_environment import worker_like
from ..worker.worker_env import original_environment
from .guard import INPUT_ENDED, STOP, GuardedCommand, GuardPipes, guard

PIECE = 1 << 15
LAST_OUTPUT_TIMEOUT = 1000  # milliseconds without output after which an exited command's output counts as complete
MAX_AFTER_END = 4 << 20  # bytes: more than both pipes hold, so what comes beyond is written after the end


def execute(request: Request) -> Dict[str, Any]:
    """Run the command until it ends; raises Refused if a setup line fails."""
    asked = request.read_args(ExecRequest)
    environment = original_environment(dict(os.environ))
    home = home_folder()
    cwd = home
    if asked.place:
        environment = worker_like(asked.place, environment)
        cwd = start_folder(asked.place, home)
    environment["PWD"] = cwd
    shell = find_program("bash", environment) or "/bin/sh"
    argv = [*asked.argv] if asked.shell is None else [shell, "-c", asked.shell]
    command = GuardedCommand(argv, cwd, environment, asked.timeout, asked.grace)
    answer = CommandStreams(request, command).run()
    return to_fields(answer._replace(cwd=cwd, home=cwd == home and asked.place is not None))


def start_folder(place: WorkerPlace, home: str) -> str:
    """Return the folder of the workdir in which a worker starts, or ``home`` if it does not exist."""
    workdir = place.job.workdir
    path = os.path.normpath(os.path.join(os.path.expanduser(workdir), place.subfolder)) if workdir else home
    return path if os.path.isdir(path) else home


class CommandStreams:
    """Passes one command's streams between the guard process and the operator."""

    def __init__(self, request: Request, command: GuardedCommand) -> None:
        self.request = request
        self.input: Deque[bytes] = deque()  # for the command; granted again as the command reads it
        self.input_ended = False
        self.answer = bytearray()
        self.ended = False  # the command has ended and the guard has answered
        self.after_end = 0  # bytes of output since
        self.poll = select.poll()  # the module selectors takes a millisecond to import
        self.watched: Dict[int, Callable[[int], None]] = {}  # descriptor → what to call when it is ready
        stdin, stdout, stderr, orders, answer = (os.pipe() for _ in range(5))
        parts = GuardPipes(stdin[0], stdout[1], stderr[1], orders[0], answer[1], os.dup(stdin[1]))
        if not os.fork():
            guard(command, parts)
        for handle in parts:
            os.close(handle)
        self.stdin: Optional[int] = stdin[1]
        self.orders = orders[1]
        os.set_blocking(self.stdin, False)
        self.outputs = {stdout[0]: to_fields(ExecOutput(OUT)), stderr[0]: to_fields(ExecOutput(ERR))}
        self._watch(answer[0], self._take_answer)
        self._watch(request.handle, self._take_frames)
        for handle in self.outputs:
            self._watch(handle, self._forward_output)

    def run(self) -> ExecEnd:
        """Forward everything until the command has ended and its output is complete."""
        while self.outputs or not self.ended:
            self._watch_stdin()
            ready = self.poll.poll(LAST_OUTPUT_TIMEOUT if self.ended else None)
            if self.ended and (not ready or self.after_end > MAX_AFTER_END):
                break  # its background processes hold the output open
            for handle, _ in ready:
                self.watched[handle](handle)
        return self._result()

    def _watch(self, handle: int, act: Callable[[int], None], events: int = select.POLLIN) -> None:
        self.poll.register(handle, events)
        self.watched[handle] = act

    def _unwatch(self, handle: int) -> None:
        self.poll.unregister(handle)
        del self.watched[handle]

    def _take_answer(self, handle: int) -> None:
        """Read the guard's answer, an ``ExecEnd`` as JSON; it is complete at the end of the pipe."""
        data = os.read(handle, PIECE)
        self.answer += data
        if not data:
            self.ended = True
            self._unwatch(handle)

    def _result(self) -> ExecEnd:
        try:
            return parse_record(bytes(self.answer), lambda data: read_record(ExecEnd, data, "end"))
        except ValueError:
            raise Refused("the process that guards the command was killed", "see the kernel's log there") from None

    def _forward_output(self, handle: int) -> None:
        data = os.read(handle, PIECE)
        if data:
            self.request.send(data, **self.outputs[handle])
            self.after_end += len(data) if self.ended else 0
            return
        self._unwatch(handle)
        os.close(handle)
        del self.outputs[handle]

    def _take_frames(self, _handle: int) -> None:
        """Handle the operator's frames: queue input for the command, or order its end."""
        frames, self.input_ended = self.request.take()
        for frame in frames:
            if read_record(ExecInput, frame.header, "input").stop:
                self._order(STOP)
            elif self.stdin is None:
                self.request.grant(len(frame.body))
            else:
                self.input.append(frame.body)

    def _order(self, order: bytes) -> None:
        try:
            os.write(self.orders, order)
        except OSError:  # the command has ended already
            pass

    def _watch_stdin(self) -> None:
        """Watch the command's stdin while there is input for it; close it after the last input."""
        if self.stdin is None:
            return
        is_watched = self.stdin in self.watched
        if self.input and not is_watched:
            self._watch(self.stdin, self._forward_input, select.POLLOUT)
        elif is_watched and not self.input:
            self._unwatch(self.stdin)
        if self.input_ended and not self.input:
            self._close_input()

    def _forward_input(self, handle: int) -> None:
        try:
            sent = os.write(handle, self.input[0])
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            waiting: List[bytes] = list(self.input)
            self.input.clear()
            self._close_input()
            self.request.grant(sum(map(len, waiting)))
            return
        self.request.grant(sent)
        rest = self.input.popleft()[sent:]
        if rest:
            self.input.appendleft(rest)

    def _close_input(self) -> None:
        if self.stdin is not None:
            if self.stdin in self.watched:
                self._unwatch(self.stdin)
            os.close(self.stdin)
            self.stdin = None
            self._order(INPUT_ENDED)
