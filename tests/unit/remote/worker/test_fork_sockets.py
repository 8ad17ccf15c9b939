"""The sockets of a fork server and a warm server: another user is neither answered nor asked, whatever the modes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.worker.fork_checks import FORK_SOCKET
from clusterddp.remote.worker.fork_client import NotForkedError, connect
from clusterddp.remote.worker.fork_keeper import receive

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
