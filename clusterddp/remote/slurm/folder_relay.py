"""Replicate a run's folder between nodes that share none, through the stdin and stdout of the step's srun.

Slurm connects srun, on the job's first node, with a task on every node: srun's input goes to all tasks, and a task's
output comes to srun. Each side stores the files it receives and sends the ones that are new in its own folder; srun's
side forwards them. Only small files, replaced as a whole (``write_private``), are sent; removals are not replicated.
"""

import base64
import os
import re
import selectors
import shutil
import subprocess
import sys
import time
from typing import IO, Any, Callable, Dict, Iterator, List, Optional

from ..shared.processes.exit_codes import shell_code
from ..system.bootstrap import Refused, private_folder, write_private
from .job_folder import JobFolder

HUB = "hub"  # a file in a start's folder that marks it as the folder of srun's side
_RUN_FILE = re.compile(r"(?:job|stop|secrets)\.json")
_START_FILE = re.compile(r"(?!here)[a-z]+(?:\.[0-9]{1,6})?\.json")
_LINE = re.compile(rb"clusterddp-file ([0-9]{1,4}) ([0-9]{1,4}) (\S{1,200}) ([A-Za-z0-9+/=]*)\n")
_PIECE = 540  # bytes of a file per line: Slurm keeps lines of up to 1024 characters whole
_MAX_LINES = 9999  # lines per file
_BUSY_INTERVAL, _IDLE_INTERVAL = 0.05, 0.5  # seconds between two scans of the folder: when busy, and when idle
_START_TIMEOUT = 60.0  # seconds for the job's description


class Relay:
    """One side of the replication of a run's folder, with the files of ``start``, the name of one start's folder."""

    def __init__(self, folder: JobFolder, start: str) -> None:
        self._folder, self._start = folder, start
        self._contents: Dict[str, bytes] = {}  # as last received or sent
        self._parts: Dict[str, List[bytes]] = {}

    def new_lines(self) -> Iterator[bytes]:
        """Yield the lines to send for every file that is new or changed here."""
        for name in sorted(self._names()):
            try:
                with open(self._folder.file(name), "rb") as stream:
                    data = stream.read(_MAX_LINES * _PIECE)
            except OSError:  # removed meanwhile
                continue
            if self._contents.get(name) != data:
                self._contents[name] = data
                yield encode_file(name, data)

    def _names(self) -> Iterator[str]:
        """The names of the files to replicate, relative to the run's folder."""
        for name in os.listdir(self._folder.path):
            if _RUN_FILE.fullmatch(name):
                yield name
        for name in os.listdir(self._folder.file(self._start)):
            if _START_FILE.fullmatch(name):
                yield "%s/%s" % (self._start, name)

    def take(self, line: bytes) -> bool:
        """Process a line from the other side, and store its file once complete; False if it is other output."""
        match = _LINE.fullmatch(line)
        if not match:
            return False
        number, count, name = int(match[1]), int(match[2]), match[3].decode(errors="replace")
        folder, _, inside = name.rpartition("/")
        if not (_START_FILE.fullmatch(inside) if folder == self._start else _RUN_FILE.fullmatch(name)):
            return True
        if not number:
            self._parts[name] = []
        parts = self._parts.get(name, [])
        if len(parts) == number:
            parts.append(match[4])
        if parts and len(parts) == count:
            try:
                self._write(name, base64.b64decode(b"".join(self._parts.pop(name))))
            except ValueError:
                pass  # no base64: the other side did not write it
        return True

    def _write(self, name: str, data: bytes) -> None:
        if self._contents.get(name) != data:
            self._contents[name] = data
            write_private(self._folder.file(name), data, durable=False)


def encode_file(name: str, data: bytes) -> bytes:
    """Encode a file's name and content as lines for the other side."""
    text = base64.b64encode(data)
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)] or [b""]
    head = b"clusterddp-file %d %d %s %s\n"
    return b"".join(head % (number, len(pieces), name.encode(), piece) for number, piece in enumerate(pieces))


def relay_step(folder: JobFolder, start: str, argv: List[str]) -> int:
    """Run ``argv``, which is srun with one task per node, and replicate with its tasks; return its exit status."""
    relay = Relay(folder, start)
    write_private(folder.file(start, HUB), b"", durable=False)
    step = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    to_tasks: Any = step.stdin
    from_tasks: Any = step.stdout

    def send(data: bytes) -> None:
        try:
            to_tasks.write(data)
            to_tasks.flush()
        except BrokenPipeError:
            pass  # srun has ended: its output ends too

    def receive(line: bytes) -> None:
        if relay.take(line):
            send(line)
        else:
            os.write(1, line)

    _replicate(relay, from_tasks, send, receive, lambda: False)
    try:
        to_tasks.close()
    except BrokenPipeError:
        pass  # the same
    from_tasks.close()
    return shell_code(step.wait())


def relay_task(folder: JobFolder, start: str, argv: List[str]) -> int:
    """Run ``argv``, a node's task, while replicating the folder with srun's side; return its exit status.

    The task starts once the job's description has arrived.
    """
    # This node has srun's own folder: nothing is to be replicated.
    if os.path.exists(folder.file(start, HUB)):
        return shell_code(subprocess.call(argv, stdin=subprocess.DEVNULL))
    private_folder(folder.file(start))
    relay = Relay(folder, start)
    task: List[subprocess.Popen] = []  # type: ignore[type-arg]
    deadline = time.monotonic() + _START_TIMEOUT

    def has_ended() -> bool:
        if not task and os.path.exists(folder.file("job.json")):
            task.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL))
        if not task and time.monotonic() > deadline:
            raise Refused("nothing is heard of the job")
        return bool(task) and task[0].poll() is not None

    def send(data: bytes) -> None:
        try:
            while data:
                data = data[os.write(1, data) :]
        except BrokenPipeError:
            pass  # srun has ended, and the step ends with it

    _replicate(relay, sys.stdin.buffer, send, relay.take, has_ended)
    shutil.rmtree(folder.path, ignore_errors=True)  # srun's side has the files, and the next start sends what it needs
    return shell_code(task[0].wait()) if task else 1


def _replicate(
    relay: Relay,
    source: IO[bytes],
    send: Callable[[bytes], None],
    receive: Callable[[bytes], object],
    has_ended: Callable[[], bool],
) -> None:
    """Send new files and process input until ``source`` ends or ``has_ended()`` is true; then send the last ones."""
    buffer, pause, handle = b"", _BUSY_INTERVAL, source.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_READ)
        while True:
            is_over, busy = has_ended(), False
            for line in relay.new_lines():
                send(line)
                busy = True
            if is_over:
                return
            if selector.select(pause):
                data: Optional[bytes] = os.read(handle, 1 << 16)
                *lines, buffer = (buffer + (data or b"")).split(b"\n")
                for line in lines:
                    receive(line + b"\n")
                busy = True
                if not data:
                    return
            pause = _BUSY_INTERVAL if busy else min(_IDLE_INTERVAL, pause * 1.05)
