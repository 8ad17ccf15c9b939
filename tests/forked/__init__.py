"""Our command forked from a process that has imported it: what a cold start takes of CPU, hundreds of tests need not.

`ForkedPopen` is a `subprocess.Popen` whose program is a Python script (`clusterddp`): a child of the caller with the
words, folder, variables, files, session and terminal that it was given, whose interpreter has begun before.
`test_forked.py` holds it to the real one. Where the start itself is the point, or the variables are some that an
interpreter reads at its start, or another program comes before it, take `subprocess.Popen`: `popen` chooses.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import platform
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SERVER = Path(__file__).with_name("server.py")
SCRIPT = str(Path(sys.executable).with_name("clusterddp"))
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine()) if sys.platform == "linux" else None  # its number
AT_START = ("PYTHON", "COV", "LANG", "LC_", "LD_", "MALLOC_", "GLIBC_", "OPENSSL_", "SSL_")  # read by an interpreter
LONGEST = 100_000  # bytes of a request: one datagram
PATIENCE = 120.0  # seconds for the server to begin, and to answer


def popen(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], *, terminal: bool = False, **streams: Any
) -> subprocess.Popen[bytes]:
    """A program in a session of its own, forked where it can be.

    Args:
        argv: Its command line.
        cwd: Its folder.
        env: All of its variables.
        terminal: Its stdin is a terminal that becomes the session's.
        streams: ``stdin``, ``stdout``, ``stderr`` as of Popen.
    """
    if _can_be_forked(argv, cwd, env):
        return ForkedPopen(list(argv), cwd=cwd, env=env, terminal=terminal, **streams)
    if terminal:  # the program itself becomes the session's leader, with this terminal: keys reach it as signals
        return subprocess.Popen(["setsid", "--ctty", *argv], cwd=cwd, env=env, **streams)
    return subprocess.Popen(argv, cwd=cwd, env=env, start_new_session=True, **streams)


def _can_be_forked(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> bool:
    same = read_at_start(env) == read_at_start(_variables())
    return CLONE is not None and argv[0] == SCRIPT and same and cwd.is_dir() and len(repr((argv, env))) < LONGEST


def read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables that an interpreter or a library reads when it begins."""
    return {name: value for name, value in env.items() if name.startswith(AT_START)}


def _variables() -> dict[str, str]:
    """The server's, as of a terminal: what pytest and its like were given is not in them."""
    return {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "TMPDIR", "HOME"}}


class ForkedPopen(subprocess.Popen[bytes]):
    """A script as a fork of the server, in a session of its own; all else is Popen's."""

    def __init__(self, argv: list[str], *, terminal: bool = False, **given: Any) -> None:
        self._with_terminal = terminal
        self._given = given
        super().__init__(argv, **given)

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        """What Popen does in this place is fork and exec; ``rest`` are its arguments by position."""
        p2cread, _, _, c2pwrite, _, errwrite = rest[9:15]
        ends = [p2cread, c2pwrite, errwrite]
        files = [number if given < 0 else given for number, given in enumerate(ends)]
        try:
            self.pid = _server().fork(args, self._given["cwd"], self._given["env"], files, terminal=self._with_terminal)
            self._child_created = True
        finally:
            self._close_pipe_fds(*rest[9:15])  # type: ignore[attr-defined]


def interpreter() -> str:
    """The one that our command names in its first line."""
    return Path(SCRIPT).read_text().split("\n", 1)[0].removeprefix("#!")


class _Server:
    """The process that forks; it ends when its socket is closed, with this process at the latest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [interpreter(), str(SERVER), str(theirs.fileno()), str(CLONE)]
            self._process = subprocess.Popen(
                argv, cwd="/", env=_variables(), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._socket.settimeout(PATIENCE)
        atexit.register(self.close)

    def fork(
        self, argv: Sequence[str], cwd: object, env: Mapping[str, str], files: Sequence[int], *, terminal: bool
    ) -> int:
        """The pid of a new child of this process."""
        request = {"argv": list(argv), "cwd": str(cwd), "env": dict(env), "terminal": terminal}
        with self._lock:
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], files)
                answer = self._socket.recv(64)
            except TimeoutError:
                self._socket.close()  # a late answer would be taken for the next one's
                raise AssertionError(f"the server of forked commands has not answered for {PATIENCE:g} s") from None
        assert answer, "the server of forked commands is gone"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)


@functools.cache
def _server() -> _Server:
    """One of each process of tests."""
    return _Server()
