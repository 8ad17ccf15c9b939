"""The helper process: one poll loop on a host that serves one connection from the operator.

It answers pings itself and forks a child for every other operation, so nothing slow or hung on the host
(a dead file server, a large file to hash) ever stops the loop. Frames of children are forwarded whole; control frames
overtake them. When the connection ends, the helper and its children end too.

Every command starts a helper on every host, so its imports determine how long the shortest command takes.
"""

import fcntl
import gc
import os
import select
import sys
import time
from typing import Any, Callable, Deque, Dict, List

from ..shared.wire.frames import PROTOCOL, Decoder, Frame, Header, ProtocolError, encode
from ..system import procfs
from ..system.bootstrap import Refused, cannot_write, home_folder, state_folder, why_unwritable
from ..system.descriptors import close_all_but
from ..system.queues import deque
from ..system.wait_status import exit_code
from . import operations
from .request import Request, error_header

READ_SIZE = 1 << 16
QUEUE_LIMIT = 4 << 20  # bytes waiting for the connection before children are no longer read
EXIT_CHECK_INTERVAL = 20  # milliseconds between checks whether a child has exited
GC_THRESHOLD = 50_000  # objects between two garbage collections: a list of files has many objects and no cycles
SIGKILL = 9  # importing the module signal would cost time for its enums


class HelperCall:
    """One running operation: its child process and the pipes to and from it."""

    def __init__(self, ident: int, pid: int, source: int, sink: int) -> None:
        self.ident = ident
        self.pid = pid
        self.source = source  # the child's frames
        self.sink = sink  # frames for the child
        self.to_child: Deque[bytes] = deque()
        self.partial = bytearray()  # of a frame that the child has begun to send
        self.closed = False  # its pipes are closed; an event polled just before must not use them
        self.cancelled = False


