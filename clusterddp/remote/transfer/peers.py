"""Exchange chunks between hosts within one transfer: TLS, both ends authenticated, at most four uploads at once.

Each host has a key and a certificate that the operator made for this transfer alone; without them nothing is answered.
A request is one line with the ranges of the wanted chunks; the answer is one bundle (shared/wire/chunk_stream.py), or
the end of the connection. The receiver verifies each chunk by the operator's digest. Keys are never written to disk.
"""

import contextlib
import json
import os
import queue
import socket
import ssl
import threading
import time
from collections import Counter
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..shared.wire.chunk_stream import PLAIN, BadStream, Incoming, encode_head
from ..shared.wire.chunks import Chunk
from ..shared.wire.frames import parse_json
from ..shared.wire.rate_limit import RateLimit
from ..shared.wire.transfer_frames import FetchOrder, Identity, JoinOrder
from ..system.ports import bind_ports
from ..system.unproven_connections import UnprovenConnections, end_connection

CONNECT_TIMEOUT = 3.0  # seconds to connect
STALL_TIMEOUT = 8.0  # seconds without a byte after which a connection is given up
UNIT_TIMEOUT = 60.0  # seconds for a unit (the chunks of one request), plus the time that a rate limit adds
MAX_UPLOADS = 4  # at once, to all
MAX_UPLOADS_PER_HOST = 2  # at once, to one host
MAX_UNPROVEN = 64  # connections that have not authenticated yet; the oldest is closed
MAX_CONNECTIONS_PER_HOST = 8  # connections that one host may hold open
MAX_LINE = 1 << 16  # bytes of a request
MAX_UNWRITTEN = 2  # most units that are fetched and not written yet
_MAX_PIECE = 1 << 18  # bytes sent or received at once
_NICE = 15  # of the threads that upload
_LOW_PRIORITY = 0x20  # class of service CS1: low-priority data

Stored = Callable[[Any], Tuple[List[Chunk], Callable[[str], bytes]]]


class Fetched(NamedTuple):
    """A unit fetched from another host, or why that failed and whether the host could be reached at all."""

    unit: int
    source: str
    bundle: List[Tuple[str, bytes]]
    failure: str  # empty if it was fetched
    is_reachable: bool


