"""A real helper on this machine, whose answers the simulated hosts give: each question is put to it once."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterddp.hosts.client import Host
from clusterddp.hosts.ssh import Connector
from clusterddp.inventory import HostEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


class Piece(NamedTuple):
    """A part of an answer: a frame's header, without the request's id, and its body."""

    header: Mapping[str, Any]
    body: bytes


def result(value: Any) -> Piece:
    """The end of an answer."""
    return Piece({"kind": "end"}, json.dumps(value).encode())


class Template:
    """The helper, and what it has answered so far. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.state = str(folder / "state")
        entry = HostEntry(name="template", address="127.0.0.1", connection="local", state=self.state)
        self._connector = Connector()
        self._host = Host.open(entry, self._connector)
        self._lock = threading.Lock()
        self._made: dict[object, Any] = {}

    def close(self) -> None:
        """End the helper."""
        self._host.close()
        self._connector.close()

    @property
    def hello(self) -> Any:
        """What it has said of itself."""
        return self._host.hello

    def ask(self, operation: str, args: Mapping[str, Any], data: bytes = b"") -> list[Piece]:
        """Its answer; the same question is not put again. Raises HelperError as the helper refuses."""
        key = operation, json.dumps(args, sort_keys=True), data
        pieces: list[Piece] = self.once(key, lambda: self.put(operation, args, data))
        return pieces

    def value(self, operation: str, args: Mapping[str, Any]) -> Any:
        """The JSON value of its answer."""
        return json.loads(self.ask(operation, args)[-1].body)

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """What ``make`` returned for this key the first time."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def forget(self) -> None:
        """Put every question anew: what it is asked about has changed."""
        with self._lock:
            self._made.clear()

    def put(self, operation: str, args: Mapping[str, Any], data: bytes = b"") -> list[Piece]:
        """Its answer, asked in any case."""
        if data:
            return [result(self._host.upload(operation, args, [data]))]
        frames = self._host.stream(operation, args)
        return [Piece({name: value for name, value in header.items() if name != "id"}, body) for header, body in frames]
