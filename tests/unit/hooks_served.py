"""A web server of the test's own that keeps what it is told."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Served(ThreadingHTTPServer):
    """Keeps each JSON object that it is sent in ``told``; answers by ``codes``, in turn, then 204; hangs if told to."""

    daemon_threads = True

    def __init__(self, address: str) -> None:
        super().__init__((address, 0), _Handler)
        self.told: list[Any] = []
        self.codes: list[int] = []
        self.location = ""  # where a redirect leads
        self.authorized: list[str | None] = []  # what each request has shown of who asks
        self.called, self.hung = threading.Event(), threading.Event()
        self.hung.set()

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}/hooks/very-secret"


class _Handler(BaseHTTPRequestHandler):
    server: Served

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.authorized.append(self.headers["Authorization"])
        self.server.called.set()
        self.server.hung.wait(60)
        code = self.server.codes.pop(0) if self.server.codes else 204
        if code < 300:
            self.server.told.append(body)
        with contextlib.suppress(OSError):  # who called has left
            self.send_response(code)
            if self.server.location:
                self.send_header("Location", self.server.location)
            self.end_headers()

    def do_GET(self) -> None:
        self.server.authorized.append(self.headers["Authorization"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def served(address: str = "127.0.0.1") -> Iterator[Served]:
    """One that serves while the context lasts."""
    with Served(address) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.hung.set()
            server.shutdown()
            thread.join()
