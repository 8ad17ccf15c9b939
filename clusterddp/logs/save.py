"""Every worker's output as files in a folder of the user's: raw bytes, at the offsets they have on the hosts.

    <folder>/run.json                            which run it is
    <folder>/<attempt>.<start>/rank3-gpu01-1.out  rank 3, on gpu01 as local rank 1
    <folder>/<attempt>/agent-gpu01.out            torchrun's own

A second time goes on where the files end. What the log limit took is a hole, unless an earlier save has it.
Not here: which lines, and from where (selection.py).
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from clusterddp.errors import RunError
from clusterddp.folders import make_private
from clusterddp.logs.merge import FrameArrived
from clusterddp.remote.shared.counted import counted
from clusterddp.remote.shared.fields import Fields
from clusterddp.remote.shared.frames import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from clusterddp.logs.merge import Event
    from clusterddp.logs.resume import Offsets
    from clusterddp.remote.shared.frames import Frame

_WORKER = re.compile(r"(\d+)\.(\d+)/(?:rank\d+|unknown)-(.+)-(\d+)\.(out|err)")
_AGENT = re.compile(r"(\d+)/agent-(.+)\.out")
_MARK = "run.json"

Key = tuple[int, str, str]  # attempt, host, file in the spool


class Saver:
    """Writes the frames of one run's logs to a folder.

    Args:
        folder: Made (0700) when missing.
        run: The run id.

    Raises:
        RunError: the folder holds another run's output.
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self.written = 0  # bytes
        self.touched: set[str] = set()
        self.attempts: dict[str, int] = {}  # host → the attempt its stream is of
        self._files = dict(self._found())
        self._claim(run)

    def _found(self) -> Iterable[tuple[Key, str]]:
        for path in self.folder.glob("*/*"):
            name = path.relative_to(self.folder).as_posix()
            worker, agent = _WORKER.fullmatch(name), _AGENT.fullmatch(name)
            if worker:
                attempt, start, host, local_rank, stream = worker.groups()
                yield (int(attempt), unquote(host), f"{start}.{local_rank}.{stream}"), name
            elif agent:
                yield (int(agent[1]), unquote(agent[2]), "agent.out"), name

    def _claim(self, run: str) -> None:
        mark = self.folder / _MARK
        owner = _run_of(mark.read_bytes()) if mark.exists() else None
        if owner == run:
            return
        if owner:
            raise RunError(f"{self.folder} holds the output of run {owner}", remedy="name another folder")
        if self._files:
            raise RunError(f"{self.folder} holds output of a run that it does not name", remedy="name another folder")
        make_private(self.folder)
        self._write(mark, json.dumps({"run": run}).encode() + b"\n", 0)

    def offsets(self) -> Offsets:
        """Where each file goes on."""
        offsets: Offsets = {}
        for (attempt, host, file), name in self._files.items():
            offsets.setdefault(attempt, {}).setdefault(host, {})[file] = (self.folder / name).stat().st_size
        return offsets

    def save(self, events: Iterable[Event]) -> None:
        """Write what a batch of events brings."""
        for event in events:
            if isinstance(event, FrameArrived):
                self._take(event.host, event.frame)

    def _take(self, host: str, frame: Frame) -> None:
        header = frame.header
        if header.get("hello"):
            self.attempts[host] = header["attempt"]
        if "file" not in header or not frame.body:
            return
        key = (self.attempts[host], host, header["file"])
        name = self._files.setdefault(key, _name(key, header))
        self._write(self._inside(name), frame.body, header["offset"])
        self.written += len(frame.body)
        self.touched.add(name)

    def _inside(self, name: str) -> Path:
        """A file's place, in a folder of its own; whatever its name is, it is in ours, and so is what it leads to."""
        path = self.folder / name
        whole = path.resolve()
        if whole.parent.parent != self.folder.resolve():
            raise RunError(f"{path} is not in {self.folder}", remedy="save to a new folder")
        whole.parent.mkdir(mode=0o700, exist_ok=True)
        return whole

    @staticmethod
    def _write(path: Path, data: bytes, offset: int) -> None:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                view = memoryview(data)
                while view:
                    done = os.pwrite(handle, view, offset)
                    view, offset = view[done:], offset + done
            finally:
                os.close(handle)
        except OSError as error:
            remedy = "make room there, or name another folder"
            raise RunError(f"{path}: cannot be written ({error.strerror})", remedy=remedy) from error

    def summary(self) -> str:
        """What was written, for the user."""
        count = len(self.touched)
        return f"{counted(self.written, 'byte')} written to {counted(count, 'file')} in {self.folder}"


def _name(key: Key, header: Mapping[str, Any]) -> str:
    attempt, host, _ = key
    place = quote(host, safe="")
    if header["local_rank"] is None:
        return f"{attempt}/agent-{place}.out"
    rank = "unknown" if header["rank"] is None else f"rank{header['rank']}"
    return f"{attempt}.{header['start']}/{rank}-{place}-{header['local_rank']}.{header['stream']}"


def _run_of(data: bytes) -> str | None:
    try:
        return Fields(parse_json(data)).text("run")
    except ValueError:  # it is no record of ours
        return None