class TransferPeers:
    """This host's exchange with the other hosts of a transfer; it listens as soon as it is made.

    ``stored`` returns the chunks of some ranges and a function that reads one by its digest, or raises ValueError if
    this host lacks one. Raises Refused if no port is free;
    OSError or ValueError if there is no such address, or no TLS.
    """

    def __init__(self, order: JoinOrder, stored: Stored) -> None:
        self._server, self._client = (
            _context(order.identity, side) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        )
        self._stored = stored
        self._pace = RateLimit(order.rate)
        self._piece = max(1 << 10, min(_MAX_PIECE, int(order.rate / 4))) if order.rate else _MAX_PIECE
        self._lock = threading.Lock()
        self._closed = False
        self._unproven = UnprovenConnections(MAX_UNPROVEN)
        self._open: Dict[ssl.SSLSocket, None] = {}
        self._connections: Counter[str] = Counter()  # by the host's name in this transfer
        self._uploads = threading.BoundedSemaphore(MAX_UPLOADS)
        self._uploads_each: Dict[str, threading.BoundedSemaphore] = {}
        self._idle: Dict[str, List[ssl.SSLSocket]] = {}
        self._fetched: "queue.Queue[Fetched]" = queue.Queue(MAX_UNWRITTEN)
        self.handle, self._wake_writer = os.pipe()  # the first is readable when ``take`` has something
        os.set_blocking(self._wake_writer, False)
        self.port: Optional[int] = None
        self._listeners: List[socket.socket] = []
        if order.ports:
            self._listeners = bind_ports(order.ports, 1, order.address)
            self.port = int(self._listeners[0].getsockname()[1])
            threading.Thread(target=self._accept, args=(self._listeners[0],), daemon=True).start()

    def close(self) -> None:
        """End all connections, and stop listening."""
        with self._lock:
            self._closed = True
            for connection in (*self._listeners, *self._open):
                end_connection(connection)
            idle = [connection for connections in self._idle.values() for connection in connections]
        for connection in (*self._listeners, *idle):
            connection.close()

    def start_fetch(self, order: FetchOrder, chunks_of: Callable[[Any], List[Chunk]]) -> None:
        """Start a thread that fetches the ordered unit; ``take`` returns the result.

        ``chunks_of`` returns the chunks of index ranges, or raises ValueError if there are none.
        """
        threading.Thread(target=self._fetch_unit, args=(order, chunks_of), daemon=True).start()

    def take(self) -> Iterator[Fetched]:
        """Return the units whose fetch has ended since the last call; call it when ``handle`` is readable."""
        os.read(self.handle, 1 << 10)
        while True:
            try:
                yield self._fetched.get_nowait()
            except queue.Empty:
                return

    def _fetch_unit(self, order: FetchOrder, chunks_of: Callable[[Any], List[Chunk]]) -> None:
        bundle, failure, reached = [], "", True  # type: Tuple[List[Tuple[str, bytes]], str, bool]
        try:
            bundle = self.fetch(order.name, (order.address, order.port), order.ranges, chunks_of(order.ranges))
        except Exception as error:  # noqa: BLE001 - the operator waits for an answer, and takes it from elsewhere
            failure, reached = str(error) or type(error).__name__, not isinstance(error, ConnectionError)
        self._fetched.put(Fetched(order.unit, order.name, bundle, failure, reached))
        try:
            os.write(self._wake_writer, b"\0")
        except BlockingIOError:  # it is full: they wake anyway
            pass

    def fetch(self, name: str, address: Tuple[str, int], ranges: Any, wanted: List[Chunk]) -> List[Tuple[str, bytes]]:
        """Fetch a unit from another host, verified to be what is wanted.

        Raises ConnectionError if it cannot be reached; OSError if it is not ``name``, has closed the connection, or was
        too slow; ValueError if it sent something else.
        """
        total = sum(chunk.size for chunk in wanted)
        deadline = time.monotonic() + UNIT_TIMEOUT + self._pace.seconds(2 * MAX_UPLOADS * total)
        with self._lock:
            idle = self._idle.get(name)
            connection = idle.pop() if idle else None
        if connection is None:
            connection = self._connect(name, address)
        try:
            connection.settimeout(STALL_TIMEOUT)
            connection.sendall(json.dumps(ranges).encode() + b"\n")
            bundle = Incoming(lambda: _receive(connection, deadline)).bundle()
            if bundle is None or [digest for digest, _ in bundle] != [chunk.digest for chunk in wanted]:
                raise BadStream("it sent something else")
        except BaseException:
            self._drop(connection)
            raise
        with self._lock:
            is_closed = self._closed
            if not is_closed:
                self._idle.setdefault(name, []).append(connection)
        if is_closed:
            self._drop(connection)
        return bundle

    def _connect(self, name: str, address: Tuple[str, int]) -> ssl.SSLSocket:
        try:
            plain = socket.create_connection(address, CONNECT_TIMEOUT)
        except OSError as error:
            raise ConnectionError(str(error) or "no answer") from error
        try:
            plain.settimeout(STALL_TIMEOUT)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = self._client.wrap_socket(plain, server_hostname=name)
        except socket.timeout as error:  # large packets are lost on the way
            plain.close()
            raise ConnectionError("no answer to the handshake") from error
        except BaseException:
            plain.close()
            raise
        with self._lock:
            self._open[connection] = None
        return connection

    def _accept(self, listener: socket.socket) -> None:
        while not self._closed:
            try:
                plain, _ = listener.accept()
            except OSError:  # the caller has closed the connection already, or we are closed
                time.sleep(0.01)
                continue
            plain.settimeout(STALL_TIMEOUT)
            with contextlib.suppress(OSError):  # the same
                plain.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _LOW_PRIORITY)
            try:
                connection = self._server.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            except OSError:  # it has left
                plain.close()
                continue
            with self._lock:
                self._open[connection] = None
            self._unproven.add(connection)
            threading.Thread(target=self._answer_requests, args=(connection,), daemon=True).start()

    def _answer_requests(self, connection: ssl.SSLSocket) -> None:
        """Answer the requests on one connection, from its handshake to its end."""
        try:
            connection.do_handshake()
            _lower_priority()  # not before the handshake: on a busy host the other end would consider us unreachable
            self._unproven.discard(connection)
            with self._connection_counted(_name_of(connection)) as uploads:
                requests = Incoming(lambda: _receive_request(connection))
                while True:
                    connection.settimeout(None)  # its operator decides when it asks
                    chunks, read = self._stored(parse_json(requests.line(MAX_LINE)))
                    with uploads, self._uploads:
                        self._send(connection, chunks, read)
        except (OSError, ValueError):
            pass  # the other end sees it
        finally:
            self._unproven.discard(connection)
            self._drop(connection)

    @contextlib.contextmanager
    def _connection_counted(self, name: str) -> Iterator[threading.BoundedSemaphore]:
        """Count a host's connection; yields the semaphore that limits its uploads."""
        with self._lock:
            self._connections[name] += 1
            uploads = self._uploads_each.setdefault(name, threading.BoundedSemaphore(MAX_UPLOADS_PER_HOST))
            too_many = self._connections[name] > MAX_CONNECTIONS_PER_HOST
        try:
            if too_many:
                raise OSError("too many connections")
            yield uploads
        finally:
            with self._lock:
                self._connections[name] -= 1

    def _send(self, connection: ssl.SSLSocket, chunks: List[Chunk], read: Callable[[str], bytes]) -> None:
        total = sum(chunk.size for chunk in chunks)
        deadline = time.monotonic() + UNIT_TIMEOUT + self._pace.seconds(MAX_UPLOADS * total)
        connection.settimeout(STALL_TIMEOUT)
        connection.sendall(encode_head(PLAIN, total, [(chunk.digest, chunk.size) for chunk in chunks]))
        for chunk in chunks:
            data = memoryview(read(chunk.digest))
            if len(data) != chunk.size:
                raise OSError("a chunk is gone")
            for start in range(0, len(data), self._piece):
                if time.monotonic() > deadline:
                    raise socket.timeout("too slow")
                piece = data[start : start + self._piece]
                self._pace.wait(len(piece))
                connection.sendall(piece)

    def _drop(self, connection: ssl.SSLSocket) -> None:
        with self._lock:
            self._open.pop(connection, None)
        connection.close()


