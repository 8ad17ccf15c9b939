"""Questions to a worker's server that does what it likes: an answer or NoAnswerError, in time, in few bytes."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.processes.worker_server import MAX_HEAD, NoAnswerError, UnknownHandlerError, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Answer = Callable[[socket.socket, bytes], None]  # how a server answers a caller's question

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")

TIMEOUT = 0.3
OK = b"HTTP/1.1 200 OK\r\n"


def bind(listening: socket.socket, path: Path) -> None:
    """Bind to a path that may be longer than an address."""
    folder = os.open(path.parent, os.O_RDONLY)
    listening.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


@contextlib.contextmanager
def serving(path: Path, answer: Answer) -> Iterator[list[bytes]]:
    """A server that answers each caller as told; gives what it was asked."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        bind(listening, path)
        listening.listen(5)

        def serve() -> None:
            while True:
                try:
                    caller, _ = listening.accept()
                except OSError:  # the test is over
                    return
                with caller, contextlib.suppress(OSError):
                    asked.append(caller.recv(1 << 16))
                    answer(caller, asked[-1])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield asked
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def sends(*pieces: bytes, pause: float = 0) -> Answer:
    def answer(caller: socket.socket, _question: bytes) -> None:
        for piece in pieces:
            caller.sendall(piece)
            time.sleep(pause)

    return answer


def refusal(path: Path, limit: int = 1 << 20, timeout: float = TIMEOUT) -> str:
    """Why there is no answer; a server that has sent all it has, later than ``timeout``, would give another reason."""
    with pytest.raises(NoAnswerError) as caught:
        ask(str(path), "fr_trace_json", timeout=timeout, limit=limit)
    return str(caught.value)


@pytest.mark.parametrize(
    "pieces",
    [
        (OK + b"\r\n{}",),
        (OK + b"Content-Length: 2\r\n\r\n{}",),
        (OK + b"content-length:2\r\n\r\n{}more than it said",),
        tuple(bytes([byte]) for byte in OK + b"\r\n{}"),
        (OK + b"Content-Length: -1\r\n\r\n{}",),
        (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}",),
        (OK + b"Content-Length: \xb2\r\n\r\n{}",),
    ],
)
def test_the_body_is_the_answer(tmp_path: Path, pieces: tuple[bytes, ...]) -> None:
    with serving(tmp_path / "s", sends(*pieces)) as asked:
        assert ask(str(tmp_path / "s"), "fr_trace_json", timeout=5, limit=1 << 20) == b"{}"
    assert asked[0].startswith(b"POST /handler/fr_trace_json HTTP/1.1\r\n")


def test_an_answer_ends_as_it_says_though_the_connection_stays_open(tmp_path: Path) -> None:
    over = threading.Event()

    def answer(caller: socket.socket, _question: bytes) -> None:
        caller.sendall(OK + b"Content-Length: 2\r\n\r\n{}")
        over.wait(30)  # as where a child that the worker forked meanwhile has the connection

    with serving(tmp_path / "s", answer):
        assert ask(str(tmp_path / "s"), "x", timeout=20, limit=1 << 20) == b"{}"
        over.set()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (sends(*[b"x"] * 200, pause=0.05), "it does not answer"),
        (sends(OK + b"\r\n", *[b" "] * 200, pause=0.05), "it does not answer"),
        (sends(OK + b"\r\n{}", b"", pause=0.6), "it does not answer"),
        (sends(b"", pause=0.6), "it does not answer"),
        (sends(), "its server answers with an error"),
        (sends(OK), "its server answers with an error"),
        (sends(b"\r\n\r\n"), "its server answers with an error"),
        (sends(b"HTTP/1.1 500 No\r\n\r\n{}"), "its server answers with an error"),
        (sends(OK + b"Content-Length: 9\r\n\r\n{}"), "its answer is cut"),
        (sends(OK + b"a" * (MAX_HEAD + 1)), "its answer is too long"),
        (sends(OK + b"\r\n", b"a" * (1 << 20)), "its answer is too long"),
        (sends(OK + b"Content-Length: 2\r\n\r\n", b"a" * (1 << 20)), None),
    ],
)
def test_whatever_it_sends_the_answer_or_the_reason_comes_in_time(
    tmp_path: Path, answer: Answer, why: str | None
) -> None:
    with serving(tmp_path / "s", answer):
        if why is None:
            assert ask(str(tmp_path / "s"), "x", timeout=20, limit=1 << 20) == b"aa"
        else:
            assert refusal(tmp_path / "s") == why