class Helper:
    """The helper's poll loop: the connection, the running operations, and the frames waiting to be sent."""

    def __init__(self, source: int, sink: int, state: str) -> None:
        self.source, self.sink, self.state = source, sink, state
        self.decoder = Decoder()
        self.calls: Dict[int, HelperCall] = {}
        self.ending: List[HelperCall] = []  # their pipes are closed, but they have not been reaped yet
        self.control: Deque[bytes] = deque()
        self.data: Deque[bytes] = deque()
        self.waiting = 0  # bytes in self.data
        self.poll = select.poll()
        self.watched: Dict[int, Callable[[], None]] = {}  # descriptor → what to call when it is ready
        self.open = True
        self.unsent = memoryview(b"")
        self.lifeline, self._until_death = os.pipe()  # the second end is open for as long as this process lives

    def run(self) -> None:
        """Serve until the connection ends."""
        os.set_blocking(self.source, False)
        os.set_blocking(self.sink, False)
        self._watch(self.source, select.POLLIN, self._read_operator)
        self._reply(hello(self.state))
        while self.open:
            self._reap()
            self._update_watches()
            timeout = EXIT_CHECK_INTERVAL if self.ending else None
            for act in [self.watched[handle] for handle, _ in self.poll.poll(timeout)]:
                act()

    def send_last_error(self, error: Exception) -> None:
        """Send a last frame that reports why the helper ends although the connection is up."""
        os.set_blocking(self.sink, True)
        try:
            with os.fdopen(self.sink, "wb", closefd=False) as out:
                out.write(bytes(self.unsent) + encode(dict(error_header(error), id=0)))
        except OSError:  # the connection has ended as well
            pass

    def _reply(self, header: Dict[str, Any]) -> None:
        self.control.append(encode(header))

    def _update_watches(self) -> None:
        """Poll for writing where something waits to be sent, and read from children unless too much is queued."""
        pending = bool(self.unsent or self.control or self.data)
        self._watch(self.sink, select.POLLOUT if pending else 0, self._write_operator)
        for call in self.calls.values():
            self._watch(call.sink, select.POLLOUT if call.to_child else 0, lambda call=call: self._write_child(call))
            reading = select.POLLIN if self.waiting < QUEUE_LIMIT else 0
            self._watch(call.source, reading, lambda call=call: self._read_child(call))

    def _watch(self, handle: int, events: int, act: Any) -> None:
        """Call ``act`` when a descriptor has one of ``events``; stop watching it if there are none."""
        is_watched = handle in self.watched
        if events and not is_watched:
            self.poll.register(handle, events)
            self.watched[handle] = act
        elif is_watched and not events:
            self.poll.unregister(handle)
            del self.watched[handle]

    def _read_operator(self) -> None:
        try:
            data = os.read(self.source, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.open = False
            return
        try:
            for frame in self.decoder.feed(data):
                self._handle(frame)
        except (ProtocolError, KeyError, TypeError, ValueError) as error:  # no operator of ours
            sys.stderr.write("clusterddp: the helper ends: %r\n" % error)
            self.open = False

    def _handle(self, frame: Frame) -> None:
        kind, ident = frame.header.get("kind"), int(frame.header.get("id", 0))
        call = self.calls.get(ident)
        if kind == "req" and frame.header["op"] == "ping":
            self._reply({"id": ident, "kind": "end", "time_ns": time.time_ns()})
        elif kind == "req":
            self._start(ident, frame)
        elif call and kind == "cancel":
            self._cancel(call)
        elif call:
            call.to_child.append(encode(frame.header, frame.body))

    def _start(self, ident: int, frame: Frame) -> None:
        name = str(frame.header["op"])
        if name not in operations.TABLE:
            self._reply({"id": ident, "kind": "error", "message": "no such operation: %s" % name[:80]})
            return
        try:
            self.calls[ident] = self._fork(ident, operations.find(name), frame.header)
        except OSError as error:  # no process or descriptor left, not even one to import what tells more
            message = "cannot start %s: %s" % (name, error)
            self._reply({"id": ident, "kind": "error", "message": message, "repeatable": True})
        except Exception as error:  # noqa: BLE001 - the other operations go on
            self._reply(dict(error_header(error), id=ident, message="cannot start %s: %s" % (name, error)))

    def _fork(self, ident: int, operation: Any, header: Header) -> HelperCall:
        """Fork a child that runs ``operation``, connected with this process by two pipes; OSError if it cannot."""
        args_frames = int(header.get("parts", 0))  # frames with the arguments, where the request cannot hold them
        args = header.get("args") or {}
        pipes: List[int] = []
        try:
            pipes += os.pipe()
            pipes += os.pipe()
            pid = os.fork()
        except OSError:
            for handle in pipes:
                os.close(handle)
            raise
        child_in, sink, source, child_out = pipes
        if not pid:
            run_child(operation, Request(ident, args, child_in, child_out, args_frames), self.state, self.lifeline)
        os.close(child_in)
        os.close(child_out)
        os.set_blocking(sink, False)
        return HelperCall(ident, pid, source, sink)

    def _write_child(self, call: HelperCall) -> None:
        if call.closed:
            return
        data = call.to_child[0]
        try:
            sent = os.write(call.sink, data)
        except BlockingIOError:
            return
        except OSError:  # the child is gone; its end is read from its other pipe
            call.to_child.clear()
            return
        if sent == len(data):
            call.to_child.popleft()
        else:
            call.to_child[0] = data[sent:]

    def _read_child(self, call: HelperCall) -> None:
        if call.closed:
            return
        data = os.read(call.source, READ_SIZE)
        if not data:
            self._close_pipes_and_reap(call)
            return
        call.partial += data
        start = 0
        while len(call.partial) - start >= 4:
            size = 4 + int.from_bytes(call.partial[start : start + 4], "big")
            if len(call.partial) - start < size:
                break
            start += size
        if start:
            self.data.append(bytes(call.partial[:start]))
            self.waiting += start
            del call.partial[:start]

    def _close_pipes_and_reap(self, call: HelperCall) -> None:
        """Close the pipes of a child that has closed its own or was killed, and have it reaped."""
        for handle in (call.source, call.sink):
            self._watch(handle, 0, None)
            os.close(handle)
        call.closed = True
        del self.calls[call.ident]
        self.ending.append(call)

    def _cancel(self, call: HelperCall) -> None:
        os.kill(call.pid, SIGKILL)
        call.cancelled = True
        self._close_pipes_and_reap(call)

    def _reap(self) -> None:
        """Reap children that have exited, without waiting: a hung file server may block one for hours.

        If one died without an answer, send an error after everything that it has sent.
        """
        for call in list(self.ending):
            pid, status = os.waitpid(call.pid, os.WNOHANG)
            if not pid:
                continue
            self.ending.remove(call)
            if status and not call.cancelled:
                code = exit_code(status)
                message = "the operation ended with status %d" % code
                answer = encode({"id": call.ident, "kind": "error", "message": message, "repeatable": code > 128})
                self.data.append(answer)
                self.waiting += len(answer)

    def _write_operator(self) -> None:
        """Write to the operator: first the rest of a started frame, then control frames, then data."""
        if not self.unsent:
            if self.control:
                self.unsent = memoryview(self.control.popleft())
            else:
                data = self.data.popleft()
                self.waiting -= len(data)
                self.unsent = memoryview(data)
        try:
            self.unsent = self.unsent[os.write(self.sink, self.unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self.open = False


def hello(state: str) -> Dict[str, Any]:
    """Make the first frame: facts about this process and host, and whether its state folder is writable."""
    error = why_unwritable(state)
    refusal = cannot_write(error, state) if error else Refused("")
    return {
        "id": 0,
        "kind": "hello",
        "protocol": PROTOCOL,
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "state": state,
        "unwritable": refusal.message,
        "remedy": refusal.remedy,
        "home": home_folder(),
        "uid": os.getuid(),
        "pid": os.getpid(),
        "boot": procfs.boot_identity(),
        "time_ns": time.time_ns(),
    }


def run_child(operation: Any, request: Request, state: str, lifeline: int) -> None:
    """Run an operation in the forked child: detach from the connection, run it, answer, exit."""
    status = 1
    try:
        lifeline = end_with(lifeline)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)  # a stray print must not become a frame
        gc.set_threshold(GC_THRESHOLD)
        close_all_but({0, 1, 2, request._source, request._sink, lifeline})  # noqa: SLF001 - the same package, in two files
        request.receive_args()
        request.args.setdefault("state", state)
        request.finish(operation(request))
        status = 0
    except Refused as error:
        request.fail(error.message, error.remedy)
        status = 0
    except KeyboardInterrupt:  # killed from outside: the helper answers
        status = 130
    except BaseException as error:  # noqa: BLE001 - the operator must hear of any failure
        request.fail_unforeseen(error)
        status = 0
    finally:
        os._exit(status)


def end_with(lifeline: int) -> int:
    """Ask the kernel for SIGKILL when the write end of the pipe ``lifeline`` closes; return the descriptor to keep.

    prctl's parent-death signal does the same, but needs ctypes: importing it takes as long as a short operation, and
    minimal Pythons lack it.
    """
    # The kernel keeps the signal and its receiver with the open file description, which a fork shares: open a new one.
    own = os.open("/proc/self/fd/%d" % lifeline, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETSIG, SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    try:
        os.read(own, 1)
    except BlockingIOError:
        return own
    os._exit(1)  # the parent died before the setting took effect


def main(argv: List[str]) -> int:
    """Serve the connection on stdin and stdout.

    ``argv``: the configured state folder or an empty string; ``keep`` if byte code for this Python is to be stored.
    """
    state = state_folder(argv[0] or None)
    source, sink = os.dup(0), os.dup(1)
    helper = Helper(source, sink, state)
    try:
        helper.run()
    except Exception as error:  # noqa: BLE001 - the operator must hear of any failure
        helper.send_last_error(error)
        return 1
    if argv[1:]:
        from .own_code import compile_in_background

        compile_in_background(sys.argv[0])
    return 0