def _context(identity: Identity, side: Any) -> ssl.SSLContext:
    """A TLS context that shows our certificate and accepts only those that the operator signed."""
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=identity.authority)
    with _as_file(identity.certificate) as certificate, _as_file(identity.key) as key:
        context.load_cert_chain(certificate, key)
    if side == ssl.PROTOCOL_TLS_SERVER and hasattr(context, "num_tickets"):
        context.num_tickets = 0  # sessions are never resumed
    return context


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A path at which a text can be read once: the ssl module reads keys only from files, and none shall remain."""
    source, sink = os.pipe()
    try:
        os.write(sink, text.encode())  # a few kB: a pipe holds them
        os.close(sink)
        yield "/proc/self/fd/%d" % source
    finally:
        os.close(source)


def _name_of(connection: ssl.SSLSocket) -> str:
    """The name in the other end's certificate, which is verified by then."""
    names: Any = (connection.getpeercert() or {}).get("subjectAltName", ())
    return next((str(value) for kind, value in names if kind == "DNS"), "")


def _receive_request(connection: ssl.SSLSocket) -> bytes:
    """The next bytes of a request; the other end may take any time to begin it, but then at most STALL seconds."""
    data = connection.recv(MAX_LINE)
    connection.settimeout(STALL_TIMEOUT)
    return data


def _receive(connection: ssl.SSLSocket, deadline: float) -> bytes:
    if time.monotonic() > deadline:
        raise socket.timeout("too slow")
    return connection.recv(_MAX_PIECE)


def _lower_priority() -> None:
    """Give this thread a lower CPU priority than all others."""
    with contextlib.suppress(OSError):  # then it only slows others down
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
