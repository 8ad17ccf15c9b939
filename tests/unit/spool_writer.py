"""A spool as a run leaves it, written by the test; and the operation ``tail`` on it, in this process."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any, Protocol

from clusterddp.logs.checked_frames import Lines
from clusterddp.logs.incoming import check_frames, read_frame
from clusterddp.remote.logs.tail import tail
from clusterddp.remote.logs.time_index import IndexWriter
from clusterddp.remote.shared.schema.record import read_record
from clusterddp.remote.shared.wire.frames import Frame
from clusterddp.remote.spool.events import append_event
from tests.unit.plan_made import plan_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from clusterddp.logs.checked_frames import LogFrame
    from clusterddp.remote.shared.logs.tail_request import TailRequest

SECOND = 10**9
LIMIT = 20.0  # seconds a test waits for an event before it fails


class HasFolder(Protocol):
    """What has a spool's folder."""

    @property
    def folder(self) -> Path: ...


class Writer:
    """Writes a spool; the clock of the index is the test's."""

    def __init__(self, base: Path, node: str = "0-h") -> None:
        self.folder = base / "runs" / "run1" / "0" / node
        self.logs = self.folder / "logs"
        self.logs.mkdir(parents=True)
        self.index = IndexWriter(str(self.logs))
        self.clock = 1_700_000_000 * SECOND
        self.latest = ""  # the stream that ``print`` wrote last
        (self.folder / "plan.json").write_text(plan_text(clock_offset_ns=0, clock_error_ns=2_000_000))

    def start(self, local_rank: int, rank: int, start: int = 0) -> None:
        append_event(str(self.folder / "events.jsonl"), "worker_started", start=start, local_rank=local_rank, rank=rank)

    def exit(self, local_rank: int, rank: int, code: int = 0) -> None:
        fields = {"start": 0, "local_rank": local_rank, "rank": rank, "exit_code": code}
        append_event(str(self.folder / "events.jsonl"), "worker_exited", **fields)

    def write(self, name: str, data: bytes) -> None:
        with (self.logs / name).open("ab") as file:
            file.write(data)

    def print(self, stream: str, data: bytes) -> None:
        """Write as a worker with the start-up hook: first a mark if the last write was to the other stream."""
        if self.latest not in ("", stream):
            sizes = [self.size(name) for name in ("0.0.out", "0.0.err")]
            self.write("0.0.order.idx", b"\n%d %d\n" % tuple(sizes))
        self.latest = stream
        self.write("0.0." + stream, data)

    def size(self, name: str) -> int:
        path = self.logs / name
        return path.stat().st_size if path.exists() else 0

    def note(self, seconds: float = 1.0) -> int:
        """Let time pass and the supervisor look; returns the time."""
        self.clock += int(seconds * SECOND)
        for path in self.logs.iterdir():
            os.utime(path, ns=(self.clock, self.clock))
        self.index.poll(self.clock)
        return self.clock

    def say(self, name: str, data: bytes, seconds: float = 1.0) -> int:
        self.write(name, data)
        return self.note(seconds)

    def end(self, exit_code: int = 0) -> None:
        self.index.finish(self.clock)
        temporary = self.folder / "exit.tmp"
        temporary.write_text(json.dumps({"state": "succeeded", "exit_code": exit_code, "reason": ""}))
        temporary.rename(self.folder / "exit.json")


def _split(frame: Frame) -> Iterator[Frame]:
    """A frame of two files as one for each piece."""
    lines = read_frame(frame)
    assert isinstance(lines, Lines)
    for one in lines.split():
        header = {name: value for name, value in one.part._asdict().items() if value or name not in {"time", "dropped"}}
        yield Frame(header, one.body)


class Tail:
    """The operation running in a thread; its frames as they come, those of two files as one for each piece.

    Args:
        writer: Whose spool it reads.
        as_sent: Frames of two files stay whole.
        args: The operation's.
    """

    def __init__(self, writer: HasFolder, *, as_sent: bool = False, **args: Any) -> None:
        self._as_sent = as_sent
        self.args = {"spool": str(writer.folder), **args}
        self.frames: list[Frame] = []
        self.result: Any = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run)

    def read_args(self, kind: type[TailRequest]) -> TailRequest:
        return read_record(kind, self.args, "arguments")

    def send(self, body: bytes, **header: Any) -> None:
        self.send_frame(Frame(header, body))

    def send_frame(self, frame: Frame) -> None:
        with self._changed:
            split = "pieces" in frame.header and not self._as_sent
            self.frames.extend(_split(frame) if split else [frame])
            self._changed.notify_all()

    def _run(self) -> None:
        self.result = tail(self)  # type: ignore[arg-type]

    def check_frames(self) -> list[LogFrame]:
        """Its frames as the operator lets them in."""

        def sent() -> Generator[Frame]:
            for frame in self.frames:
                yield Frame({"kind": "data", **frame.header}, frame.body)

        return list(check_frames(sent(), "h", "run1", 0))

    def begin(self) -> Tail:
        self._thread.start()
        return self

    def wait(self, wanted: Callable[[Tail], object]) -> Tail:
        with self._changed:
            assert self._changed.wait_for(lambda: wanted(self), LIMIT), self.frames
        return self

    def finish(self) -> Tail:
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()
        return self

    @property
    def data(self) -> list[Frame]:
        return [frame for frame in self.frames if frame.body]

    def text(self, name: str = "0.0.out") -> bytes:
        return b"".join(frame.body for frame in self.data if frame.header["file"] == name)


def read(writer: HasFolder, **args: Any) -> Tail:
    """A whole read."""
    return Tail(writer, **args).begin().finish()


def times(tail: Tail, name: str = "0.0.out") -> dict[int, int]:
    """Offset of each line's end → its time."""
    found = {}
    for frame in tail.data:
        if frame.header["file"] == name:
            end = frame.header["offset"]
            for line in frame.body.splitlines(keepends=True):
                end += len(line)
                found[end] = frame.header["time"]
    return found


def caught_up(tail: Tail) -> bool:
    return any(frame.header.get("caught_up") for frame in tail.frames)
