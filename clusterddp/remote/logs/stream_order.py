"""The order of a worker's stdout and stderr, from the marks of its start-up hook.

Beside the output files lies ``<start>.<local_rank>.order.idx``, lines ``<out> <err>``: when the worker changed from one
stream to the other, the files had these sizes. So what lies below a mark in either file was written before all that
lies above it in both. A full file of marks becomes ``….order.old.idx``, in place of the one before.

A line stands where it ends. Lines that no mark parts (of C code, of child processes) stand by the time index; where
that says the same time, stdout comes first. Job code can write any marks: they may change the order of its lines, and
nothing else.
"""

import os
import re
import time
from array import array
from bisect import bisect_left, bisect_right
from typing import Any, Container, Dict, Iterable, Iterator, List, Optional, Tuple, Union

from .files import Chunk, LogFile
from .time_index import SUFFIX, regular

MOST = 8 << 20  # bytes of one file of marks that are read: twice what the hook writes
HOLD_LIMIT = 0.5  # seconds that a line waits for the time of one that was written before it
READ_AHEAD = 128 << 10  # bytes
TRIM = 4096  # marks that were passed and are kept
_MARK = re.compile(rb"^([0-9]{1,16}) ([0-9]{1,16})\n", re.MULTILINE)
_NEVER = 1 << 63  # ns: after all times

OUT, ERR = 0, 1
Head = Tuple[int, int, int]  # marks before the next line, its time, its stream


class OrderMarks:
    """The marks of one start of a worker, as far as they were read.

    Args:
        stem: Path of its output files without ``.out`` and ``.err``.
    """

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self._path = stem + ".order" + SUFFIX
        self._inode = 0
        self._offset = 0
        self._sizes: "Tuple[array[Any], array[Any]]" = (array("q"), array("q"))

    def refresh(self) -> None:
        """Read what was added."""
        try:
            info = os.stat(self._path)
            if (info.st_ino, info.st_size) == (self._inode, self._offset):
                return
            data = self._read()
            limits = os.stat(self._stem + ".out").st_size, os.stat(self._stem + ".err").st_size
        except OSError:  # no marks, or no file of the worker's any more
            return
        out, err = self._sizes
        latest = (out[-1], err[-1]) if out else (0, 0)
        for found in _MARK.finditer(data):
            mark = int(found[1]), int(found[2])
            # A true one never says less than the one before, nor more than there is.
            if latest != mark and latest[0] <= mark[0] <= limits[0] and latest[1] <= mark[1] <= limits[1]:
                latest = mark
                out.append(mark[0])
                err.append(mark[1])

    def _read(self) -> bytes:
        """The bytes of all marks that were added, also of those in a file that is full by now."""
        older = b""
        with open(self._path, "rb", opener=regular) as source:
            info = os.fstat(source.fileno())
            if info.st_ino != self._inode or info.st_size < self._offset:
                older = self._rest_of_older()
                self._inode, self._offset = info.st_ino, 0
            source.seek(max(self._offset, info.st_size - MOST))
            data = source.read(MOST)
            whole = data.rfind(b"\n") + 1
            self._offset = source.tell() - len(data) + whole
        return older + b"\n" + data[:whole]

    def _rest_of_older(self) -> bytes:
        path = self._stem + ".order.old" + SUFFIX
        try:
            with open(path, "rb", opener=regular) as source:
                info = os.fstat(source.fileno())
                begin = self._offset if info.st_ino == self._inode else 0
                source.seek(max(begin, info.st_size - MOST))
                return source.read(MOST)
        except OSError:  # there is none
            return b""

    def latest(self, stream: int) -> int:
        """How large a file was at the last mark."""
        sizes = self._sizes[stream]
        return int(sizes[-1]) if sizes else 0

    def before(self, stream: int, end: int) -> int:
        """The number of marks written before the stream's data up to offset ``end`` was complete."""
        return bisect_left(self._sizes[stream], end)

    def next_after(self, stream: int, marks: int, limit: int) -> int:
        """The offset at which mark number ``marks`` ends the current run of one stream; at most ``limit``."""
        sizes = self._sizes[stream]
        return min(limit, int(sizes[marks])) if marks < len(sizes) else limit

    def forget(self, positions: Tuple[int, int]) -> None:
        """Drop marks that both files were read past."""
        passed = min(bisect_right(self._sizes[stream], positions[stream]) for stream in (OUT, ERR))
        if passed > TRIM:
            for sizes in self._sizes:
                del sizes[: passed - 1]


class OneFile:
    """A log file that is read by itself."""

    def __init__(self, file: LogFile) -> None:
        self.files = (file,)

    def head(self, file: LogFile, end: int) -> Head:
        """The sort key of the line that ends at offset ``end``: marks before it, its time, its stream."""
        return 0, _time(file, end), OUT

    def sizes(self) -> Dict[str, int]:
        """Up to which offset the file can be read now."""
        (file,) = self.files
        return {file.name: file.size}

    def chunks(self, limits: Dict[str, int], whole: Container[str], *, hold: bool) -> Iterator[Tuple[LogFile, Chunk]]:
        """The chunks before its limit; as of a StreamPair, but that nothing is held."""
        del hold
        return _chunks(self.files[0], limits, whole)


