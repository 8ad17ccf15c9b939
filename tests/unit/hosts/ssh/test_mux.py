"""A master connection's control socket whose other end is no healthy master."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from clusterddp.hosts.ssh import mux

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HELLO = struct.pack(">III", 8, 1, 4)


def message(kind: int, text: bytes) -> bytes:
    body = struct.pack(">III", kind, 1, len(text)) + text
    return struct.pack(">I", len(body)) + body


@contextlib.contextmanager
def master(path: Path, sent: bytes, *, stays: bool = False) -> Iterator[None]:
    """One that sends these bytes to whoever connects, and closes the connection unless it stays."""
    done = threading.Event()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            with server.accept()[0] as connection:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR) if not stays else None
                done.wait(20)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", "the master is gone"),
        (HELLO[:7], "the master is gone"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "sends nonsense"),
        (b"\0\0\0\0", "sends nonsense"),
        (struct.pack(">III", 8, 1, 5), "another protocol"),
        (message(0x80000003, b"too late"), "another protocol"),
        (HELLO + message(0x80000003, b"Session open refused by peer"), "refuses: Session open refused by peer"),
        (HELLO + message(0x80000002, b"\xff\xfe"), "refuses: \ufffd"),
        (HELLO + message(0x80000005, b"") + b"\xff\xff\xff\xff", "sends nonsense"),
    ],
)
def test_what_is_no_session_is_an_error_in_words(tmp_path: Path, sent: bytes, error: str) -> None:
    with master(tmp_path / "m", sent), pytest.raises(mux.MuxError, match=error):
        mux.MuxPipe(tmp_path / "m", "true")


@pytest.mark.parametrize("sent", [b"", HELLO, HELLO + message(0x80000005, b"")])
def test_one_that_goes_silent_is_left_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(mux, "HELLO_TIMEOUT", 0.1)
    monkeypatch.setattr(mux, "SESSION_TIMEOUT", 0.1)
    with master(tmp_path / "m", sent, stays=True), pytest.raises(mux.MuxError, match="does not answer"):
        mux.MuxPipe(tmp_path / "m", "true")


@pytest.mark.parametrize("possible", [0, 2])
def test_too_few_files_for_a_session_are_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, possible: int
) -> None:
    made, pair = list[socket.socket](), socket.socketpair

    def limited() -> tuple[socket.socket, socket.socket]:
        if len(made) == 2 * possible:
            raise OSError(errno.EMFILE, "Too many open files")
        made.extend(ends := pair())
        return ends

    monkeypatch.setattr(socket, "socketpair", limited)
    with master(tmp_path / "m", HELLO, stays=True), pytest.raises(mux.MuxError, match="Too many open files"):
        mux.MuxPipe(tmp_path / "m", "true")
    assert all(end.fileno() == -1 for end in made)


def test_a_socket_without_a_master_is_not_live(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "m"))
    assert not mux.is_live(tmp_path / "m")
    assert not mux.is_live(tmp_path / "none")
