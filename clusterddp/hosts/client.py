"""Host: the operator's end of the connection to one helper, over any byte pipe.

A silent host is pinged, and given up when it does not answer: TCP alone notices a dead peer much later.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from clusterddp.errors import ClusterddpError, HelperError, HostError, UnreachableError
from clusterddp.hosts import spans
from clusterddp.hosts.answers import DEFAULT_LIMIT, FRAME_COST, Limit, PiecedAnswer
from clusterddp.hosts.conversation import Exchange, LateFrames
from clusterddp.hosts.large_packets import timeout_error
from clusterddp.hosts.outgoing import pieces
from clusterddp.hosts.stalled import WRITE_WATCHDOG
from clusterddp.hosts.start_helper import handshake
from clusterddp.hosts.start_limit import StartLimit
from clusterddp.hosts.zipapp import COMMAND, Bundle, bundle
from clusterddp.project.crash import crash_of_host
from clusterddp.remote.shared.wire.frames import (
    CREDIT,
    PER_FRAME,
    Decoder,
    Frame,
    ProtocolError,
    encode,
    request_frames,
)
from clusterddp.text.clean import clean_text
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping

    from typing_extensions import Self

    from clusterddp.hosts.outgoing import Outgoing
    from clusterddp.hosts.ssh import BytePipe
    from clusterddp.hosts.start_helper import HelperHello
    from clusterddp.hosts.via_job_step import Opener
    from clusterddp.inventory import HostEntry

_log = logging.getLogger("clusterddp")
PING_AFTER = 10.0  # seconds of silence after which a host that we wait for is pinged
SILENCE_TIMEOUT = 30.0  # seconds of silence after which the connection is closed
HANDSHAKE_TIMEOUT = 30.0  # seconds from the open pipe, or the host's last answer, to the next, and the helper's hello
LAST_MESSAGE_TIMEOUT = 1.0  # seconds to read what the host still sent, once writing to it has failed
READER_END_TIMEOUT = 2.0  # seconds for the reading thread of a closed pipe to end
_ABANDONED = Frame({"kind": "left"}, b"")  # queued among an operation's frames: stop reading them


class Host:
    """The connection to one host's helper. Thread-safe; close it, or use it as a context manager."""

    def __init__(self, entry: HostEntry, pipe: BytePipe, hello: HelperHello, noise: str) -> None:
        self.entry = entry
        self.name = entry.name
        self.hello = hello
        self.noise = noise  # what the login shell printed before the helper spoke
        reason = hello.unwritable
        self.unwritable = HelperError(self.name, reason, remedy=hello.remedy) if reason else None
        self.memory: dict[Hashable, Any] = {}  # callers cache answers here while the connection lasts
        self._pipe = pipe
        self._lock = threading.Lock()
        self._exchanges: dict[int, Exchange] = {}
        self._ids = itertools.count(1)
        self._last_received = time.monotonic()
        self._sent = self._received = 0  # bytes
        self._late_frames = LateFrames()
        self._write_began: float | None = None  # when the current write began
        self._pinged_at = 0.0  # when the host was first pinged in its present silence
        self._lost: str | None = None
        self._reader_bug: Exception | None = None  # the unexpected error that ended the reading thread
        self._reader: threading.Thread | None = None

    @classmethod
    def open(cls, entry: HostEntry, connector: Opener, code: Bundle | None = None) -> Host:
        """Connect, start the helper (sent only if the host lacks it), wait for its hello; raises HostError."""
        code = code or bundle()  # takes seconds after an upgrade: before any connection is opened
        began = time.monotonic()
        pipe = connector.open(entry, COMMAND)
        login = time.monotonic() - began
        spans.log_span(entry.name, "connection", login)
        limit = StartLimit(pipe.close, HANDSHAKE_TIMEOUT, login)
        began = time.monotonic()
        try:
            with limit:
                noise, hello, decoder = handshake(entry, pipe, code, limit.renew)
        except BaseException as error:
            pipe.close()
            if limit.passed and isinstance(error, (ClusterddpError, OSError)):
                raise timeout_error(entry, connector, limit) from error
            raise
        spans.log_span(entry.name, "helper: start", time.monotonic() - began)
        host = cls(entry, pipe, hello, noise)
        host._reader = threading.Thread(target=host._read, args=(decoder,), name=f"read {entry.name}", daemon=True)
        host._reader.start()
        WRITE_WATCHDOG.add(host)
        return host

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def silence(self) -> float:
        """Seconds since the host last sent anything."""
        return time.monotonic() - self._last_received

    @property
    def lost(self) -> bool:
        """Whether the connection has ended."""
        return self._lost is not None

    def close(self, reason: str = "closed") -> None:
        """End the connection, and with it the helper; threads waiting for an answer get ``reason`` as their error."""
        WRITE_WATCHDOG.remove(self)
        self._mark_lost(reason)
        self._pipe.close()
        if self._reader:
            self._reader.join(READER_END_TIMEOUT)

    def ping(self, timeout: float = SILENCE_TIMEOUT) -> tuple[int, int, int]:
        """Read the clock of the helper's host: (sent, host's, received) in ns; our two by ``time.time_ns``."""
        sent = time.time_ns()
        with self._request("ping", {}) as exchange:
            clock = self._next_frame(exchange, time.monotonic() + timeout).header.get("time_ns")
            if type(clock) is not int:
                raise HelperError(self.name, f"its clock cannot be read: {str(clock)[:80]!r}")
            return sent, clock, time.time_ns()

    def call(
        self, op: str, args: Mapping[str, Any] | None = None, *, timeout: float = 120.0, limit: Limit = DEFAULT_LIMIT
    ) -> Any:
        """Run an operation and return its result, which may be as large as ``limit`` says.

        Raises HelperError if the operation failed, or took longer than ``timeout`` seconds; UnreachableError if the
        connection broke.
        """
        return self.upload(op, args, (), timeout=timeout, limit=limit)

    def upload(
        self,
        op: str,
        args: Mapping[str, Any] | None,
        chunks: Iterable[bytes],
        *,
        timeout: float | None = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> Any:
        """Do the same as ``call`` with a stream of data for the operation; send a frame once there is any credit."""
        deadline = None if timeout is None else time.monotonic() + timeout
        result = PiecedAnswer(self.name, limit)
        credit = CREDIT
        with self._request(op, args) as exchange:
            for piece in pieces(chunks):
                while credit <= 0 or not exchange.frames.empty():
                    frame = self._next_frame(exchange, deadline)
                    credit += frame.header["n"] if frame.kind == "credit" else 0
                    if self._add_to_result(exchange, frame, result):  # the host needs no more data: an early result
                        return result.value()
                exchange.offered += len(piece)
                exchange.sent += self._write({"id": exchange.ident, "kind": "data"}, piece)
                credit -= len(piece)
            self._write({"id": exchange.ident, "kind": "end"})
            while not self._add_to_result(exchange, self._next_frame(exchange, deadline), result):
                pass
            return result.value()

    def _add_to_result(self, exchange: Exchange, frame: Frame, result: PiecedAnswer) -> bool:
        """Add a frame's part of the result; return whether it was the last frame."""
        if frame.kind in ("data", "end"):
            result.add(frame.body)
            self._grant(exchange, frame)
        return bool(frame.kind == "end")

    def stream(
        self,
        op: str,
        args: Mapping[str, Any] | None = None,
        outgoing: Outgoing | None = None,
        *,
        patience: float | None = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> Generator[Frame]:
        """Run an operation and yield its data frames as they come; the last is its ``end``, with the whole result.

        Closing the iterator cancels the operation; ``outgoing`` sends data, too. Raises HelperError if the operation
        failed, or a frame took longer than ``patience`` seconds; UnreachableError if the connection broke.
        """
        result = PiecedAnswer(self.name, limit)
        with self._request(op, args) as exchange, self._sending(exchange, outgoing):
            deadline = None if patience is None else time.monotonic() + patience
            while True:
                frame = self._next_frame(exchange, deadline)
                if frame is _ABANDONED:
                    return
                self._grant(exchange, frame)
                if outgoing and frame.kind == "credit":
                    outgoing.grant(frame.header["n"])
                if frame.kind == "end":
                    result.add(frame.body)
                    yield Frame(frame.header, result.checked())
                    return
                if frame.header.get("result"):
                    result.add(frame.body)
                elif frame.kind == "data":
                    yield frame
                    deadline = None if patience is None else time.monotonic() + patience

    @contextlib.contextmanager
    def _sending(self, exchange: Exchange, outgoing: Outgoing | None) -> Iterator[None]:
        """Let ``outgoing`` send data while the block reads; without it, end the operation's input at once."""
        if outgoing is None:
            self._write({"id": exchange.ident, "kind": "end"})
            yield
            return

        def write(header: Mapping[str, Any], body: bytes) -> None:
            if body:  # only one thread sends data
                exchange.offered += len(body)
            self._write({"id": exchange.ident, **header}, body)

        outgoing.attach(write, lambda: exchange.frames.put(_ABANDONED))
        try:
            yield
        finally:
            outgoing.detach()

    @contextlib.contextmanager
    def _request(self, op: str, args: Mapping[str, Any] | None) -> Iterator[Exchange]:
        """Send a request; afterwards cancel the operation if it has not ended, and log how long it took."""
        exchange = Exchange(next(self._ids))
        self._exchanges[exchange.ident] = exchange
        began = time.monotonic()
        _log.debug("%s: %s begins", self.name, op)
        try:
            for frame in self._request_frames(exchange, op, args):
                exchange.sent += self._write(frame.header, frame.body)
            yield exchange
        finally:
            del self._exchanges[exchange.ident]
            self._late_frames.allow(exchange.max_late_bytes)
            if not exchange.ended and not self._lost:
                with contextlib.suppress(HostError):  # it is lost: nothing is left to cancel
                    self._write({"id": exchange.ident, "kind": "cancel"})
            how = "ended" if exchange.ended else "was left"
            took, sent, received = time.monotonic() - began, human_size(exchange.sent), human_size(exchange.received)
            spans.log_span(self.name, op, took, f"{op} {how}: {took * 1000:.0f} ms, {sent} sent, {received} received")

    def _request_frames(self, exchange: Exchange, op: str, args: Mapping[str, Any] | None) -> list[Frame]:
        try:
            return request_frames(exchange.ident, op, dict(args or {}))
        except ProtocolError as error:
            raise HelperError(self.name, f"the request is too large: {error}") from error

    def _grant(self, exchange: Exchange, frame: Frame) -> None:
        if frame.kind == "data" and not exchange.ended:
            size = len(frame.body) + PER_FRAME
            exchange.granted += size
            self._write({"id": exchange.ident, "kind": "credit", "n": size})

    def _write(self, header: dict[str, Any], body: bytes = b"") -> int:
        """Send a frame and return its length in bytes."""
        try:
            data = encode(header, body)
        except ProtocolError as error:
            raise HelperError(self.name, f"the request is too large: {error}") from error
        try:
            with self._lock:
                self._send(data)
                self._sent += len(data)
        except OSError as error:
            if self._reader:
                self._reader.join(LAST_MESSAGE_TIMEOUT)  # the helper's last message explains more
            self._mark_lost(str(error))
            raise self._lost_error() from error
        return len(data)

    def _send(self, data: bytes) -> None:
        self._write_began = time.monotonic()
        try:
            self._pipe.write(data)
        finally:
            self._write_began = None

    def close_if_stalled(self) -> None:
        """Close the connection if a write has been blocked for SILENCE_TIMEOUT seconds; called from another thread."""
        began = self._write_began
        if began is not None and time.monotonic() - began > SILENCE_TIMEOUT:
            self._mark_lost(f"it took nothing for {SILENCE_TIMEOUT:.0f} s")
            self._pipe.close()

    def _next_frame(self, exchange: Exchange, deadline: float | None) -> Frame:
        """Return the next frame of a request; ping a silent host, and close the connection if it stays silent."""
        while True:
            left = PING_AFTER if deadline is None else min(PING_AFTER, deadline - time.monotonic())
            if left <= 0:
                raise HelperError(self.name, "the operation took too long")
            try:
                frame = exchange.frames.get(timeout=left)
            except queue.Empty:
                self._check_silence()
                if self._lost is not None:  # lost before the reading thread knew of this request
                    raise self._lost_error() from None
                continue
            if frame is None:
                exchange.frames.put(None)
                raise self._lost_error()
            exchange.ended = frame.kind in ("end", "error")
            if frame.kind == "error":
                raise self._error_of_frame(frame.header)
            return frame

    def _error_of_frame(self, header: Mapping[str, Any]) -> HostError:
        """Build the error that an error frame reports; for a bug on the host, also write a crash file as its remedy."""
        message, remedy = (str(header.get(key) or "") for key in ("message", "remedy"))
        trace = clean_text(str(header.get("trace") or ""))  # it is written unchanged to a file
        kind = UnreachableError if header.get("repeatable") else HelperError
        error = kind(self.name, message, remedy=remedy, trace=trace if header.get("bug") else "")
        error.remedy = error.remedy or crash_of_host(error)
        _log.debug("%s\n%s", error, trace)
        return error

    def _check_silence(self) -> None:
        """If the host is silent, ping it, or close the connection when it has not answered in time."""
        now = time.monotonic()
        silence = now - self._last_received
        if self._lost is not None or silence <= PING_AFTER:
            return
        if self._pinged_at < self._last_received:  # not pinged in this silence yet: this process may have been paused
            self._pinged_at = now
        if now - self._pinged_at > SILENCE_TIMEOUT - PING_AFTER:
            self._mark_lost(f"no answer for {silence:.0f} s")
            self._pipe.close()
        else:
            self.send_ping()

    def send_ping(self) -> None:
        """Ping the host without waiting for the answer, which ends its silence."""
        if not self._lock.acquire(blocking=False):
            return  # another thread writes, and may be blocked: do not wait for it
        try:
            self._late_frames.allow(2 * FRAME_COST)  # its answer
            self._send(encode({"id": 0, "kind": "req", "op": "ping"}))
        except OSError as error:
            self._mark_lost(str(error))
        finally:
            self._lock.release()

    def _read(self, decoder: Decoder) -> None:
        """Read frames and queue each for its request, until the connection ends; runs in a thread."""
        try:
            while data := self._pipe.read(1 << 16):
                self._last_received = time.monotonic()
                self._received += len(data)
                for frame in decoder.feed(data):
                    ident = frame.header.get("id", 0)
                    exchange = self._exchanges.get(ident)
                    if exchange is not None:
                        exchange.take(frame, decoder.size)
                        continue
                    self._late_frames.take(decoder.size)
                    if not ident and frame.kind == "error":
                        error = self._error_of_frame(frame.header)
                        self._mark_lost(f"the helper ended: {str(error).removeprefix(f'{self.name}: ')}")
            self._mark_lost("the connection ended")
        except (OSError, EOFError) as error:
            self._mark_lost(str(error) or type(error).__name__)
        except ProtocolError as error:
            self._reader_bug = HelperError(self.name, f"its helper sends nonsense: {error}")
            self._mark_lost(str(error))
            self._pipe.close()  # stop reading from it
        except Exception as error:  # noqa: BLE001 - raised again in the threads that wait for this host
            self._reader_bug = error
            self._mark_lost("a bug of ours")

    def _mark_lost(self, reason: str) -> None:
        """Record why the connection ended, and wake all threads that wait for frames."""
        if self._lost is None:
            self._lost = reason
            sent, received = human_size(self._sent), human_size(self._received)
            _log.debug("%s: %s; %s sent, %s received since the hello", self.name, reason, sent, received)
        for exchange in list(self._exchanges.values()):
            exchange.frames.put(None)

    def _lost_error(self) -> Exception:
        return self._reader_bug or UnreachableError(self.name, f"the connection was lost ({self._lost})")
