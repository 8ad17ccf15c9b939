"""The stopped workers of a node: what hostile ones leave in the spool is not believed, and only one may attach."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.helper.request import Request
from clusterddp.remote.processes import debug_stops
from clusterddp.remote.shared.wire.frames import Decoder, encode
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.system.bootstrap import Refused
from clusterddp.remote.system.clock import boot_clock
from tests.unit.operation import run_operation

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = f"0.1.{os.getpid()}.1"
RECORD = {"cause": "breakpoint()", "file": "/w/train.py", "line": 7, "function": "step", "until": 1e9}


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    """A spool of one worker, this process, of rank 3."""
    made = Spool(str(tmp_path))
    (tmp_path / "debug").mkdir()
    made.event("worker_started", start=0, local_rank=1, rank=3, pid=os.getpid())
    return made


@contextlib.contextmanager
def listening(spool: Spool, name: str = NAME, record: Any = RECORD) -> Iterator[socket.socket]:
    """A stop as the worker makes it."""
    folder = os.open(spool.debug, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{folder}/{name}")
        listener.listen()
        Path(spool.debug, name + ".json").write_text(record if isinstance(record, str) else json.dumps(record))
        yield listener
    os.close(folder)


def listed(spool: Spool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_operation(debug_stops.debug_stops, {"spool": spool.folder})
    return found


def test_a_stop_is_told_with_the_rank_that_the_host_knows(spool: Spool) -> None:
    with listening(spool, record={**RECORD, "until": boot_clock() + 100}):
        (stop,) = listed(spool)
    assert 90 < stop.pop("left") <= 100
    assert stop == {
        "name": NAME, "rank": 3, "local_rank": 1, "pid": os.getpid(), "child": False, "cause": "breakpoint()",
        "file": "/w/train.py", "line": 7, "function": "step", "attached": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "record"),
    [
        (NAME, "{"),
        (NAME, "[" * 100_000),
        (NAME, {**RECORD, "line": -1}),
        (NAME, {**RECORD, "until": None}),
        (NAME, {**RECORD, "file": "x" * 100_000}),
        (f"1.1.{os.getpid()}.1", RECORD),  # of a worker that is none
        ("0.1.1.1", RECORD),  # of a process that does not listen
        ("0.1.x.1", RECORD),
        ("0.1.99999999999999999999.1", RECORD),
    ],
    ids=["json", "nested", "line", "until", "long", "no worker", "no listener", "no pid", "no number"],
)
def test_what_is_no_stop_is_left_out(spool: Spool, name: str, record: Any) -> None:
    with listening(spool, name, record):
        assert listed(spool) == []


def test_one_that_has_ended_and_links_are_left_out(spool: Spool, tmp_path: Path) -> None:
    with listening(spool):
        pass
    assert listed(spool) == []
    with listening(spool, f"0.1.{os.getpid()}.2"):
        (tmp_path / "debug" / f"0.1.{os.getpid()}.3.json").symlink_to(f"0.1.{os.getpid()}.2.json")
        (tmp_path / "debug" / f"0.1.{os.getpid()}.3").symlink_to(f"0.1.{os.getpid()}.2")
        os.mkfifo(tmp_path / "debug" / f"0.1.{os.getpid()}.4.json")
        assert [stop["name"] for stop in listed(spool)] == [f"0.1.{os.getpid()}.2"]
    (tmp_path / "debug").rename(tmp_path / "other")
    assert listed(spool) == []


@pytest.mark.parametrize("name", ["../lock", "0.1.2.3/x", "a", "0.1.2.3\n"])
def test_no_other_file_is_connected_to(spool: Spool, name: str) -> None:
    with pytest.raises((ValueError, Refused)):
        run_operation(debug_stops.debug, {"spool": spool.folder, "name": name})


def test_a_link_in_place_of_the_socket_is_refused(spool: Spool, tmp_path: Path) -> None:
    with listening(spool, "0.1.2.3"):
        (tmp_path / "debug" / NAME).symlink_to("0.1.2.3")
        with pytest.raises(Refused, match="does not wait there any more"):
            run_operation(debug_stops.debug, {"spool": spool.folder, "name": NAME})


class Attached:
    """An operation ``debug`` in a thread of its own, over real pipes, as a helper's child runs it."""

    def __init__(self, spool: Spool) -> None:
        self._said, sink = os.pipe()
        source, self._orders = os.pipe()
        self._handles = [self._said, sink, source, self._orders]
        request = Request(1, {"spool": spool.folder, "name": NAME}, source, sink)
        self._thread = threading.Thread(target=debug_stops.debug, args=(request,))
        self._thread.start()

    def send(self, kind: str, body: bytes = b"") -> None:
        os.write(self._orders, encode({"id": 1, "kind": kind}, body))

    def data(self) -> bytes:
        frames = Decoder().feed(os.read(self._said, 1 << 16))
        return b"".join(frame.body for frame in frames if frame.kind == "data")

    def end(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()
        for handle in self._handles:
            os.close(handle)


def test_bytes_go_both_ways_and_a_second_operator_is_refused_until_the_first_has_left(spool: Spool) -> None:
    with listening(spool) as listener:
        attached = Attached(spool)
        worker, _ = listener.accept()
        assert [stop["attached"] for stop in listed(spool)] == [True]
        with pytest.raises(Refused, match="somebody else is attached"):
            run_operation(debug_stops.debug, {"spool": spool.folder, "name": NAME})
        attached.send("data", b"n\n")
        assert worker.recv(10) == b"n\n"
        worker.sendall(b"(Pdb) ")
        while attached.data() != b"(Pdb) ":  # its grant comes first
            pass
        attached.send("end")
        assert worker.recv(10) == b""
        worker.close()
        attached.end()
        assert [stop["attached"] for stop in listed(spool)] == [False]
        assert {path.name for path in Path(spool.debug).iterdir()} == {NAME, NAME + ".json"}
