"""Run a short-lived child process with a timeout and collect its answer.

A child's other output is kept separate from its answer, so that a noisy profile or ``sitecustomize`` cannot spoil it.
Both go through anonymous memory files, not pipes: a daemon that the child leaves behind (an ``ssh-agent``) then holds
nothing open that we wait for.
"""

import os
import select
import signal
import subprocess
import time
from typing import Dict, List, NamedTuple, Optional

from .prctl import set_pdeathsig

ANSWER_LIMIT = 1 << 24  # bytes
OUTPUT_TAIL = 4096  # bytes of a child's output worth keeping for a message
KILL_TIMEOUT = 2.0  # seconds that a killed child has to end; one stuck in the kernel (a lost GPU) never does


class ChildResult(NamedTuple):
    """What a child process wrote, and how it ended."""

    status: Optional[int]  # exit status, negative for a signal, None where the time ran out
    payload: bytes  # its answer
    output: str  # the end of what else it printed

    @property
    def text(self) -> str:
        """Its answer as text."""
        return self.payload.decode("utf-8", "replace")

    def last_line(self) -> str:
        """The child's last line of output that is not blank, else an empty string."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


class Child:
    """A started child process; several may run at once.

    ``env`` is its whole environment. Its process group is killed ``timeout`` seconds from now. With ``input_data``, the
    child's argv gets two more arguments: the numbers of a descriptor to read those bytes from and of one to write the
    answer to. Without, the answer is the child's stdout. Raises OSError where the program cannot be started.
    """

    def __init__(
        self,
        argv: List[str],
        *,
        env: Dict[str, str],
        timeout: float,
        cwd: Optional[str] = None,
        input_data: Optional[bytes] = None,
    ) -> None:
        self._deadline = time.monotonic() + timeout
        self._input = os.memfd_create("clusterddp-input")
        self._answer = os.memfd_create("clusterddp-answer")
        self._output = os.memfd_create("clusterddp-output")
        has_input = input_data is not None
        try:
            _write_from_start(self._input, input_data or b"")
            self._process = subprocess.Popen(
                [*argv, str(self._input), str(self._answer)] if has_input else argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=self._output if has_input else self._answer,
                stderr=self._output,
                pass_fds=(self._input, self._answer) if has_input else (),
                start_new_session=True,  # whatever it starts is killed with it when the time runs out
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - an operation's process has one thread
            )
        except BaseException:
            self._close()
            raise

    def answer(self) -> ChildResult:
        """Wait for the child's end, or kill it when its time is over, and collect what it wrote; call it once."""
        try:
            status = self._wait()
            return ChildResult(
                status, _tail(self._answer, ANSWER_LIMIT), _tail(self._output, OUTPUT_TAIL).decode("utf-8", "replace")
            )
        finally:
            self._close()

    def _wait(self) -> Optional[int]:
        try:
            _sleep_until_end(self._process.pid, max(0.0, self._deadline - time.monotonic()))
            return self._process.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        finally:
            if self._process.returncode is None:
                self._kill()

    def _kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(KILL_TIMEOUT)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass  # it ended between the check and the kill, or the kernel holds it: our process ends soon anyway

    def _close(self) -> None:
        for fd in (self._input, self._answer, self._output):
            os.close(fd)


def _sleep_until_end(pid: int, seconds: float) -> None:
    """Sleep until a child has ended. Popen's own wait with a timeout checks every 50 ms, and the child may take 20."""
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):  # Python 3.8, an older kernel
        return
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(seconds * 1000)
    finally:
        os.close(handle)


def _die_with_parent() -> None:
    set_pdeathsig(signal.SIGKILL)


def _write_from_start(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)


def _tail(fd: int, size: int) -> bytes:
    return os.pread(fd, size, max(0, os.fstat(fd).st_size - size))
