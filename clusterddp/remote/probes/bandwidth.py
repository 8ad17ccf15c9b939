"""TCP throughput between two hosts: ``drain`` receives on one, ``pour`` sends from the other, one stream at a time.

The receiver measures, since what a sender has written may still be in its own buffers: it skips the beginning (slow
start, traffic shapers), counts for a fixed time, and reports the count over the same connection. So a measurement takes
a fixed time, however slow the link is. Python moves some ten Gbit/s in one stream: faster links all look the same.
"""

import json
import os
import selectors
import socket
import threading
import time
from typing import Any, Dict, Optional

from ..helper.request import Request
from ..shared.probes.network_records import (
    OK,
    WRONG_NONCE,
    ByteCount,
    DialTarget,
    Listening,
    ListenRequest,
    PourRequest,
    Throughput,
)
from ..shared.schema.record import parse_record, read_record, to_fields
from .reachability import bind_range, dial_all

WARM_UP_SECONDS = 0.1  # seconds not counted
MEASURE_SECONDS = 0.4  # seconds counted
TIMEOUT = 4.0  # seconds for a connection, and for an answer after its window
PIECE = 1 << 20
MAX_ANSWER = 200  # bytes


def drain(request: Request) -> Dict[str, Any]:
    """Operation: receive from callers and answer each with the bytes counted, until cancelled or for ``seconds``.

    Takes a ``ListenRequest`` (shared/probes/network_records.py). It sends one data frame, with the header of
    ``Listening``, as soon as it listens. Raises Refused if every port of the range is taken.
    """
    asked = request.read_args(ListenRequest)
    nonce, deadline = asked.nonce.encode(), time.monotonic() + asked.seconds
    with bind_range(*asked.ports) as listener, selectors.DefaultSelector() as selector:
        request.send(b"", **to_fields(Listening((listener.getsockname()[1],))))
        selector.register(listener, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            try:
                connection, _ = listener.accept()
            except OSError:
                continue  # the caller left in the queue
            threading.Thread(target=_answer_caller, args=(connection, nonce), daemon=True).start()
    return {}


def pour(request: Request) -> Dict[str, Any]:
    """Operation: send to another host's ``drain`` until it has counted enough.

    Takes a ``PourRequest``, returns a ``Throughput`` (shared/probes/network_records.py).
    """
    target = request.read_args(PourRequest)
    result = dial_all([DialTarget(*target)], TIMEOUT)[0].word
    try:
        counted = _send_until_counted(target) if result == OK else None
    except (OSError, ValueError) as error:
        counted, result = None, str(error) or type(error).__name__
    return to_fields(Throughput(counted, None if counted else WRONG_NONCE if result == OK else result))


def _answer_caller(connection: socket.socket, nonce: bytes) -> None:
    """Send the nonce to a caller, count what it sends, and send the count."""
    try:
        with connection:
            connection.settimeout(TIMEOUT)
            connection.sendall(nonce)
            counted = _count(connection)
            connection.settimeout(TIMEOUT)
            connection.sendall(json.dumps(to_fields(counted)).encode() + b"\n")
            _drain_until_closed(connection)
    except (OSError, EOFError):
        pass  # the caller sees it; a mere dial closes after the nonce


def _count(connection: socket.socket) -> ByteCount:
    """The bytes received after the warm-up, and the time they took in ns."""
    # The kernel discards the data (MSG_TRUNC): nothing is copied, and a busy host distorts the result less.
    space = bytearray(PIECE)
    if not connection.recv_into(space, 1):
        raise EOFError
    began = time.monotonic_ns()
    counted_from, until = began + int(WARM_UP_SECONDS * 1e9), began + int((WARM_UP_SECONDS + MEASURE_SECONDS) * 1e9)
    total = start = 0
    now = began
    while now < until:
        connection.settimeout((until - now) / 1e9)
        try:
            size = connection.recv_into(space, PIECE, socket.MSG_TRUNC)
        except socket.timeout:
            size = -1  # the connection is stuck, which is a result too
        if not size:
            raise EOFError
        now = time.monotonic_ns()
        if start:
            total += max(0, size)
        elif now >= counted_from:
            start = now
    return ByteCount(total, max(1, now - (start or counted_from)))


def _drain_until_closed(connection: socket.socket) -> None:
    """Read until the sender closes: closing with unread bytes would reset the connection and lose the answer."""
    deadline = time.monotonic() + TIMEOUT
    space = bytearray(PIECE)
    while time.monotonic() < deadline and connection.recv_into(space, PIECE, socket.MSG_TRUNC):
        pass


def _send_until_counted(target: PourRequest) -> Optional[ByteCount]:
    """The receiver's count; None where another program answers at that port. Raises OSError or ValueError."""
    nonce, address = target.nonce.encode(), (target.address, target.port)
    with socket.create_connection(address, TIMEOUT) as connection, selectors.DefaultSelector() as selector:
        # Data left in buffers at the end must not distort the next measurement.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if _receive_nonce(connection, len(nonce)) != nonce:
            return None
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        piece = memoryview(os.urandom(PIECE))  # random, so that nothing on the way compresses it
        answer = b""
        deadline = time.monotonic() + WARM_UP_SECONDS + MEASURE_SECONDS + TIMEOUT
        while not answer.endswith(b"\n"):
            if len(answer) > MAX_ANSWER:
                raise ValueError("its answer is too long")
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if time.monotonic() >= deadline:
                raise OSError("timeout")
            for _, events in ready:
                if events & selectors.EVENT_READ:
                    answer += _receive(connection)
                elif events & selectors.EVENT_WRITE:
                    connection.send(piece)
    counted = parse_record(answer, lambda data: read_record(ByteCount, data, "its count"))
    return counted._replace(ns=max(1, counted.ns))


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(MAX_ANSWER)
    if not data:
        raise OSError("the other end left")
    return data


def _receive_nonce(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            break
        data += more
    return data
