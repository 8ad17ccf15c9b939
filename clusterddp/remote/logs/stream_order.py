"""A worker's stdout and stderr, merged in the order in which they were written.

A line is ordered by its end, relative to the marks of the worker's start-up hook (logs/order_marks.py). Lines with no
mark between them (of C code, of child processes) are ordered by the time index, and where the times are equal stdout
comes first.
"""

import os
from typing import Container, Dict, Iterable, Iterator, List, Optional, Tuple, Union

from ..shared.logs.log_frames import MAX_PIECES
from ..shared.wire.frames import MAX_BODY
from .line_times import LineTimes, WaitLimit
from .order_marks import BEYOND, ERR, OUT, OrderMarks
from .output_files import LogChunk, LogFile, LogFiles
from .weave import Woven, weave

READ_AHEAD = 128 << 10  # bytes
PAUSE = 16  # lines that are sent one by one before the next attempt to send many at once
_NEVER = 1 << 63  # ns after all times

Head = Tuple[int, int, int]  # sort key of a line: marks before it, its time, its stream


Chunks = Iterator[Tuple[LogFile, Union[LogChunk, Woven]]]


class OneFile:
    """A log file that is read without its worker's other one."""

    def __init__(self, file: LogFile, marks: Optional[OrderMarks]) -> None:
        self.files = (file,)
        self._marks = marks

    def head(self, file: LogFile, end: int) -> Head:
        """The sort key of the line that ends at offset ``end``: marks before it, its time, its stream."""
        return 0, _time_of(file, end), OUT

    def sizes(self) -> Dict[str, int]:
        """The offset up to which the file can be read now, by name."""
        (file,) = self.files
        if self._marks:
            self._marks.forget((file.pos, BEYOND) if file.stream == "out" else (BEYOND, file.pos))
        return {file.name: file.size}

    def chunks(self, limits: Dict[str, int], whole: Container[str], *, hold: bool) -> Chunks:
        """The chunks before the file's limit; the interface of StreamPair, but nothing is held."""
        del hold
        return _chunks(self.files[0], limits, whole)


