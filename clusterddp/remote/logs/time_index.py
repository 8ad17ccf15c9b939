"""The time index of log files: when each byte was written.

Beside each log file lies ``<file>.idx``, lines ``<time_ns> <size>``: the file had that size at that time, by
this host's clock. A line that ends at byte ``b`` has the time of the first entry whose size is at least
``b``, for every reader, live or later.

Entries older than an hour are thinned when an index grows large; a time then moves by less than a thousandth
of its age, and only ever forward.
"""

import os
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

from ..system.small_files import open_regular

if TYPE_CHECKING:
    from array import array

SUFFIX = ".idx"
MIN_INTERVAL = 99 * 10**6  # ns between two entries of a file: 10 a second, minus how early a timer may fire
THIN_SIZE = 4 << 20  # bytes of an index from which it is thinned
MIN_THINNED_AGE = 3600 * 10**9  # ns: younger entries are not thinned

Entry = Tuple[int, int]


class _IndexedFile:
    """The writer's state of one file and its index."""

    def __init__(self) -> None:
        self.size = 0
        self.time = 0
        self.last_entry = -MIN_INTERVAL
        self.length = 0  # bytes of the index
        self.thin_at = THIN_SIZE
        self.torn = False  # the last write stopped in the middle of an entry


class IndexWriter:
    """Writes the indexes of all files in a folder; one per supervisor."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._states: Dict[str, _IndexedFile] = {}

    def poll(self, now_ns: int) -> None:
        """Index every file that has grown; call it every 100 ms. Never raises OSError."""
        self._index_grown(now_ns, MIN_INTERVAL)

    def finish(self, now_ns: int) -> None:
        """Index the files' final sizes, so that every byte is covered."""
        self._index_grown(now_ns, 0)

    def _index_grown(self, now: int, gap: int) -> None:
        """Add an entry for each file that has grown and whose last entry is at least ``gap`` ns old."""
        try:
            names = [name for name in os.listdir(self._folder) if not name.endswith(SUFFIX)]
        except OSError:  # an index only saves reading
            return
        for name in names:
            state = self._states.setdefault(name, _IndexedFile())
            if not 0 <= now - state.last_entry < gap:
                try:
                    self._add_entry(os.path.join(self._folder, name), state, now)
                except OSError:
                    continue  # a full disk or a file removed: no index is worth the supervisor

    def _add_entry(self, path: str, state: _IndexedFile, now: int) -> None:
        info = os.stat(path)
        if info.st_size <= state.size:
            return
        # The time of the last write is more exact than the time of this look.
        time = max(state.time, min(info.st_mtime_ns, now))
        data = b"%s%d %d\n" % (b"\n" if state.torn else b"", time, info.st_size)
        state.last_entry = now
        handle = os.open(path + SUFFIX, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            written = os.write(handle, data)
        finally:
            os.close(handle)
        state.torn = written < len(data)
        if not state.torn:
            state.size, state.time = info.st_size, time
        state.length += written
        if state.length > state.thin_at:
            state.thin_at = 2 * state.length  # remains so if the disk has no space for the thinned copy
            state.length = _thin_index(path + SUFFIX, now)
            state.thin_at = max(THIN_SIZE, 2 * state.length)


def _thin_index(path: str, now: int) -> int:
    """Thin one index; returns its new length."""
    with open(path, "rb") as source:
        entries = list(_parse(source.read()))
    data = b"".join(b"%d %d\n" % entry for entry in thin_entries(entries, now))
    temporary = path + ".new" + SUFFIX  # ends like an index, so that it is never taken for a log
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as target:
        target.write(data)
    os.rename(temporary, path)
    return len(data)


def thin_entries(entries: List[Entry], now: int) -> List[Entry]:
    """The entries without those whose successor lies in the same interval of time.

    An interval is a power of two of nanoseconds, at most a thousandth of the entry's age, and begins at a multiple of
    itself. Intervals nest, so errors of repeated thinning do not add up.
    """
    remaining = []
    for index, entry in enumerate(entries[:-1]):
        age = now - entry[0]
        if age < MIN_THINNED_AGE or (entry[0] ^ entries[index + 1][0]) >> ((age // 1000).bit_length() - 1):
            remaining.append(entry)
    return remaining + entries[-1:]


def _parse(data: bytes) -> Iterator[Entry]:
    """The complete entries."""
    for line in data.split(b"\n"):
        fields = line.split()
        if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit():
            yield int(fields[0]), int(fields[1])


def last_growth(path: str) -> Optional[int]:
    """When a log file last grew (ns, by this host's clock); None while it is empty.

    The file's own mtime changes also when the log limit frees old blocks of it, so it counts only without an index.
    """
    try:
        with open(path + SUFFIX, "rb", opener=open_regular) as source:
            source.seek(max(0, os.fstat(source.fileno()).st_size - 128))
            noted = source.read()
    except OSError:
        noted = b""
    entries = list(_parse(noted[: noted.rfind(b"\n") + 1]))
    if entries:
        return entries[-1][0]
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_mtime_ns if info.st_size else None


class IndexReader:
    """One file's index, as far as it was read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0
        from array import array  # imports collections, and most who import this module read no index

        self._times: "array[Any]" = array("q")
        self._sizes: "array[Any]" = array("q")

    @property
    def covered(self) -> int:
        """How many bytes of the file have a time."""
        return self._sizes[-1] if self._sizes else 0

    @property
    def latest(self) -> int:
        """The time of the last entry, 0 without one."""
        return self._times[-1] if self._times else 0

    def covers(self, size: int) -> bool:
        """Whether all lines below the offset ``size`` have their time."""
        return self.covered >= size

    def refresh(self) -> None:
        """Read the entries that were added, or all again after a thinning."""
        try:
            with open(self._path, "rb", opener=open_regular) as source:
                self._read(source)
        except OSError:  # there is none yet, or the job has put something else there: lines go without times
            return

    def _read(self, source: Any) -> None:
        """Read the entries appended since the last call; all of them if the file was replaced."""
        inode = os.fstat(source.fileno()).st_ino
        if inode != self._inode:
            self._inode, self._offset = inode, 0
            del self._times[:], self._sizes[:]
        source.seek(self._offset)
        data = source.read()
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        for time, size in _parse(data):
            self._append_if_later(time, size)

    def _append_if_later(self, time: int, size: int) -> None:
        """Add an entry unless its size or time is not beyond the last one's."""
        if size > self.covered and time >= self.latest:
            self._times.append(time)
            self._sizes.append(size)

    def complete(self) -> None:
        """Add the file's last change as the last entry, once no supervisor writes the index any more."""
        info = os.stat(self._path[: -len(SUFFIX)])
        self.refresh()
        self._append_if_later(max(info.st_mtime_ns, self.latest), info.st_size)

    def at(self, end: int) -> Optional[Entry]:
        """The entry that covers a line ending at ``end``: its time, and the size up to which it holds."""
        index = bisect_left(self._sizes, end)
        return (self._times[index], self._sizes[index]) if index < len(self._sizes) else None

    def size_before(self, time: int) -> int:
        """The size up to which all lines are older than ``time``."""
        index = bisect_left(self._times, time)
        return self._sizes[index - 1] if index else 0

    def size_until(self, time: int) -> int:
        """The size up to which no line is younger than ``time``."""
        index = bisect_right(self._times, time)
        return self._sizes[index - 1] if index else 0
