"""Whether hosts reach each other by TCP: ``listen`` on one, ``dial`` from the others; a nonce proves who answered.

Each host listens on a port of the configured range (rendezvous, MASTER_PORT, run control) and on one that the kernel
chose (gloo and NCCL use such ports between the workers): a firewall often allows only one kind. All dials of a host run
side by side, so any number of them takes about one timeout, or two where all of them connect and then stall. A dial
that is not answered is repeated on further connections within the same timeout: TCP repeats a lost packet of the
handshake after 1 s, 2 s, 4 s, so after two lost packets one connection may not recover in time.
"""

import contextlib
import errno
import selectors
import socket
import time
from typing import Any, Dict, Iterator, List, Set

from ..helper.request import Request
from ..shared.probes.network_records import (
    DIAL_EXTENSIONS,
    DIALS_AT_ONCE,
    NO_DATA,
    DialRequest,
    DialResult,
    DialTarget,
    Heard,
    Listening,
    ListenRequest,
)
from ..shared.schema.record import to_fields
from ..system.bootstrap import Refused
from .dial import LENGTH, MAX_ECHOES, MAX_MESSAGE, NONCE_LIMIT, Dial
from .kernel_counters import kernel_counters

BACKLOG = 1024
MAX_ATTEMPTS = 3  # connections for one dial, each begun while no earlier one is answered
CHECK_INTERVAL = 0.1  # seconds between two checks for connections that have timed out
_MAPPED = "::ffff:"  # how a socket of both families writes an IPv4 address


def listen(request: Request) -> Dict[str, Any]:
    """Operation: send every caller the nonce and answer its messages, until cancelled or for ``seconds``.

    Takes a ``ListenRequest`` (shared/probes/network_records.py). It sends one data frame, with the header of
    ``Listening``, as soon as it listens on both ports: one of the range, and one that the kernel chose. When the
    operator's data ends, it returns what it ``Heard``. Raises Refused if every port of the range is taken.
    """
    asked = request.read_args(ListenRequest)
    before = kernel_counters()
    with bind_range(*asked.ports) as ranged, _listen_on(0) as chosen:
        request.send(b"", **to_fields(Listening((ranged.getsockname()[1], chosen.getsockname()[1]))))
        service = _Service([ranged, chosen], asked.nonce.encode()[:NONCE_LIMIT])
        service.run(request, asked.seconds)
    callers = {str(port): tuple(sorted(own)) for port, own in service.callers.items()}
    return to_fields(Heard(callers, int(1000 * service.lateness.longest), before, kernel_counters()))


def dial(request: Request) -> List[Dict[str, Any]]:
    """Operation: dial every target at once; the results in order.

    Takes a ``DialRequest``, returns a list of ``DialResult`` (shared/probes/network_records.py).
    """
    asked = request.read_args(DialRequest)
    targets = [
        target._replace(echoes=min(target.echoes, MAX_ECHOES), bulk=min(target.bulk, MAX_MESSAGE))
        for target in asked.targets
    ]
    answers: List[DialResult] = []
    for start in range(0, len(targets), DIALS_AT_ONCE):
        answers += dial_all(targets[start : start + DIALS_AT_ONCE], asked.timeout)
    return [to_fields(one) for one in answers]


def bind_range(first: int, last: int) -> socket.socket:
    """A socket that listens on the first free port of a range, on all addresses of both families; raises Refused."""
    for port in range(first, last + 1):
        try:
            return _listen_on(port)
        except OSError:
            continue
    raise Refused("no free port in %d-%d" % (first, last), "free one, or set clusterddp_ports to another range")


def dial_all(targets: List[DialTarget], timeout: float) -> List[DialResult]:
    """Dial every target; the results in order. Each has ``timeout`` seconds to connect and as many to measure."""
    with selectors.DefaultSelector() as selector:
        calls = [_Call(index, target, timeout, selector) for index, target in enumerate(targets)]
        lateness = OwnLateness()
        while selector.get_map():
            for key, _ in selector.select(CHECK_INTERVAL):
                calls[key.data.index].step(key.data)
            if lateness.is_due():
                late = min(lateness.last, DIAL_EXTENSIONS * timeout - lateness.total)
                lateness.total += max(0.0, late)
                for call in calls:
                    call.check_timeouts(time.monotonic(), max(0.0, late))
    return [call.answer for call in calls]


class OwnLateness:
    """Measures how long this process is kept from running: it wants to run once in CHECK_INTERVAL."""

    def __init__(self) -> None:
        self.longest = 0.0  # seconds
        self.last = 0.0
        self.total = 0.0  # as the caller adds it up
        self._next = time.monotonic() + CHECK_INTERVAL

    def is_due(self) -> bool:
        """Whether the interval is over; then the next one begins, and ``last`` says how late this is."""
        late = time.monotonic() - self._next
        if late < 0:
            return False
        self.last = late if late > CHECK_INTERVAL else 0.0  # an interval more is no delay, but work
        self.longest = max(self.longest, self.last)
        self._next = time.monotonic() + CHECK_INTERVAL
        return True