def test_an_unknown_handler_is_told_from_a_failure(tmp_path: Path) -> None:
    with serving(tmp_path / "s", sends(b"HTTP/1.1 404 Not Found\r\n\r\n")), pytest.raises(UnknownHandlerError):
        ask(str(tmp_path / "s"), "x", timeout=5, limit=1 << 20)


def test_an_endless_answer_takes_no_more_memory_than_its_limit(tmp_path: Path) -> None:
    def answer(caller: socket.socket, _question: bytes) -> None:
        caller.sendall(OK + b"\r\n")
        while True:
            caller.sendall(piece)

    piece = b"a" * (1 << 16)
    with serving(tmp_path / "s", answer):
        tracemalloc.start()
        try:
            assert refusal(tmp_path / "s", limit=1 << 20, timeout=10) == "its answer is too long"
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert most < 1.5 * (1 << 20)  # a bytearray keeps an eighth more than it holds


def test_an_answer_of_just_the_limit_is_no_longer_than_it(tmp_path: Path) -> None:
    whole = OK + b"\r\n" + b"a" * 5000
    with serving(tmp_path / "s", sends(whole)):
        assert len(ask(str(tmp_path / "s"), "x", timeout=5, limit=len(whole))) == 5000
        assert refusal(tmp_path / "s", limit=len(whole) - 1, timeout=5) == "its answer is too long"


def test_a_full_backlog_is_waited_for_and_then_told(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with contextlib.ExitStack() as stack:
        listening, *callers = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(4)]
        bind(listening, path)
        listening.listen(0)
        for caller in callers:
            caller.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                caller.connect(str(path))
        assert refusal(path) == "it does not answer"

        def accept() -> None:
            time.sleep(0.3)
            while True:
                with contextlib.suppress(OSError), listening.accept()[0] as accepted:
                    accepted.recv(1 << 16)
                    accepted.sendall(OK + b"\r\n{}")
                if listening.fileno() < 0:
                    return

        threading.Thread(target=accept, daemon=True).start()
        for caller in callers:
            caller.close()
        assert ask(str(path), "x", timeout=5, limit=1 << 20) == b"{}"
        listening.shutdown(socket.SHUT_RDWR)


def test_no_time_left_is_no_answer(tmp_path: Path) -> None:
    with serving(tmp_path / "s", sends(OK + b"\r\n{}")):
        assert refusal(tmp_path / "s", timeout=-1) == "it does not answer"


def test_a_path_too_long_for_an_address_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    with serving(folder / "s", sends(OK + b"\r\n{}")):
        assert ask(str(folder / "s"), "x", timeout=5, limit=100) == b"{}"


def test_what_is_no_socket_of_a_server_is_not_asked(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    with serving(real / "s", sends(OK + b"\r\n{}")) as asked:
        (real / "link").symlink_to("s")
        (tmp_path / "linked").symlink_to("real")
        (real / "file").write_text("")
        (real / "folder").mkdir()
        os.mkfifo(real / "pipe")
        for name in ("link", "file", "folder", "pipe"):
            assert refusal(real / name) == "something else is in place of its server's socket"
        assert refusal(tmp_path / "linked" / "s").startswith("its server is gone")
        assert refusal(tmp_path / "none" / "s") == "its server is gone (No such file or directory)"
        assert refusal(real / "none") == "its server is gone (No such file or directory)"
        assert not asked
    assert refusal(real / "s") == "its server is gone (Connection refused)"


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    for name in (".", "none"):
        refusal(tmp_path / name)
    assert len([*Path("/proc/self/fd").iterdir()]) == before