class StreamPair:
    """Both output files (stdout's, stderr's) of one start of a worker, read in the order in which they were written."""

    def __init__(self, files: Tuple[LogFile, LogFile], marks: OrderMarks) -> None:
        self.files, self.marks = files, marks
        self._hold = WaitLimit()
        self._pause = 0  # lines still to be sent one by one, since the last ones could not be sent together

    def sizes(self) -> Dict[str, int]:
        """The offsets up to which the files can be read now: below them the order of all lines is known."""
        out, err = self.files
        sizes = {err.name: err.size}
        sizes[out.name] = out.size
        self.marks.forget((out.pos, err.pos))
        if sizes[out.name] > out.pos and max(sizes[err.name], err.size) > err.pos:  # else one has nothing new
            self.marks.refresh()
            # A mark may include output written since; lines below the sizes may come after that output.
            for stream, file in enumerate(self.files):
                sizes[file.name] = max(sizes[file.name], self.marks.latest(stream))
        return sizes

    def chunks(self, limits: Dict[str, int], whole: Container[str], *, hold: bool) -> Chunks:
        """The chunks before each file's limit, in order.

        An unfinished line of the files in ``whole`` counts too. With ``hold`` a line waits for the times of those
        before it, for at most HOLD_LIMIT.
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

    def _merged(self, limits: Dict[str, int], whole: Container[str], hold: bool) -> Chunks:
        """The chunks of both files, each time of the one whose next line comes first."""
        ends = [file.next_end(limits[file.name], whole=file.name in whole) for file in self.files]
        while any(ends):
            begin = [file.pos for file in self.files]
            woven = self._woven(limits, ends) if all(ends) else None
            if woven:
                stream = OUT
                yield woven.files[0], woven
            else:
                marks, _, stream = min(self.head(self.files[of], ends[of]) for of in (OUT, ERR) if ends[of])
                file = self.files[stream]
                limit = limits[file.name]
                end = min(limit, self.marks.size_at(stream, marks)) if ends[1 - stream] else limit
                chunk = file.chunk(end, whole=end == limit and file.name in whole)
                if chunk:
                    self._hold.end()
                    yield file, chunk
                elif hold and self._hold.should_wait():
                    return
            for which, file in enumerate(self.files):
                if file.pos > begin[which]:  # also past a hole
                    ends[which] = file.next_end(limits[file.name], whole=file.name in whole)
                elif which == stream:
                    ends[which] = 0

    def _woven(self, limits: Dict[str, int], ends: List[int]) -> Optional[Woven]:
        """The next lines of both files at once, if marks order them and they have the same time; else None."""
        begin = self.files[OUT].pos, self.files[ERR].pos
        marks = self.marks.marks_passed(begin)
        distance = sum(self.marks.size_at(stream, marks) - begin[stream] for stream in (OUT, ERR))
        if distance > MAX_BODY // 2:  # or there is no mark any more
            return None
        if self._pause:
            self._pause -= 1
            return None
        self._pause = PAUSE
        (out, out_time), (err, err_time) = (
            _lines_of_one_time(self.files[of], ends[of], limits[self.files[of].name]) for of in (OUT, ERR)
        )
        if out_time != err_time or any(file.dropped for file in self.files):
            return None
        order = self.marks.sizes_from(marks, MAX_PIECES)
        latest = begin[OUT] + len(out), begin[ERR] + len(err)
        if len(order) < MAX_PIECES and latest == tuple(limits[file.name] for file in self.files):
            order.append(latest)
        woven = weave(self.files, (out, err), order, out_time)
        if woven:
            self._pause = 0
            self._hold.end()
        return woven

    def head(self, file: LogFile, end: int) -> Head:
        """The sort key of the line that ends at offset ``end``: marks before it, its time, its stream."""
        stream = self.files.index(file)
        return self.marks.before(stream, end), _time_of(file, end), stream


Group = Union[OneFile, StreamPair]


def _time_of(file: LogFile, end: int) -> int:
    entry = file.index.at(end)
    return entry[0] if entry else _NEVER


def _lines_of_one_time(file: LogFile, end: int, limit: int) -> Tuple[bytes, Optional[int]]:
    """A file's next whole lines that have the same time, and that time; ``end`` is where the first of them ends."""
    if not file.timed:
        return file.whole_lines(limit), None
    entry = file.times.at(end)
    return (file.whole_lines(min(limit, entry[1])), entry[0]) if entry else (b"", None)


def _chunks(file: LogFile, limits: Dict[str, int], whole: Container[str]) -> Iterator[Tuple[LogFile, LogChunk]]:
    chunk = file.chunk(limits[file.name], whole=file.name in whole)
    while chunk:
        yield file, chunk
        chunk = file.chunk(limits[file.name], whole=file.name in whole)


class Groups:
    """Log files in groups to be read together: both files of a start of a worker, any other file alone."""

    def __init__(self, logs: LogFiles, *, ordered: bool) -> None:
        self._logs, self._ordered = logs, ordered
        self._pairs: Dict[str, StreamPair] = {}  # of all workers that have both files, wanted or not
        self._alone: Dict[str, OneFile] = {}

    def of(self, files: Iterable[LogFile]) -> List[Group]:
        """The groups of these files.

        A worker's two files are a pair if both are wanted and order was asked for; the pair is listed once, at its
        ``.out`` file.
        """
        by_name = {file.name: file for file in files}
        found: List[Group] = []
        for name, file in by_name.items():
            pair = self._pair_of(name.rpartition(".")[0])
            if pair is None or not self._ordered or any(one.name not in by_name for one in pair.files):
                if name not in self._alone:
                    self._alone[name] = OneFile(file, pair.marks if pair and self._ordered else None)
                found.append(self._alone[name])
            elif file.stream == "out":
                found.append(pair)
        return found

    def _pair_of(self, stem: str) -> Optional[StreamPair]:
        out, err = self._logs.files.get(stem + ".out"), self._logs.files.get(stem + ".err")
        if stem not in self._pairs and out and err:
            marks = OrderMarks(os.path.join(self._logs.folder, stem))
            for stream, file in ((OUT, out), (ERR, err)):
                file.times = LineTimes(marks, stream, (out.index, err.index))
            self._pairs[stem] = StreamPair((out, err), marks)
        return self._pairs.get(stem)