class _Call:
    """All connections for one target; the first of them that has a result gives the answer."""

    def __init__(self, index: int, target: DialTarget, timeout: float, selector: selectors.BaseSelector) -> None:
        self._index, self._target, self._timeout = index, target, timeout
        self._selector = selector
        self._began = time.monotonic()
        self._attempts = 0
        self._dials: List[Dial] = []  # those that may still come to a result
        self.answer = DialResult("")  # until there is a result
        self._dial()

    def step(self, dial: Dial) -> None:
        """Handle what the socket of one connection is ready for."""
        if dial not in self._dials:
            return  # another connection has won in the same round
        result = dial.step(self._selector)
        if result is not None:
            self._finish(dial, result)
        elif dial.proven and len(self._dials) > 1:
            self._close([one for one in self._dials if one is not dial])

    def check_timeouts(self, now: float, late: float = 0.0) -> None:
        """Give up connections that have timed out; begin a further one while the listener has answered on none.

        The time for which this process was ``late`` does not count: what came meanwhile is still to be read.
        """
        if not self._dials:
            return
        for dial in self._dials:
            dial.until += late
        first = self._dials[0]
        if now >= first.until:
            results = [one.give_up() for one in self._dials]
            best = results.index(NO_DATA) if NO_DATA in results else 0
            self._finish(self._dials[best], results[best])
        elif not first.proven and self._attempts < MAX_ATTEMPTS and now >= self._next_due():
            self._dial()

    def _next_due(self) -> float:
        """When the next connection is due."""
        return self._began + self._attempts * self._timeout / MAX_ATTEMPTS

    def _dial(self) -> None:
        self._attempts += 1
        try:
            dial = Dial(self._index, self._target, self._timeout, self._began + self._timeout)
        except OSError:  # no descriptor is left
            if self._attempts == 1:
                raise
            return
        self._dials.append(dial)
        result = dial.start()
        if result is None:
            self._selector.register(dial.socket, selectors.EVENT_WRITE, dial)
        elif self._attempts == 1:
            self._finish(dial, result)
        else:
            self._close([dial])  # the earlier connections decide

    def _finish(self, dial: Dial, result: str) -> None:
        """Take the result of one connection as the answer, and close them all."""
        self.answer = dial.answer(result)
        self._close(list(self._dials))

    def _close(self, dials: List[Dial]) -> None:
        for dial in dials:
            self._dials.remove(dial)
            if dial.socket in self._selector.get_map():
                self._selector.unregister(dial.socket)
            dial.socket.close()


def _listen_on(port: int) -> socket.socket:
    """Listen on a port by IPv6 and IPv4, or by IPv4 alone."""
    try:
        return _listener(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
    return _listener(socket.AF_INET, "", port)  # a kernel without IPv6


def _listener(family: int, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Callers close first, so closing leaves nothing in TIME_WAIT on this port but what was there before.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


class _Caller:
    """A connection to a listener: it gets the nonce, and then its messages are answered."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._length = bytearray()
        self._bytes_left = 0  # of the message that are still to come

    def greet(self, nonce: bytes) -> None:
        self._socket.setblocking(False)
        self._socket.send(nonce)  # the buffer of a new connection always has space for it

    def close(self) -> None:
        self._socket.close()

    def answer_message(self) -> bool:
        """Read and answer a message; False where the caller closed the connection or sent something else."""
        try:
            data = memoryview(self._socket.recv(1 << 16))
            return bool(data) and self._read_message(data)
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _read_message(self, data: memoryview) -> bool:
        """Count received bytes by messages, and answer each complete one; False for a length that is not allowed."""
        while data:
            missing = LENGTH.size - len(self._length)
            if missing:
                self._length += data[:missing]
                data = data[missing:]
                if len(self._length) < LENGTH.size:
                    return True
                (self._bytes_left,) = LENGTH.unpack(self._length)
                if not 0 < self._bytes_left <= MAX_MESSAGE:
                    return False
            taken = min(self._bytes_left, len(data))
            self._bytes_left -= taken
            data = data[taken:]
            if not self._bytes_left:
                self._socket.send(self._length)
                self._length = bytearray()
        return True


class _Service:
    """Answers callers, and keeps their addresses."""

    def __init__(self, listeners: List[socket.socket], nonce: bytes) -> None:
        self.callers: Dict[int, Set[str]] = {}  # port → addresses
        self.lateness = OwnLateness()
        self._listeners, self._nonce = listeners, nonce
        self._selector = selectors.DefaultSelector()

    def run(self, request: Request, seconds: float) -> None:
        """Answer callers for ``seconds``, or until the operator's data ends."""
        deadline = time.monotonic() + seconds
        with self._selector, self._callers():
            self._selector.register(request.handle, selectors.EVENT_READ)
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ, listener)
            while time.monotonic() < deadline:
                for key, _ in self._selector.select(CHECK_INTERVAL):
                    if key.data is None and request.take()[1]:
                        return
                    if key.data in self._listeners:
                        self._greet(key.data)
                    elif key.data is not None and not key.data.answer_message():
                        self._selector.unregister(key.fileobj)
                        key.data.close()
                self.lateness.is_due()

    @contextlib.contextmanager
    def _callers(self) -> Iterator[None]:
        """Close what is still connected at the end."""
        try:
            yield
        finally:
            for key in self._selector.get_map().values():
                if isinstance(key.data, _Caller):
                    key.data.close()

    def _greet(self, listener: socket.socket) -> None:
        try:
            connection, address = listener.accept()
        except OSError:
            return  # the caller left in the queue
        port = listener.getsockname()[1]
        self.callers.setdefault(port, set()).add(address[0].partition("%")[0].replace(_MAPPED, "", 1))
        try:
            caller = _Caller(connection)
            caller.greet(self._nonce)
            self._selector.register(connection, selectors.EVENT_READ, caller)
        except OSError:
            connection.close()
