"""Hosts whose operations are threads of this process, with the real frames in real pipes between: many for little."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError
from clusterddp.hosts.answers import DEFAULT_LIMIT, Limit, parse_answer
from clusterddp.hosts.outgoing import Outgoing
from clusterddp.inventory import HostEntry
from clusterddp.remote.helper.request import Request
from clusterddp.remote.shared.wire.frames import Decoder, Frame, encode
from clusterddp.remote.system.bootstrap import Refused
from clusterddp.remote.user_files import push_operations

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping
    from pathlib import Path


@dataclass
class ThreadHost:
    """A host whose operations are threads of this process, with the real frames between."""

    place: Path
    name: str
    entry: HostEntry
    sent: int = 0  # bytes to it

    @classmethod
    def made(cls, place: Path, name: str) -> ThreadHost:
        """With a state folder and a workdir below ``place``; on this machine, as all of them."""
        here = place / name
        (here / "state").mkdir(parents=True, mode=0o700)
        return cls(
            here, name, HostEntry(name=name, address="127.0.0.1", workdir=str(here / "work"), ports=(29500, 29999))
        )

    @property
    def hello(self) -> SimpleNamespace:
        return SimpleNamespace(state=str(self.place / "state"))

    def call(
        self, op: str, args: Mapping[str, Any], *, timeout: float | None = None, limit: Limit = DEFAULT_LIMIT
    ) -> Any:
        return self.upload(op, args, (), timeout=timeout, limit=limit)

    def upload(
        self,
        op: str,
        args: Mapping[str, Any],
        chunks: Iterable[bytes],
        *,
        timeout: float | None = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> Any:
        del timeout
        outgoing = Outgoing()

        def write() -> None:
            for chunk in chunks:
                outgoing.send(chunk)
            outgoing.end()

        threading.Thread(target=write, daemon=True).start()
        *_, last = self.stream(op, args, outgoing)
        return parse_answer(last.body, limit)

    def stream(
        self, op: str, args: Mapping[str, Any], outgoing: Outgoing, *, limit: Limit = DEFAULT_LIMIT
    ) -> Generator[Frame]:
        del limit  # of the answer, which whoever reads it keeps to
        given, writing = os.pipe()
        sink = os.fdopen(writing, "wb", buffering=0)  # who writes late must not meet another's pipe of that number
        source, taken = os.pipe()
        lock = threading.Lock()
        request = Request(1, {**args, "state": str(self.place / "state")}, given, taken)

        def work() -> None:
            try:
                request.finish(getattr(push_operations, op)(request))
            except Refused as error:
                request.fail(error.message, error.remedy)
            except EOFError:  # the operator has left
                pass
            finally:
                os.close(given)
                os.close(taken)

        def write(header: Mapping[str, Any], body: bytes) -> None:
            self.sent += len(body)
            data = memoryview(encode({"id": 1, **header}, body))
            with lock, contextlib.suppress(OSError, ValueError):  # the operation has ended
                while data:
                    data = data[sink.write(data) :]

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        own = os.dup(taken)

        def leave() -> None:
            with contextlib.suppress(OSError):
                os.write(own, encode({"id": 1, "kind": "left"}))

        outgoing.attach(write, leave)
        try:
            yield from self._frames(source, outgoing, write)
        finally:
            outgoing.detach()
            sink.close()
            thread.join()
            os.close(source)
            os.close(own)

    def _frames(self, source: int, outgoing: Outgoing, write: Any) -> Generator[Frame]:
        decoder = Decoder()
        while data := os.read(source, 1 << 16):
            for frame in decoder.feed(data):
                kind = frame.header["kind"]
                if kind == "left":
                    return
                if kind == "credit":
                    outgoing.grant(frame.header["n"])
                elif kind == "error":
                    raise HelperError(self.name, frame.header["message"])
                else:
                    write({"kind": "credit", "n": len(frame.body)}, b"")
                    yield frame
                    if kind == "end":
                        return
