"""One dial of probes/reachability.py: connect, check the listener's nonce, then measure on the same connection.

After the nonce come messages: a length in four bytes, then as many bytes. The other side answers with the length as
soon as it has received them all. Small messages measure losses and round trips; a large one shows whether packets of
full size pass. Where a path's MTU is smaller than its ends believe and no router reports it (a black hole), connections
are made and small messages arrive, but everything large is lost.
"""

import errno
import selectors
import socket
import struct
import time
from typing import NamedTuple, Optional

from ..shared.probes.network_records import (
    BLACK_HOLE,
    NO_DATA,
    NO_ROUTE,
    OK,
    REFUSED,
    TIMEOUT,
    WRONG_NONCE,
    DialResult,
    DialTarget,
)

NONCE_LIMIT = 64  # bytes
SMALL_MESSAGE = 16  # bytes of a small message
MAX_ECHOES = 1000  # small messages of one dial
MAX_MESSAGE = 1 << 20  # bytes of a message that a listener accepts
LENGTH = struct.Struct("!I")  # before each message: its size in bytes

_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EACCES, errno.EPERM)
_REFUSED = (errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE)
_NO_RTT = 0xFFFFFFFF


class TcpInfo(NamedTuple):
    """Fields of the kernel's ``tcp_info``; zeros where the kernel is too old to report them."""

    unacked: int = 0  # segments under way
    acked: int = 0  # bytes that the other side's kernel has acknowledged
    rtt_us: Optional[int] = None  # the shortest so far
    sent: int = 0  # segments, including the connection's first and those sent again
    resent: int = 0


class Dial:
    """One dial: ``step`` is due when the selector reports its socket, ``give_up`` when ``until`` has passed."""

    def __init__(self, index: int, target: DialTarget, timeout: float, until: float) -> None:
        self.index = index
        self.until = until
        self.proven = False  # the nonce of the listener has come
        self.socket = socket.socket()
        self._target, self._nonce = target, target.nonce.encode()
        self._timeout = timeout
        self._received: Optional[bytearray] = None  # None until connected
        # sizes of the messages that are still to be answered
        self._remaining = [SMALL_MESSAGE] * target.echoes + ([target.bulk] if target.bulk else [])
        self._sending = memoryview(b"")
        self._large_passed: Optional[bool] = None  # None until known
        self._is_large_sent = False
        self._before_large = TcpInfo()  # the kernel's figures before the large message

    def start(self) -> Optional[str]:
        """Begin to connect; returns the result where it fails at once."""
        self.socket.close()
        address = self._target.address
        try:
            self.socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            self.socket.setblocking(False)
            return _result_of(self.socket.connect_ex((address, self._target.port)))
        except (OSError, OverflowError) as error:
            return str(error)

    def step(self, selector: selectors.BaseSelector) -> Optional[str]:
        """Handle what the socket is ready for; returns the result once it is known."""
        try:
            result = self._step(selector)
        except BlockingIOError:
            return None
        except OSError as error:
            result = _result_of(error.errno or 0) or REFUSED
        if result is not None:
            selector.unregister(self.socket)
        return result

    def give_up(self) -> str:
        """The result of a dial that timed out; a large message is lost if the kernel there acknowledged none of it."""
        if self._received is None:
            return TIMEOUT
        if not self.proven:
            return NO_DATA
        info = tcp_info(self.socket)
        if not self._is_large_sent:
            return NO_DATA if info.unacked else OK  # all arrived: only the program there is slow
        if info.acked > self._before_large.acked or not info.sent:
            return OK  # some of it arrived: the link is slow, or the program
        if self._before_large.resent:
            return OK  # packets of any size get lost, as the check of losses tells
        self._large_passed = False
        return BLACK_HOLE

    def answer(self, result: str) -> DialResult:
        """The operation's answer, with the kernel's figures."""
        info = tcp_info(self.socket) if self._received is not None else TcpInfo()
        return DialResult(word=result, rtt_us=info.rtt_us, bulk=self._large_passed, sent=info.sent, resent=info.resent)

    def _step(self, selector: selectors.BaseSelector) -> Optional[str]:
        """Go on from the present stage: connecting, sending, reading the nonce, reading an answer."""
        if self._received is None:
            result = _result_of(self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            if result is None:
                self._received = bytearray()
                selector.modify(self.socket, selectors.EVENT_READ, self)
            return result
        if self._sending:
            self._continue_sending(selector)
            return None
        if not self.proven:
            return self._check_nonce(selector, self._received)
        return self._receive_answer(selector, self._received)

    def _check_nonce(self, selector: selectors.BaseSelector, received: bytearray) -> Optional[str]:
        """Compare what the listener sent with the nonce; when all of it has come, send the first message."""
        data = self.socket.recv(NONCE_LIMIT)
        received += data
        if bytes(received) == self._nonce:
            self.proven = True
            received.clear()
            return self._send_next(selector)
        return None if data and self._nonce.startswith(bytes(received)) else WRONG_NONCE

    def _send_next(self, selector: selectors.BaseSelector) -> Optional[str]:
        """Send the next message; returns ``ok`` when none is left."""
        if not self._remaining:
            return OK
        self.until = time.monotonic() + self._timeout  # measuring gets a timeout of its own
        self._is_large_sent = self._remaining == [self._target.bulk]
        if self._is_large_sent:
            self._before_large = tcp_info(self.socket)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sending = memoryview(LENGTH.pack(self._remaining[0]) + bytes(self._remaining[0]))
        self._continue_sending(selector)
        return None

    def _continue_sending(self, selector: selectors.BaseSelector) -> None:
        """Send as much of the present message as the socket takes, and wait to send the rest or for the answer."""
        try:
            self._sending = self._sending[self.socket.send(self._sending) :]
        except BlockingIOError:
            pass  # the selector reports when there is buffer space again
        events = selectors.EVENT_WRITE if self._sending else selectors.EVENT_READ
        if selector.get_key(self.socket).events != events:
            selector.modify(self.socket, events, self)

    def _receive_answer(self, selector: selectors.BaseSelector, received: bytearray) -> Optional[str]:
        """Read the answer to a message, its length; then send the next."""
        data = self.socket.recv(LENGTH.size)
        if not data:
            return REFUSED  # a device between the hosts closed the connection
        received += data
        if len(received) < LENGTH.size:
            return None
        size = self._remaining.pop(0)
        if LENGTH.unpack(received)[0] != size:
            return WRONG_NONCE
        received.clear()
        if size == self._target.bulk:
            self._large_passed = True
        return self._send_next(selector)


def tcp_info(connection: socket.socket) -> TcpInfo:
    """The kernel's figures of a connection (``struct tcp_info`` of linux/tcp.h, which only ever grew)."""
    try:
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    except OSError:
        return TcpInfo()
    if len(data) < 160:  # Linux 4.5 and older
        return TcpInfo()
    rtt = _u32(data, 148)
    shortest = None if rtt == _NO_RTT else rtt
    return TcpInfo(_u32(data, 24), _u32(data, 120), shortest, 1 + _u32(data, 156), _u32(data, 100))


def _u32(data: bytes, offset: int) -> int:
    return int(struct.unpack_from("=I", data, offset)[0])


def _result_of(number: int) -> Optional[str]:
    """The result for an errno; None while the connection is in progress."""
    if number in (0, errno.EINPROGRESS):
        return None
    if number in _REFUSED:
        return REFUSED
    if number in _NO_ROUTE:
        return NO_ROUTE
    return TIMEOUT if number == errno.ETIMEDOUT else errno.errorcode.get(number, str(number))
