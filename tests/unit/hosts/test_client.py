"""A host that answers pings and nothing else holds nobody up for longer than the caller says."""

from __future__ import annotations

import queue
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import HelperError
from clusterddp.hosts.client import Host
from clusterddp.hosts.outgoing import Outgoing
from clusterddp.hosts.zipapp import MAGIC_WORD
from clusterddp.inventory import HostEntry
from clusterddp.remote.shared.wire.frames import PROTOCOL, Decoder, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

HELLO = {
    "id": 0,
    "kind": "hello",
    "protocol": PROTOCOL,
    "uid": 0,
    "pid": 1,
    "time_ns": 1,
    **dict.fromkeys(("python", "executable", "boot", "state", "home"), "/x"),
    "unwritable": "",
    "remedy": "",
}


class PingedPipe:
    """A pipe to a helper that answers pings, and the request ``some`` with one data frame and no end."""

    def __init__(self) -> None:
        self._decoder, self._out, self._begun = Decoder(), queue.Queue[bytes](), False

    def read(self, _: int) -> bytes:
        return self._out.get()

    def write(self, data: bytes) -> None:
        if not self._begun:  # the code's opening
            self._begun = True
            self._out.put(f"{MAGIC_WORD} have\n".encode() + encode(HELLO))
            return
        for frame in self._decoder.feed(data):
            if frame.header.get("op") == "ping":
                self._out.put(encode({"id": frame.header["id"], "kind": "end", "time_ns": time.time_ns()}))
            if frame.header.get("op") == "some":
                self._out.put(encode({"id": frame.header["id"], "kind": "data"}, b"one"))

    def close(self) -> None:
        self._out.put(b"")


@pytest.fixture
def host() -> Iterator[Host]:
    connector: Any = SimpleNamespace(open=lambda _entry, _command: PingedPipe())
    code: Any = SimpleNamespace(opening=lambda **_: b"", digest="")
    with Host.open(HostEntry(name="gpu00", address="gpu00"), connector, code) as opened:
        yield opened


@pytest.mark.parametrize("outgoing", [None, Outgoing()])
def test_a_stream_ends_where_no_frame_comes_in_time(host: Host, outgoing: Outgoing | None) -> None:
    with pytest.raises(HelperError, match="gpu00: the operation took too long"):
        next(host.stream("none", {}, outgoing, patience=0.1))


def test_each_frame_of_a_stream_has_its_own_time_and_the_readers_does_not_count(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = host.stream("some", {}, patience=0.3)
    assert next(frames).body == b"one"
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 0.4)  # the reader was busy for so long
    began = time.monotonic()
    with pytest.raises(HelperError, match="took too long"):
        next(frames)
    assert time.monotonic() - began > 0.2