class StreamPair:
    """Both output files of one start of a worker, read in the order in which they were written.

    Args:
        stem: Their path without ``.out`` and ``.err``.
        files: stdout's, stderr's.
    """

    def __init__(self, stem: str, files: Tuple[LogFile, LogFile]) -> None:
        self.files = files
        self.marks = OrderMarks(stem)
        self._held_since: Optional[float] = None

    def sizes(self) -> Dict[str, int]:
        """Up to which offsets the files can be read now: below them the order of all lines is known."""
        out, err = self.files
        sizes = {err.name: err.size}
        sizes[out.name] = out.size
        if sizes[out.name] > out.pos and max(sizes[err.name], err.size) > err.pos:  # else one has nothing new
            self.marks.forget((out.pos, err.pos))
            self.marks.refresh()
            # A mark may tell of what was written since; some of what lies below the sizes may follow on that.
            for stream, file in enumerate(self.files):
                sizes[file.name] = max(sizes[file.name], self.marks.latest(stream))
        return sizes

    def chunks(self, limits: Dict[str, int], whole: Container[str], *, hold: bool) -> Iterator[Tuple[LogFile, Chunk]]:
        """The chunks before the limits, in order.

        Args:
            limits: Of each file.
            whole: Files of which an unfinished line counts.
            hold: Whether a line waits for the times of those before it, for HOLD_LIMIT at most.
        """
        unread = [file for file in self.files if limits[file.name] > file.pos]
        if len(unread) < len(self.files):
            for file in unread:
                yield from _chunks(file, limits, whole)
            return
        for file in self.files:
            file.read_ahead(READ_AHEAD)
        try:
            yield from self._merged(limits, whole, hold)
        finally:
            for file in self.files:
                file.read_ahead(0)

    def _merged(self, limits: Dict[str, int], whole: Container[str], hold: bool) -> Iterator[Tuple[LogFile, Chunk]]:
        heads = [self._next_head(file, limits, whole) for file in self.files]
        while heads[OUT] or heads[ERR]:
            marks, _, stream = min(head for head in heads if head)
            file = self.files[stream]
            limit, begin = limits[file.name], file.pos
            end = self.marks.next_after(stream, marks, limit) if heads[1 - stream] else limit
            chunk = file.chunk(end, whole=end == limit and file.name in whole)
            if chunk:
                self._held_since = None
                yield file, chunk
            elif hold and self._is_held():
                return
            moved = file.pos > begin  # also past a hole
            heads[stream] = self._next_head(file, limits, whole) if moved else None

    def _next_head(self, file: LogFile, limits: Dict[str, int], whole: Container[str]) -> Optional[Head]:
        end = file.next_end(limits[file.name], whole=file.name in whole)
        return self.head(file, end) if end else None

    def head(self, file: LogFile, end: int) -> Head:
        """The sort key of the line that ends at offset ``end``: marks before it, its time, its stream."""
        stream = self.files.index(file)
        return self.marks.before(stream, end), _time(file, end), stream

    def _is_held(self) -> bool:
        now = time.monotonic()
        self._held_since = self._held_since or now
        return now - self._held_since < HOLD_LIMIT


Group = Union[OneFile, StreamPair]


def _time(file: LogFile, end: int) -> int:
    entry = file.index.at(end)
    return entry[0] if entry else _NEVER


def _chunks(file: LogFile, limits: Dict[str, int], whole: Container[str]) -> Iterator[Tuple[LogFile, Chunk]]:
    chunk = file.chunk(limits[file.name], whole=file.name in whole)
    while chunk:
        yield file, chunk
        chunk = file.chunk(limits[file.name], whole=file.name in whole)


class Groups:
    """Log files in the groups in which they are read: both of one start of a worker together, any other alone.

    Args:
        folder: Where they lie.
        ordered: Whether the order of stdout and stderr is wanted.
    """

    def __init__(self, folder: str, *, ordered: bool) -> None:
        self._folder, self._ordered = folder, ordered
        self._known: Dict[str, Group] = {}

    def of(self, files: Iterable[LogFile]) -> List[Group]:
        """The groups of these files."""
        by_name = {file.name: file for file in files}
        found: List[Group] = []
        for name, file in by_name.items():
            stem, _, stream = name.rpartition(".")
            other = by_name.get("%s.%s" % (stem, "err" if stream == "out" else "out")) if self._ordered else None
            if other is None and name not in self._known:
                self._known[name] = OneFile(file)
            elif other and stem not in self._known:
                files = (file, other) if stream == "out" else (other, file)
                self._known[stem] = StreamPair(os.path.join(self._folder, stem), files)
            if other is None or stream == "out":
                found.append(self._known[stem if other else name])
        return found
