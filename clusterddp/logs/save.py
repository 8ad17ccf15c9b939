"""Save every worker's output to files in a folder of the user's: raw bytes, at the same offsets as on the hosts.

    <folder>/run.json                            which run it is
    <folder>/<attempt>.<start>/rank3-gpu01-1.out  rank 3, on gpu01 as local rank 1
    <folder>/<attempt>/agent-gpu01.out            torchrun's own

Saving again continues where the files end. Output removed by the log limit is a hole, unless an earlier save has it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import weakref
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from clusterddp.errors import RunError
from clusterddp.logs.checked_frames import Lines, LogHeader
from clusterddp.logs.merge import FrameArrived
from clusterddp.project.user_folders import ForeignLinkError, open_folder
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.text.counted import counted
from clusterddp.remote.shared.wire.chunks import write_at
from clusterddp.remote.shared.wire.frames import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from clusterddp.logs.checked_frames import FilePart, LogFrame
    from clusterddp.logs.merge import Event
    from clusterddp.logs.resume import Offsets

_WORKER = re.compile(r"(\d+)\.(\d+)/(?:rank\d+|unknown)-(.+)-(\d+)\.(out|err)")
_AGENT = re.compile(r"(\d+)/agent-(.+)\.out")
_OWNER_FILE = "run.json"
_FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: do not block on a pipe with the file's name
_IN_THE_WAY = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR)

Key = tuple[int, str, str]  # attempt, host, file in the spool


class Saver:
    """Writes the frames of one run's logs to a folder, which is created with mode 0700 if missing.

    Raises ``RunError`` if the folder holds another run's output, ``OSError`` if it cannot be written.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self.bytes_written = 0
        self.paths_written: set[str] = set()
        self.attempts: dict[str, int] = {}  # host → the attempt its stream is of
        self._files = dict(self._existing_files())
        self._open_for(run)

    def _existing_files(self) -> Iterable[tuple[Key, str]]:
        """Yield the files of earlier saves in the folder, by their names."""
        for path in self.folder.glob("*/*"):
            name = path.relative_to(self.folder).as_posix()
            worker, agent = _WORKER.fullmatch(name), _AGENT.fullmatch(name)
            if worker:
                attempt, start, host, local_rank, stream = worker.groups()
                yield (int(attempt), unquote(host), f"{start}.{local_rank}.{stream}"), name
            elif agent:
                yield (int(agent[1]), unquote(agent[2]), "agent.out"), name

    def _open_for(self, run: str) -> None:
        """Open the folder, and record that it holds the output of this run; refuse one that holds another's."""
        try:
            self._root = open_folder(self.folder, missing_mode=0o700)
        except ForeignLinkError as error:
            raise RunError(f"{self.folder}: {error}, and is not followed", remedy="name another folder") from None
        weakref.finalize(self, os.close, self._root)
        record = self._read_record()
        owner = _run_of(record)
        if owner == run:
            return
        if owner:
            raise RunError(f"{self.folder} holds the output of run {owner}", remedy="name another folder")
        if self._files:
            raise RunError(f"{self.folder} holds output of a run that it does not name", remedy="name another folder")
        if record:
            raise RunError(f"{self.folder / _OWNER_FILE} is not of a saved run", remedy="name another folder")
        try:
            self._write(_OWNER_FILE, json.dumps({"run": run}).encode() + b"\n", 0)
        except RunError:
            self._remove_empty_record()
            raise

    def _remove_empty_record(self) -> None:
        """Remove a ``run.json`` that was created, but could not be written."""
        with contextlib.suppress(OSError):
            info = os.stat(_OWNER_FILE, dir_fd=self._root, follow_symlinks=False)
            if stat.S_ISREG(info.st_mode) and not info.st_size:
                os.unlink(_OWNER_FILE, dir_fd=self._root)

    def _read_record(self) -> bytes:
        """Return what ``run.json`` holds; nothing if it is no file that can be read."""
        try:
            handle = os.open(_OWNER_FILE, os.O_RDONLY | _FILE_FLAGS, dir_fd=self._root)
        except OSError:  # missing, or a link
            return b""
        with os.fdopen(handle, "rb") as file:
            return file.read(1 << 16) if stat.S_ISREG(os.fstat(handle).st_mode) else b""

    def offsets(self) -> Offsets:
        """Return the offset at which each file continues."""
        offsets: Offsets = {}
        for (attempt, host, file), name in self._files.items():
            offsets.setdefault(attempt, {}).setdefault(host, {})[file] = (self.folder / name).lstat().st_size
        return offsets

    def save(self, events: Iterable[Event]) -> None:
        """Write the output in a batch of events."""
        for event in events:
            if isinstance(event, FrameArrived):
                self._save_frame(event.host, event.frame)

    def _save_frame(self, host: str, frame: LogFrame) -> None:
        if isinstance(frame, LogHeader):
            self.attempts[host] = frame.attempt
        if isinstance(frame, Lines):
            for lines in frame.split():
                self._save_part(host, lines.part, lines.body)

    def _save_part(self, host: str, part: FilePart, body: bytes) -> None:
        if not body:
            return
        key = (self.attempts[host], host, part.file)
        name = self._files.setdefault(key, _name(key, part))
        self._write(name, body, part.offset)
        self.bytes_written += len(body)
        self.paths_written.add(name)

    def _write(self, name: str, data: bytes, offset: int) -> None:
        """Write into a file of the folder, creating it and its parent folder as needed; links are not followed."""
        try:
            handle = self._open(name)
            try:
                write_at(handle, data, offset)
            finally:
                os.close(handle)
        except OSError as error:
            taken = error.errno in _IN_THE_WAY
            why = "a link, or something else than a file or folder, has its name" if taken else error.strerror
            remedy = "save to a new folder" if taken else "make room there, or name another folder"
            raise RunError(f"{self.folder / name}: cannot be written ({why})", remedy=remedy) from error

    def _open(self, name: str) -> int:
        """Open a file of the folder for writing; ``OSError`` if it is no regular file."""
        *above, last = name.split("/")
        folder = os.dup(self._root)
        try:
            for folder_name in above:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder_name, 0o700, dir_fd=folder)
                inner = os.open(folder_name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = inner
            handle = os.open(last, os.O_WRONLY | os.O_CREAT | _FILE_FLAGS, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return handle

    def summary(self) -> str:
        """Return a message for the user about what was written."""
        count = len(self.paths_written)
        return f"{counted(self.bytes_written, 'byte')} written to {counted(count, 'file')} in {self.folder}"


def _name(key: Key, part: FilePart) -> str:
    """The path of a file below the folder."""
    attempt, host, _ = key
    escaped_host = quote(host, safe="")
    if part.local_rank is None:
        return f"{attempt}/agent-{escaped_host}.out"
    rank = "unknown" if part.rank is None else f"rank{part.rank}"
    return f"{attempt}.{part.start}/{rank}-{escaped_host}-{part.local_rank}.{part.stream}"


def _run_of(data: bytes) -> str | None:
    try:
        return Fields(parse_json(data)).text("run")
    except ValueError:  # not a record that we wrote
        return None
