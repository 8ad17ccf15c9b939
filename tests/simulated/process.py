"""The process of the simulated hosts: each connection to its socket is a byte pipe to the host named on the first line.

    python -m tests.simulated.process SETTINGS      (JSON: socket, folder, lines, faults by host)

The name ``-`` asks for the figures since the last such question: bytes and requests by operation, as a line of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError
from clusterddp.hosts.zipapp import MAGIC_WORD
from clusterddp.remote.shared.wire.frames import CREDIT, MAX_BODY, PER_FRAME, Decoder, encode
from tests.simulated.answers import OPEN_ENDED, Hosts, Question
from tests.simulated.faults import NO_FAULT, Fault
from tests.simulated.template import Template

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterddp.remote.shared.wire.frames import Frame
    from tests.simulated.template import Piece

STATISTICS = "-"
BACKLOG = 4096


class Served:
    """Everything the connections share."""

    def __init__(self, hosts: Hosts, faults: Mapping[str, Fault]) -> None:
        self.hosts, self.faults = hosts, faults
        self.counts: Counter[str] = Counter()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            name = (await reader.readline()).decode().strip()
            if name == STATISTICS:
                writer.write(json.dumps(self.counts).encode() + b"\n")
                self.counts.clear()
                await writer.drain()
            elif name:
                await Connection(self, name, reader, writer).serve()
        writer.close()


class Connection:
    """One connection to one host: what its helper would do with the frames."""

    def __init__(self, served: Served, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._served, self._name, self._reader, self._writer = served, name, reader, writer
        self._fault = served.faults.get(name, NO_FAULT)
        self._silent = False
        self._requests: dict[int, _Request] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Read the opening, say hello, and answer until the operator leaves."""
        await self._read_opening()
        self._write(MAGIC_WORD.encode() + b" have\n" + encode(self._served.hosts.hello(self._name)))
        decoder = Decoder()
        try:
            while data := await self._reader.read(1 << 16):
                self._served.counts["bytes to hosts"] += len(data)
                for frame in decoder.feed(data):
                    self._take(frame)
        finally:
            for task in self._tasks:
                task.cancel()

    async def _read_opening(self) -> None:
        """Read what every connection begins with (hosts/zipapp.py).

        Two interpreters, a program, what that program reads, the state folder.
        """
        lines = [await self._reader.readline() for _ in range(3)]
        program = await self._reader.readexactly(int(lines[2]))
        more = sum(int(size) for size in re.findall(rb"\bi\.read\((\d+)\)", program))
        await self._reader.readexactly(more)
        lines.append(await self._reader.readline())
        self._served.counts["bytes to hosts"] += sum(map(len, lines)) + len(program) + more

    def _write(self, data: bytes) -> None:
        if not self._silent:
            self._served.counts["bytes from hosts"] += len(data)
            self._writer.write(data)

    def _take(self, frame: Frame) -> None:
        """Take one frame of the operator's."""
        header, ident = frame.header, frame.header.get("id", 0)
        kind = frame.kind
        if kind == "req" and header["op"] == "ping":
            if self._fault.silent and not self._fault.operation:
                self._silent = True
            self._write(encode({"id": ident, "kind": "end", "time_ns": time.time_ns()}))
        elif kind == "req":
            self._served.counts[header["op"]] += 1
            request = self._requests[ident] = _Request(header)
            task = asyncio.get_running_loop().create_task(self._answer(ident, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif ident in self._requests:
            if kind == "data" and frame.body:
                self._write(encode({"id": ident, "kind": "credit", "n": len(frame.body)}))
            self._requests[ident].take(frame)

    async def _answer(self, ident: int, request: _Request) -> None:
        """Answer one request, when it is complete; one that is answered before it ends, at once."""
        if request.operation not in OPEN_ENDED:
            await request.complete.wait()
        fault = self._fault if self._fault.concerns(request.operation) else NO_FAULT
        self._silent = self._silent or fault.silent
        if fault.delay:
            await asyncio.sleep(fault.delay)
        try:
            pieces = self._served.hosts.answer(request.question(self._name))
        except HelperError as error:
            self._write(encode({"id": ident, "kind": "error", "message": error.message, "remedy": error.remedy}))
            return
        except Exception as error:  # noqa: BLE001 - a bug here must not look like a silent host
            self._write(encode({"id": ident, "kind": "error", "message": f"simulated host: {error!r}"}))
            return
        for piece in pieces:
            if piece.header["kind"] == "end":
                await request.complete.wait()
            await self._send(ident, request, piece, fault)
        del self._requests[ident]

    async def _send(self, ident: int, request: _Request, piece: Piece, fault: Fault) -> None:
        """Send a piece in as many frames as it needs, each once there is credit; a host that dies sends half of it."""
        header, body = piece
        last = max(0, (len(body) - 1) // MAX_BODY * MAX_BODY) if header["kind"] == "end" else 0
        for start in range(0, last, MAX_BODY):
            while request.credit <= 0:
                await request.granted.wait()
                request.granted.clear()
            request.credit -= MAX_BODY + PER_FRAME
            part = body[start : start + MAX_BODY]
            self._write(encode({"id": ident, "kind": "data", "result": True}, part))
        data = encode({**header, "id": ident}, body[last:])
        if fault.dies:
            self._write(data[: len(data) // 2])
            await self._writer.drain()
            self._writer.close()
            return
        self._write(data)
        await self._writer.drain()


class _Request:
    """A request, as far as it has come."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        self.operation, self._args = header["op"], header.get("args") or {}
        self._parts_left = int(header.get("parts", 0))
        self._text, self._data = bytearray(), bytearray()
        self.complete, self.granted = asyncio.Event(), asyncio.Event()
        self.credit = CREDIT

    def take(self, frame: Frame) -> None:
        """Take a frame of the request."""
        if frame.kind == "args":
            self._text += frame.body
        elif frame.kind == "data":
            self._data += frame.body
        elif frame.kind == "credit":
            self.credit += frame.header["n"]
            self.granted.set()
        elif frame.kind == "end":
            self.complete.set()

    def question(self, host: str) -> Question:
        """The whole request."""
        return Question(host, self.operation, self._args, bytes(self._text), bytes(self._data))


async def _serve(settings: Mapping[str, Any]) -> None:
    """Serve until stdin is closed: whoever started this process has ended."""
    faults = {name: Fault(**fields) for name, fields in settings["faults"].items()}
    template = Template(Path(settings["folder"]))
    served = Served(Hosts(template, settings["lines"]), faults)
    server = await asyncio.start_unix_server(served.connected, settings["socket"], backlog=BACKLOG)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    template.close()


def main() -> None:
    """Serve the hosts of the settings on the command line."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(_serve(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
