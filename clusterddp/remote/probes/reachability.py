"""Whether hosts reach each other by TCP: ``listen`` on one, ``dial`` from the others, a nonce to know who answered.

Each host listens on a port of the configured range (rendezvous, MASTER_PORT, run control) and on one the kernel
chose (gloo and NCCL use such ports between the workers): a firewall often lets only one kind through.
All dials of a host run side by side, so any number of them costs about one timeout, two where all of them connect
and then stall.

Not here: one dial and what it measures (probes/dial.py), which networks are tried and which is chosen
(clusterddp/facts/network.py), bandwidth.
"""

import errno
import selectors
import socket
import time
from typing import Any, Dict, List, Optional

from ..helper.request import Request
from ..system.bootstrap import Refused
from .dial import HEAD, LARGEST, NONCE_LIMIT, Dial, DialTarget

BACKLOG = 1024
AT_ONCE = 256  # dials under way; many systems allow a process 1024 descriptors
TICK = 0.1  # seconds between two looks for calls whose time is over


def listen(request: Request) -> Dict[str, Any]:
    """Operation: send every caller the nonce and answer its messages, until cancelled or for ``seconds``.

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


def dial(request: Request) -> List[Dict[str, Any]]:
    """Operation: dial every target at once; the results in order.

    Args of the request: ``targets`` (list of ``[address, port, nonce, small messages, bytes of a large one]``),
    ``timeout`` (seconds for all together, and again for what is measured once they are connected).
    Each answer is ``{word, rtt_us, bulk, sent, resent}``. The word is ``ok``, ``refused``, ``timeout``, ``no route``,
    ``wrong nonce`` (another machine answered), ``black hole`` (it connects, large packets vanish), or the system's
    own for a rarer failure; ``bulk`` is null where no large message was sent, or nobody knows.
    """
    targets = [
        DialTarget(str(address), int(port), str(nonce).encode(), min(int(echoes), 1000), min(int(bulk), LARGEST))
        for address, port, nonce, echoes, bulk in request.args["targets"]
    ]
    timeout = float(request.args.get("timeout", 3.0))
    answers: List[Dict[str, Any]] = []
    for start in range(0, len(targets), AT_ONCE):
        answers += dial_all(targets[start : start + AT_ONCE], timeout)
    return answers


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


def dial_all(targets: List[DialTarget], timeout: float) -> List[Dict[str, Any]]:
    """The result of each target, in order; each has ``timeout`` seconds to connect and as many to measure."""
    calls = [Dial(place, target, timeout) for place, target in enumerate(targets)]
    words: List[Optional[str]] = [call.start() for call in calls]
    with selectors.DefaultSelector() as selector:
        for call in calls:
            if words[call.place] is None:
                selector.register(call.socket, selectors.EVENT_WRITE, call)
        look = time.monotonic() + TICK
        while selector.get_map():
            for key, _ in selector.select(TICK):
                words[key.data.place] = key.data.step(selector)
            if time.monotonic() >= look:
                _expire(selector, words)
                look = time.monotonic() + TICK
    answers = [call.answer(words[call.place] or "") for call in calls]
    for call in calls:
        call.socket.close()
    return answers


def _expire(selector: selectors.BaseSelector, words: List[Optional[str]]) -> None:
    now = time.monotonic()
    for key in list(selector.get_map().values()):
        if now >= key.data.until:
            words[key.data.place] = key.data.give_up()
            selector.unregister(key.fileobj)


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


class _Caller:
    """One connection to a listener: greeted, then its messages are answered."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._head = bytearray()
        self._left = 0  # bytes of the message that are still to come

    def greet(self, nonce: bytes) -> None:
        self._socket.setblocking(False)
        self._socket.send(nonce)  # a fresh connection always takes so few bytes

    def hear(self) -> bool:
        """Read and answer a message; False where the caller has closed or sent none of ours."""
        try:
            data = memoryview(self._socket.recv(1 << 16))
            return bool(data) and self._take(data)
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _take(self, data: memoryview) -> bool:
        while data:
            missing = HEAD.size - len(self._head)
            if missing:
                self._head += data[:missing]
                data = data[missing:]
                if len(self._head) < HEAD.size:
                    return True
                (self._left,) = HEAD.unpack(self._head)
                if not 0 < self._left <= LARGEST:
                    return False
            taken = min(self._left, len(data))
            self._left -= taken
            data = data[taken:]
            if not self._left:
                self._socket.send(self._head)
                self._head = bytearray()
        return True


def _serve(listeners: List[socket.socket], nonce: bytes, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for listener in listeners:
            selector.register(listener, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                connection: Any = key.fileobj
                if key.data is None:
                    _greet(selector, connection, nonce)
                elif not key.data.hear():
                    selector.unregister(connection)
                    connection.close()


def _greet(selector: selectors.BaseSelector, listener: socket.socket, nonce: bytes) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:
        return  # the caller left in the queue
    try:
        caller = _Caller(connection)
        caller.greet(nonce)
        selector.register(connection, selectors.EVENT_READ, caller)
    except OSError:
        connection.close()
