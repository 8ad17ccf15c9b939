r"""One log file, read in pieces that end where lines end.

A unit is what one line end closes: ``\n``, ``\r\n``, or a lone ``\r`` (the rest of the line is drawn over it). A chunk
is a run of whole units; only a line longer than a frame, and the end of a file that no longer grows, give chunks that
end elsewhere. In a timed file all units of a chunk have one time, and a unit is given only once the index covers it, so
every reader at any time sees the same time. A ``\r`` is known to stand alone only when the byte after it is there, so
the unit's time is that byte's.
"""

import errno
import os
import re
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Union

from ..shared.logs.log_units import first_unit, last_unit
from ..shared.logs.tail_request import TailRequest
from ..shared.run.event_schema import WORKER_STARTED, of_kind
from ..shared.run.plan import AGENT_LOG
from ..shared.wire.frames import LONGEST_LINE, MAX_BODY
from ..spool.events import read_events
from ..spool.layout import Spool
from .line_times import LineTimes
from .time_index import SUFFIX, IndexReader

Wanted = Callable[[int, bytes], object]
_Times = Union[IndexReader, LineTimes]
_BLOCK = 256 << 10
_SHORT = 4 << 10  # bytes in which most lines end
_NAME = re.compile(r"(\d+)\.(\d+)\.(out|err)$|agent\.out$")


class LogChunk(NamedTuple):
    """Contiguous bytes of one file."""

    offset: int
    body: bytes
    time: Optional[int]  # ns by this host's clock; None where times were not asked for

    @property
    def next(self) -> int:
        """The offset after it."""
        return self.offset + len(self.body)


