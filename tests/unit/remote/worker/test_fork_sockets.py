"""The sockets of a fork server and a warm server: who may ask, and what becomes of a request that is none."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.fork_server.server import listen_in
from clusterddp.remote.fork_server.worker_parent import MAX_REQUEST, receive
from clusterddp.remote.shared.run.plan import FORK_SOCKET
from clusterddp.remote.worker.fork_client import NotForkedError, connect

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is started")

OTHER = 40002
_AS = "import os, socket, sys; os.setuid(int(sys.argv[2])); s = socket.socket(socket.AF_UNIX); "
CALLS = _AS + "s.connect(sys.argv[1]); s.send(b'\\2\\0\\0\\0{}'); s.recv(1)"
LISTENS = _AS + "s.bind(sys.argv[1]); s.listen(); print(flush=True); s.accept()"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that all may enter and write: pytest's own are root's alone."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@pytest.mark.parametrize("user", [0, OTHER])
def test_a_request_of_another_user_is_not_read(place: Path, user: int) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "s"))
        (place / "s").chmod(0o777)
        listener.listen()
        listener.settimeout(30)
        words = [sys.executable, "-I", "-S", "-c", CALLS, str(place / "s"), str(user)]
        with subprocess.Popen(words) as caller:
            connection, _ = listener.accept()
            with connection:
                if user == 0:
                    assert receive(connection, 3) == ({}, [])
                else:
                    with pytest.raises(PermissionError):
                        receive(connection, 3)
            caller.wait(30)


@pytest.mark.parametrize("user", [0, OTHER])
def test_a_server_of_another_user_is_asked_for_nothing(place: Path, user: int) -> None:
    words = [sys.executable, "-I", "-S", "-c", LISTENS, str(place / FORK_SOCKET), str(user)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as server, socket.socket(socket.AF_UNIX) as sock:
        assert server.stdout
        server.stdout.readline()
        if user == 0:
            assert connect(sock, str(place)) == server.pid
        else:
            with pytest.raises(NotForkedError, match="the socket is another user's"):
                connect(sock, str(place))
        server.wait(30)


def test_the_socket_is_its_users_alone_from_the_moment_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    class Watched(socket.socket):
        def bind(self, address: object) -> None:
            super().bind(address)  # type: ignore[arg-type]
            made.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir())

    monkeypatch.setattr(socket, "socket", Watched)
    umask = os.umask(0)
    try:
        with listen_in(str(tmp_path)):
            made.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir())
    finally:
        os.umask(umask)
    assert made == [0o600, 0o600]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\1\0",
        struct.pack("<I", 0),
        struct.pack("<I", 10) + b'{"a"',
        struct.pack("<I", 9) + b"[" * 9,
        struct.pack("<I", 4) + b"\xff\xfe{}",
        struct.pack("<I", MAX_REQUEST + 1) + b"{}",
        struct.pack("<I", 0xFFFFFFFF) + b'{"a": 1}',
    ],
)
def test_what_is_no_whole_request_is_refused_and_not_waited_for(sent: bytes) -> None:
    server, client = socket.socketpair()
    with server, client:
        server.settimeout(30)
        client.sendall(sent)
        if len(sent) < 4 or sent[3:4] == b"\0":  # else its length alone says that it is none
            client.shutdown(socket.SHUT_WR)
        with pytest.raises(ValueError, match=r"."):
            receive(server, 3)


def test_descriptors_beyond_those_asked_for_are_not_kept() -> None:
    server, client = socket.socketpair()
    with server, client, open(os.devnull, "rb") as null:  # noqa: PTH123 - a descriptor
        before = len(list(Path("/proc/self/fd").iterdir()))
        socket.send_fds(client, [struct.pack("<I", 2)], [null.fileno()] * 100)
        client.sendall(b"{}")
        _, handles = receive(server, 4)
        assert len(handles) == 4
        assert len(list(Path("/proc/self/fd").iterdir())) == before + 4
        for handle in handles:
            os.close(handle)
