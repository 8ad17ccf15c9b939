"""The interface of a running operation: its arguments, the operator's data, and its answer.

It reads and writes whole frames on two pipes to the helper, which forwards them. Sending waits for credit, so a slow
reader blocks this operation and nothing else.
"""

import errno
import os
import select
from typing import Any, Callable, Dict, Optional, Type, TypeVar

from ..shared.schema.json_text import to_json
from ..shared.schema.record import read_record
from ..shared.wire.frames import CREDIT, MAX_BODY, PER_FRAME, Decoder, Frame, encode, parse_json
from ..system.bootstrap import cannot_write

UNWRITABLE_ERRNOS = (errno.EROFS, errno.ENOSPC, errno.EDQUOT)  # a file system that cannot be written
T = TypeVar("T")

WAIT_INTERVAL = 500  # milliseconds between two calls of ``while_waiting``
MAX_TRACE = 4000  # characters of a traceback, from its end


def error_header(error: BaseException) -> Dict[str, Any]:
    """Make an error frame's header for an exception; ``bug`` is true unless it is an OSError, such as a full disk."""
    import traceback

    # JSON may write a character in twelve bytes; all must fit a frame.
    trace = [part[:400].rstrip("\n") for part in traceback.format_exception(type(error), error, error.__traceback__)]
    return {
        "kind": "error",
        "message": ("%s: %s" % (type(error).__name__, error))[:500],
        "trace": "\n".join(trace)[-MAX_TRACE:],
        "bug": not isinstance(error, OSError),
    }


class Request:
    """The argument of every operation function."""

    def __init__(self, ident: int, args: Dict[str, Any], source: int, sink: int, args_frames: int = 0) -> None:
        self.args = args
        # called before each wait for data, and during it; raises to abort
        self.while_waiting: Optional[Callable[[], None]] = None
        self._args_frames_left = args_frames  # those still to come
        self._args_text = b""  # of those that have come
        self._ident = ident
        self._source = source
        self._sink = sink
        self._credit = CREDIT
        self._decoder = Decoder()
        self._received: "list[Frame]" = []
        self._ended = False

    def receive_args(self) -> None:
        """Receive the arguments that did not fit into the request's own frame; raises ValueError."""
        if not self._args_frames_left:
            return
        while self._args_frames_left:
            self._receive()
        self.args = dict(parse_json(self._args_text))

    @property
    def state(self) -> str:
        """The state folder that the operation works in."""
        return str(self.args["state"])

    def read_args(self, kind: Type[T]) -> T:
        """Return the arguments as a record of class ``kind``; raises DamagedError if they are no such record."""
        return read_record(kind, self.args, "arguments")

    @property
    def handle(self) -> int:
        """The descriptor to select on: when it is readable, call ``take``."""
        return self._source

    def take(self) -> "tuple[list[Frame], bool]":
        """Return the data frames received, and whether the data is complete; the caller must ``grant`` what it used.

        Waits until there is something to read.
        """
        self._receive()
        frames, self._received = self._received, []
        return frames, self._ended

    def grant(self, size: int) -> None:
        """Let the operator send ``size`` more bytes."""
        if size:
            self._write({"kind": "credit", "n": size})

    def read(self) -> bytes:
        """Read the next piece of the operator's data, and grant as much again; empty when it is complete."""
        while not self._received and not self._ended:
            self._receive()
        if not self._received:
            return b""
        body = self._received.pop(0).body
        self.grant(len(body))
        return body

    def read_all(self) -> bytes:
        """Read all of the operator's data; for values that may not fit into a frame."""
        return b"".join(iter(self.read, b""))

    def send(self, body: bytes, **header: Any) -> None:
        """Send a data frame of at most MAX_BODY bytes; wait while there is no credit."""
        while self._credit <= 0:
            self._receive()
        self._credit -= len(body) + PER_FRAME
        header["kind"] = "data"
        self._write(header, body)

    def finish(self, result: Any) -> None:
        """Send the result, in as many frames as it needs, and the end."""
        text = to_json(result).encode()
        last = (len(text) - 1) // MAX_BODY * MAX_BODY
        for start in range(0, last, MAX_BODY):
            self.send(text[start : start + MAX_BODY], result=True)
        self._write({"kind": "end"}, text[last:])

    def fail(self, message: str, remedy: str = "") -> None:
        """Send an expected error with the operation's own message."""
        self._write({"kind": "error", "message": message[:2000], "remedy": remedy[:500]})

    def fail_unforeseen(self, error: BaseException) -> None:
        """Send an unexpected error: with a plain message if a file cannot be written, else with a traceback."""
        if isinstance(error, OSError) and error.errno in UNWRITABLE_ERRNOS:
            state = str(self.args.get("state") or "")
            named = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else state
            refusal = cannot_write(error, state, "clusterddp_state" if named.startswith(state) else "")
            self.fail(refusal.message, refusal.remedy)
        else:
            self._write(error_header(error))

    def _receive(self) -> None:
        """Wait for the next bytes from the helper, and sort the frames in them; raises EOFError."""
        if self.while_waiting:
            poll = select.poll()
            poll.register(self._source, select.POLLIN)
            self.while_waiting()  # also where bytes arrive steadily, but slowly
            while not poll.poll(WAIT_INTERVAL):
                self.while_waiting()
        data = os.read(self._source, 1 << 16)
        if not data:
            raise EOFError("the operator ended the operation")
        for frame in self._decoder.feed(data):
            kind = frame.kind
            if kind == "credit":
                self._credit += int(frame.header["n"])
            elif kind == "args":
                self._args_text += frame.body
                self._args_frames_left -= 1
            elif kind == "data":
                self._received.append(frame)
            elif kind == "end":
                self._ended = True

    def _write(self, header: Dict[str, Any], body: bytes = b"") -> None:
        header["id"] = self._ident
        data = memoryview(encode(header, body))
        while data:
            data = data[os.write(self._sink, data) :]