class LogFile:
    """One log file, read from ``pos`` on."""

    def __init__(self, folder: str, name: str) -> None:
        found = _NAME.match(name)
        if not found:
            raise ValueError("no log file: %s" % name)
        self.name = name
        self.start: Optional[int] = int(found[1]) if found[1] else None
        self.local_rank: Optional[int] = int(found[2]) if found[1] else None
        self.stream = found[3] or "out"
        self.rank: Optional[int] = None
        self.identified = False  # whether the rank was looked up
        self.index = IndexReader(os.path.join(folder, name) + SUFFIX)
        self.times: _Times = self.index  # the times of its lines; a worker's depend on both its files
        self._path = os.path.join(folder, name)  # opened for each read: restarts can leave more files than handles
        self.pos = 0
        self.dropped = 0  # bytes at pos that the log limit deleted, not reported yet
        self.timed = False
        self._read_ahead = 0
        self._block = (0, b"")  # offset, and the bytes read ahead there

    @property
    def size(self) -> int:
        """The file's size now."""
        return os.stat(self._path).st_size

    def read_ahead(self, size: int) -> None:
        """Read ``size`` bytes at a time from now on, for many short chunks; 0: only what is asked for."""
        self._read_ahead, self._block = size, (0, b"")

    def next_end(self, limit: int, *, whole: bool) -> int:
        r"""Where the next unit before ``limit`` ends, 0 if there is none yet.

        It moves ``pos`` past a hole, as ``chunk`` does. In a timed file, a unit that ends with a lone ``\r`` includes
        the byte after it, as its time does.
        """
        begin = self.pos
        data = self._read(min(limit, begin + _SHORT))
        if (len(data) == _SHORT or self.pos > begin) and not first_unit(data):
            data = self._read(limit)
        need = first_unit(data)
        if not need and (whole or len(data) == MAX_BODY):
            need = len(data)
        elif self.timed:
            need += data[need - 1 : need] == b"\r"
        return self.pos + need if need else 0

    def whole_lines(self, limit: int) -> bytes:
        """The whole lines before ``limit`` that fit a frame; moves ``pos`` only past a hole, as ``chunk`` does."""
        data = self._read(limit)
        return data[: data.rfind(b"\n") + 1]

    def chunk(self, limit: int, *, whole: bool) -> Optional[LogChunk]:
        """The next chunk before ``limit``; None if there is none yet. With ``whole`` an unfinished unit counts too."""
        data = self._read(limit)
        if not data:
            return None
        if not self.timed and _redraws(data):
            self.timed = True  # redraws are thinned out by their times
            self.times.refresh()
        if self.timed:
            return self._timed(data, whole)
        cut = data.rfind(b"\n") + 1
        if not cut and (whole or len(data) == MAX_BODY):
            cut = len(data)
        return self._advance(data[:cut], None)

    def _timed(self, data: bytes, whole: bool) -> Optional[LogChunk]:
        need = first_unit(data)
        need += data[need - 1 : need] == b"\r"  # the next byte distinguishes a redraw from half a newline
        piece = not need and (whole or len(data) == MAX_BODY)
        entry = self.times.at(self.pos + (len(data) if piece else need)) if need or piece else None
        if entry is None:
            return None
        time, size = entry
        cut = len(data) if piece else last_unit(data[: size - self.pos])
        return self._advance(data[:cut], time)

    def _advance(self, body: bytes, time: Optional[int]) -> Optional[LogChunk]:
        """Make a chunk of ``body`` and move ``pos`` past it; None if it is empty."""
        if not body:
            return None
        chunk = LogChunk(self.pos, body, time)
        self.pos = chunk.next
        return chunk

    def _read(self, limit: int) -> bytes:
        data = self._read_at(min(limit - self.pos, MAX_BODY), self.pos)
        # A hole may be punched while we read: then its zeros come after bytes that were still there.
        if b"\0" in data and self._skip_hole():
            return self._read(limit)
        return data

    def skip_dropped(self) -> None:
        """Move ``pos`` past a hole that the log limit made there."""
        if self._read_at(1, self.pos) == b"\0":
            self._skip_hole()

    def _skip_hole(self) -> bool:
        """Move ``pos`` past the hole there and the line it cut; False if the zeros are the worker's own output."""
        first = self._first_data()
        if first <= self.pos:
            return False
        data = self._read_at(MAX_BODY, first)
        zeros = len(data) - len(data.lstrip(b"\0"))  # the hole began within a block
        first += max(zeros, data.find(b"\n", zeros) + 1)
        self.dropped += first - self.pos
        self.pos = first
        return True

    def _first_data(self) -> int:
        """Return where data begins at or after ``pos``: the log limit punches holes into files."""
        with open(self._path, "rb") as file:
            try:
                return os.lseek(file.fileno(), self.pos, os.SEEK_DATA)
            except OSError as error:
                # Nothing but a hole, or a filesystem that knows no holes.
                return self.size if error.errno == errno.ENXIO else self.pos

    def _read_at(self, size: int, at: int) -> bytes:
        """``size`` bytes at an offset, from the bytes read ahead if they hold them."""
        if size <= 0:
            return b""
        begin, block = self._block
        if begin <= at and at + size <= begin + len(block):
            return block[at - begin : at - begin + size]
        handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(handle, max(size, self._read_ahead), at)
        finally:
            os.close(handle)
        if self._read_ahead:
            self._block = (at, data)
        return data[:size]

    def line_start(self, end: int) -> int:
        """The start of the line that holds byte ``end``; looks back at most LONGEST_LINE bytes."""
        low = max(0, end - LONGEST_LINE)
        while end > low:
            begin = max(low, end - _BLOCK)
            found = self._read_at(end - begin, begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
        return low

    def last_unit_end(self, limit: int) -> int:
        """Where the last whole unit before ``limit`` ends, with the byte that shows a redraw to be one."""
        start = self.line_start(limit)
        return min(limit, start + last_unit(self._read_at(limit - start, start)) + 1)

    def last_redraw(self, limit: int) -> int:
        """Where the last whole redraw of the unfinished line before ``limit`` begins, or else that line."""
        start = self.line_start(limit)
        data = self._read_at(limit - start, start)
        return start + last_unit(data[: last_unit(data)])

    def lines_back(self, low: int, high: int) -> "Iterator[tuple[int, bytes]]":
        """(start, line without its end) of the lines in [low, high), last first, an unfinished last one included."""
        rest = b""
        while high > low:
            begin = max(low, high - _BLOCK)
            data = self._read_at(high - begin, begin) + rest
            complete = begin == low or len(data) >= LONGEST_LINE
            first = 0 if complete else data.find(b"\n") + 1
            if complete or first:
                yield from _backwards(data[first:], begin + first)
                data = data[:first]
            rest, high = data, begin


def _backwards(data: bytes, offset: int) -> "Iterator[tuple[int, bytes]]":
    end = offset + len(data)
    for line in reversed(data.splitlines(True) if b"\r" not in data else _by_newline(data)):
        end -= len(line)
        yield end, line.rstrip(b"\r\n")


def _by_newline(data: bytes) -> "list[bytes]":
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _redraws(data: bytes) -> bool:
    """Whether a lone carriage return is in the data."""
    found = data.count(b"\r")
    return bool(found) and found - data.count(b"\r\n") - data.endswith(b"\r") > 0


class LineFilter:
    """Passes the units of chunks that ``wanted(offset, line)`` accepts."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._held = b""
        self._before, self._passed = b"", False  # the unit before, and whether it passed

    def filter(self, chunk: LogChunk, *, final: bool) -> Iterator[LogChunk]:
        """The parts of a chunk, and of an unfinished line before it, that pass; neighbours in one piece."""
        data, offset = self._held + chunk.body, chunk.offset - len(self._held)
        units = data.splitlines(True)
        self._held = b""
        if units[-1][-1:] not in b"\r\n" and not final and len(units[-1]) < LONGEST_LINE:
            self._held = units.pop()
        for start, body in self._matching(units, offset):
            for at in range(0, len(body), MAX_BODY):
                yield LogChunk(start + at, body[at : at + MAX_BODY], chunk.time)

    def _matching(self, units: "list[bytes]", offset: int) -> "Iterator[tuple[int, bytes]]":
        run = b""
        for unit in units:
            ends_line = unit == b"\r\n" and self._before[-1:] == b"\r" and self._before.strip()
            if not ends_line:  # else what looked like a redraw is the line
                self._passed = bool(self._wanted(offset, unit.rstrip(b"\r\n")))
            self._before = unit
            if self._passed:
                run += unit
            elif run:
                yield offset - len(run), run
                run = b""
            offset += len(unit)
        if run:
            yield offset - len(run), run


class LogFiles:
    """The log files of one spool by name, and how far each was read."""

    def __init__(self, spool: Spool, asked: TailRequest, *, timed: bool) -> None:
        self.folder = spool.logs
        self.files: Dict[str, LogFile] = {}
        self._events = spool.events_file
        self._asked = asked
        self._timed = timed

    def wanted(self) -> List[LogFile]:
        """The files that match the request's filters."""
        self._discover()
        unknown = [file for file in self.files.values() if file.local_rank is not None and not file.identified]
        # A worker's two files together: read alone, one would be sent before earlier lines of the other.
        writing = {(file.start, file.local_rank) for file in unknown if file.size}
        if writing:
            self._identify([file for file in unknown if (file.start, file.local_rank) in writing])
        return [file for file in self.files.values() if self._matches_request(file)]

    def offsets(self) -> Dict[str, int]:
        """How far each file was read."""
        return {name: file.pos for name, file in self.files.items()}

    @property
    def newest_start(self) -> int:
        """The number of the workers' newest start that has files, even empty ones."""
        return max((file.start or 0 for file in self.files.values()), default=0)

    def resumed(self, file: LogFile) -> bool:
        """Whether the request names an offset to resume this file at."""
        return file.name in self._asked.offsets

    def _discover(self) -> None:
        try:
            # A job may put anything there, and a pipe would block every reader.
            names = sorted(entry.name for entry in os.scandir(self.folder) if entry.is_file(follow_symlinks=False))
        except FileNotFoundError:  # the spool is being made by a start
            return
        for name in [name for name in names if name not in self.files and _NAME.match(name)]:
            file = self.files[name] = LogFile(self.folder, name)
            file.timed = self._timed
            file.pos = self._asked.offsets.get(name, 0)

    def _identify(self, files: List[LogFile]) -> None:
        """Look up the files' ranks.

        A worker's start is recorded before its first byte is written, so one look is enough.
        """
        starts = of_kind(read_events(self._events), WORKER_STARTED)
        ranks: Dict[Any, int] = {(event.start, event.local_rank): event.rank for event in starts}
        for file in files:
            file.rank = ranks.get((file.start, file.local_rank))
            file.identified = True

    def _matches_request(self, file: LogFile) -> bool:
        asked = self._asked
        if file.name == AGENT_LOG:
            return asked.agent
        if not file.identified or asked.stream not in ("both", file.stream):
            return False
        local_ranks, ranks = asked.local_ranks, asked.ranks
        return (local_ranks is None or file.local_rank in local_ranks) and (ranks is None or file.rank in ranks)
