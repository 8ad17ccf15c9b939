"""Order marks: the sizes of a worker's stdout and stderr files each time it changed from one to the other.

The worker's start-up hook writes them beside the output files, to ``<start>.<local_rank>.order.idx``, as lines
``<out> <err>``. What lies below a mark in either file was written before all that lies above it in both. A full file of
marks is renamed to ``….order.old.idx``, replacing the one before.

Job code can write any marks: they may change the order of its lines and their times (logs/line_times.py), and nothing
else.
"""

import os
import re
from array import array
from bisect import bisect_left, bisect_right
from typing import Any, List, Tuple

from ..system.small_files import open_regular
from .time_index import SUFFIX

MAX_READ = 8 << 20  # bytes of one file of marks that are read: twice what the hook writes
MAX_PASSED_MARKS = 4096  # marks that both files were read past and that are kept
BEYOND = 1 << 63  # an offset after all others
_MARK = re.compile(rb"^([0-9]{1,16}) ([0-9]{1,16})\n", re.MULTILINE)

OUT, ERR = 0, 1


class OrderMarks:
    """The order marks of one start of a worker, as far as they were read."""

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self._path = stem + ".order" + SUFFIX
        self._inode = 0
        self._offset = 0
        self._sizes: "Tuple[array[Any], array[Any]]" = (array("q"), array("q"))

    def refresh(self) -> None:
        """Read the marks that were added."""
        try:
            info = os.stat(self._path)
            if (info.st_ino, info.st_size) == (self._inode, self._offset):
                return
            data = self._read()
            limits = os.stat(self._stem + ".out").st_size, os.stat(self._stem + ".err").st_size
        except OSError:  # there are no marks, or the worker's files were removed
            return
        out, err = self._sizes
        latest = (out[-1], err[-1]) if out else (0, 0)
        for found in _MARK.finditer(data):
            mark = int(found[1]), int(found[2])
            # A true mark is never below the one before, nor beyond the files' sizes.
            if latest != mark and latest[0] <= mark[0] <= limits[0] and latest[1] <= mark[1] <= limits[1]:
                latest = mark
                out.append(mark[0])
                err.append(mark[1])

    def _read(self) -> bytes:
        """The bytes of all marks that were added, including those in a file that has become full."""
        older = b""
        with open(self._path, "rb", opener=open_regular) as source:
            info = os.fstat(source.fileno())
            if info.st_ino != self._inode or info.st_size < self._offset:
                older = self._rest_of_older()
                self._inode, self._offset = info.st_ino, 0
            source.seek(max(self._offset, info.st_size - MAX_READ))
            data = source.read(MAX_READ)
            whole = data.rfind(b"\n") + 1
            self._offset = source.tell() - len(data) + whole
        return older + b"\n" + data[:whole]

    def _rest_of_older(self) -> bytes:
        path = self._stem + ".order.old" + SUFFIX
        try:
            with open(path, "rb", opener=open_regular) as source:
                info = os.fstat(source.fileno())
                begin = self._offset if info.st_ino == self._inode else 0
                source.seek(max(begin, info.st_size - MAX_READ))
                return source.read(MAX_READ)
        except OSError:  # there is none
            return b""

    def __bool__(self) -> bool:
        return bool(self._sizes[OUT])

    def latest(self, stream: int) -> int:
        """How large a file was at the last mark."""
        sizes = self._sizes[stream]
        return int(sizes[-1]) if sizes else 0

    def before(self, stream: int, end: int) -> int:
        """The number of marks written before the stream's data up to offset ``end`` was complete."""
        return bisect_left(self._sizes[stream], end)

    def up_to(self, stream: int, size: int) -> int:
        """The number of marks at which a file had at most ``size`` bytes."""
        return bisect_right(self._sizes[stream], size)

    def size_before(self, stream: int, marks: int) -> int:
        """How large a file was at the last of the first ``marks`` marks."""
        return int(self._sizes[stream][marks - 1]) if marks else 0

    def size_at(self, stream: int, marks: int) -> int:
        """How large a file was at the mark after the first ``marks``; beyond all offsets if there is none."""
        sizes = self._sizes[stream]
        return int(sizes[marks]) if marks < len(sizes) else BEYOND

    def marks_passed(self, positions: Tuple[int, int]) -> int:
        """The number of marks at which neither file was larger than its position."""
        return min(self.up_to(stream, positions[stream]) for stream in (OUT, ERR))

    def sizes_from(self, marks: int, count: int) -> List[Tuple[int, int]]:
        """Both files' sizes at up to ``count`` marks, from number ``marks`` on."""
        out, err = self._sizes
        return list(zip(out[marks : marks + count], err[marks : marks + count]))

    def forget(self, positions: Tuple[int, int]) -> None:
        """Drop marks that both files were read past."""
        if len(self._sizes[OUT]) <= MAX_PASSED_MARKS:
            return
        count = self.marks_passed(positions)
        if count > MAX_PASSED_MARKS:
            for sizes in self._sizes:
                del sizes[: count - 1]
