"""Whether hosts reach each other by TCP: ``listen`` on one, ``dial`` from the others, a nonce to know who answered.

Each host listens on a port of the configured range (rendezvous, MASTER_PORT, run control) and on one the kernel
chose (gloo and NCCL use such ports between the workers): a firewall often lets only one kind through.
All dials of a host run side by side, so any number of them costs about one timeout.

Not here: which networks are tried and which is chosen (clusterddp/network.py), bandwidth.
"""

import errno
import selectors
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from .request import Request
from .state import Refused

BACKLOG = 1024
AT_ONCE = 256  # dials under way; many systems allow a process 1024 descriptors
NONCE_LIMIT = 64  # bytes

OK, REFUSED, TIMEOUT, NO_ROUTE, WRONG_NONCE = "ok", "refused", "timeout", "no route", "wrong nonce"
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EACCES, errno.EPERM)
_REFUSED = (errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE)


def listen(request: Request) -> Dict[str, Any]:
    """Answer every caller with the nonce until cancelled, or for ``seconds``.

    Args of the request: ``ports`` (first and last of the range), ``nonce``, ``seconds``. One data frame with
    ``ports: [of the range, chosen by the kernel]`` comes as soon as both listen.

    Raises:
        Refused: every port of the range is taken.
    """
    nonce = str(request.args["nonce"]).encode()[:NONCE_LIMIT]
    first, last = request.args["ports"]
    with bind_range(int(first), int(last)) as ranged, _bind(0) as chosen:
        request.send(b"", ports=[ranged.getsockname()[1], chosen.getsockname()[1]])
        _serve([ranged, chosen], nonce, float(request.args.get("seconds", 60)))
    return {}


def dial(request: Request) -> List[str]:
    """Dial every target at once and say how each went, in order.

    Args of the request: ``targets`` (list of ``[address, port, nonce]``), ``timeout`` (seconds for all together).
    Each answer is ``ok``, ``refused``, ``timeout``, ``no route``, ``wrong nonce`` (another machine answered), or the
    system's own word for a rarer failure.
    """
    targets = [(str(address), int(port), str(nonce).encode()) for address, port, nonce in request.args["targets"]]
    timeout = float(request.args.get("timeout", 3.0))
    results: List[str] = []
    for start in range(0, len(targets), AT_ONCE):
        results += dial_all(targets[start : start + AT_ONCE], timeout)
    return results


def bind_range(first: int, last: int) -> socket.socket:
    """A socket that listens on the first free port of a range, on all addresses of both families.

    Raises:
        Refused: every port is taken.
    """
    for port in range(first, last + 1):
        try:
            return _bind(port)
        except OSError:
            continue
    raise Refused("no free port in %d-%d" % (first, last), "free one, or set clusterddp_ports to another range")


def dial_all(targets: List[Tuple[str, int, bytes]], timeout: float) -> List[str]:
    """How each target answered within ``timeout`` seconds, in order."""
    results: List[Optional[str]] = [None] * len(targets)
    deadline = time.monotonic() + timeout
    calls = []
    with selectors.DefaultSelector() as selector:
        for place, (address, port, nonce) in enumerate(targets):
            call = _Call(place, nonce)
            calls.append(call)
            results[place] = call.start(address, port)
            if results[place] is None:
                selector.register(call.socket, selectors.EVENT_WRITE, call)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                results[key.data.place] = key.data.step(selector)
    for call in calls:
        call.socket.close()
    return [result or TIMEOUT for result in results]


class _Call:
    """One dial: connecting, then reading the nonce."""

    def __init__(self, place: int, nonce: bytes) -> None:
        self.place = place
        self.socket = socket.socket()
        self._nonce = nonce
        self._heard: Optional[bytearray] = None  # None until connected

    def start(self, address: str, port: int) -> Optional[str]:
        """Begin to connect; a result where it fails at once."""
        self.socket.close()
        try:
            self.socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            self.socket.setblocking(False)
            return _word(self.socket.connect_ex((address, port)))
        except (OSError, OverflowError) as error:
            return str(error)

    def step(self, selector: selectors.BaseSelector) -> Optional[str]:
        """Take what the socket has; a result once it is known."""
        if self._heard is None:
            result = _word(self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            self._heard = bytearray()
            if result is None:
                selector.modify(self.socket, selectors.EVENT_READ, self)
        else:
            result = self._read(self._heard)
        if result is not None:
            selector.unregister(self.socket)
        return result

    def _read(self, heard: bytearray) -> Optional[str]:
        try:
            data = self.socket.recv(NONCE_LIMIT)
        except BlockingIOError:
            return None
        except OSError as error:
            return _word(error.errno or 0)
        heard += data
        if bytes(heard) == self._nonce:
            return OK
        return None if data and self._nonce.startswith(bytes(heard)) else WRONG_NONCE


def _word(number: int) -> Optional[str]:
    """Our word for an errno; None while the connection is made."""
    if number in (0, errno.EINPROGRESS):
        return None
    if number in _REFUSED:
        return REFUSED
    if number in _NO_ROUTE:
        return NO_ROUTE
    return TIMEOUT if number == errno.ETIMEDOUT else errno.errorcode.get(number, str(number))


def _bind(port: int) -> socket.socket:
    try:
        return _listener(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
    return _listener(socket.AF_INET, "", port)  # a kernel without IPv6


def _listener(family: int, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Callers hang up first, so closing leaves nothing in TIME_WAIT on this port but what was there before us.
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


def _serve(listeners: List[socket.socket], nonce: bytes, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for listener in listeners:
            selector.register(listener, selectors.EVENT_READ, True)
        while time.monotonic() < deadline:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                connection: Any = key.fileobj
                if key.data:
                    _greet(selector, connection, nonce)
                elif not _silent(connection):
                    selector.unregister(connection)
                    connection.close()


def _greet(selector: selectors.BaseSelector, listener: socket.socket, nonce: bytes) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:
        return  # the caller left in the queue
    try:
        connection.setblocking(False)
        connection.send(nonce)  # a fresh connection always takes so few bytes
        selector.register(connection, selectors.EVENT_READ, False)
    except OSError:
        connection.close()


def _silent(connection: socket.socket) -> bool:
    """Whether the caller is still there; what it says is nothing to us."""
    try:
        return bool(connection.recv(1024))
    except BlockingIOError:
        return True
    except OSError:
        return False
