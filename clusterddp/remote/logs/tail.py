"""The operation ``tail``: the log lines of one node's spool, those there now and, with ``follow``, new ones.

The arguments are a ``TailRequest`` (shared/logs/tail_request.py).

First comes a frame ``hello``; then data frames (logs/chunk_sender.py), the past ordered by time; in follow mode empty
frames ``caught_up`` with all offsets, then what comes, as it comes, and an empty frame ``exited`` when workers have
ended: the run's end may be near. The result is ``{ended}``.
"""

import heapq
import os
import re
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Union

from ..helper.request import Request
from ..shared.logs.log_frames import MAX_OFFSETS
from ..shared.logs.tail_request import TailRequest
from ..shared.run.plan import AGENT_LOG, SUPERVISOR
from ..shared.schema.record import to_fields
from ..shared.wire.frames import MAX_BODY
from ..spool.layout import Spool
from ..system.bootstrap import Refused
from ..system.inotify import FolderWatch
from .chunk_sender import ChunkSender
from .output_files import LineFilter, LogChunk, LogFile, LogFiles, Wanted
from .stream_order import Group, Groups, Head
from .weave import Woven
from .worker_ends import WorkerEnds

POLL_INTERVAL = 0.1  # seconds between looks when nothing wakes us
BATCH_DELAY = 0.01  # seconds between two reads of slow output, for fewer, fuller frames
PARTIAL_REST = 0.2  # seconds after which an unfinished line counts as resting
COVER_LIMIT = 2.0  # seconds to wait for the supervisor to index what is read without `follow`
LOCK_LIMIT = 5.0  # seconds from the exit record to the supervisor's end
SUPERVISOR_CHECK_INTERVAL = 1.0  # seconds between checks that the supervisor lives
START_LIMIT = 60.0  # seconds within which a started node has a supervisor
BYTES_PER_TURN = 16 * MAX_BODY  # of one worker before another's turn
CHUNKS_PER_TURN = 1000


def tail(request: Request) -> Dict[str, Any]:
    """Operation: send the log lines; the module's docstring describes arguments and frames."""
    asked = request.read_args(TailRequest)
    if not os.path.isdir(asked.spool):
        raise Refused("the run's logs are gone: no %s" % asked.spool)
    try:
        reader = LogTail(request, asked)
        request.send(b"", hello=True, **reader.hello())
        return reader.run()
    except FileNotFoundError as error:  # removed in the meantime
        raise Refused("the run's logs are gone: no %s" % os.fsdecode(error.filename)) from error


class LogTail:
    """One reader of one spool."""

    def __init__(self, request: Request, asked: TailRequest) -> None:
        self.request, self.asked = request, asked
        self.spool = Spool(asked.spool)
        self.plan = self.spool.plan()
        self.offset_ns = self.plan.clock_offset_ns
        self.since, self.until = self._host_time(asked.since), self._host_time(asked.until)
        self.timed = bool(asked.timed or self.since or self.until)
        self.pattern = _compile_pattern(asked.grep)
        self.logs = LogFiles(self.spool, asked, timed=self.timed)
        self.groups = Groups(self.logs, ordered=asked.ordered)
        self.sender = ChunkSender(request, self.offset_ns)
        self.filters: Dict[str, LineFilter] = {}
        self.worker_ends = WorkerEnds(self.spool.events_file)
        self.past_until: Set[str] = set()  # files that have come to ``until``
        self.grown: Dict[str, Tuple[int, float]] = {}  # file → (size, when it was first seen so large)
        self.lost_checked = self.exit_seen = 0.0

    def _host_time(self, time_ns: Optional[int]) -> Optional[int]:
        return None if time_ns is None else time_ns + self.offset_ns

    def hello(self) -> Dict[str, Any]:
        """The fields of the ``hello`` frame."""
        return {"run": self.spool.run, "attempt": self.spool.attempt, "clock_error_ns": self.plan.clock_error_ns}

    def run(self) -> Dict[str, Any]:
        """Send everything; returns the operation's result."""
        over = self.ended()
        while not over and self.spool.exit_record():
            time.sleep(BATCH_DELAY)  # the supervisor's last moment
            over = self.ended()
        self.history(over)
        if self.asked.follow and not over:
            self.send_caught_up()
            self.live()
        ended = self.spool.exit_record()
        return {"ended": to_fields(ended) if ended else None}

    def ended(self) -> bool:
        """Whether nothing more will be written; ask before the last read."""
        now = time.monotonic()
        record = self.spool.exit_record()
        if record:
            self.exit_seen = self.exit_seen or now
            return record.pending or not self.spool.alive() or now - self.exit_seen > LOCK_LIMIT
        if now - self.lost_checked < SUPERVISOR_CHECK_INTERVAL and self.lost_checked:
            return False
        self.lost_checked = now
        if os.path.exists(self.spool.path(SUPERVISOR)):  # written once the lock is held
            return not self.spool.alive()
        return time.time() - os.stat(self.spool.folder).st_mtime > START_LIMIT

    # The past

    def history(self, over: bool) -> None:
        """Send the lines that are there now, ordered by time."""
        groups = self.groups.of(self.logs.wanted())
        files = [file for group in groups for file in group.files]
        follow = self.asked.follow and not over
        limits: Dict[str, int] = {}
        for group in groups:
            limits.update(group.sizes())
        self._load_indexes(files, limits, wait=not follow, over=over)
        whole = over or (not follow and self.asked.partials)
        for file in files:
            limit = self._apply_since_until(file, limits[file.name])
            # of an unfinished line over a frame's size, not even the first pieces are sent
            limits[file.name] = limit if whole or follow else file.last_unit_end(limit)
        if self.asked.tail is not None:
            self._skip_to_last(groups, limits, self.asked.tail, whole=whole)
        past = [self._past_chunks(group, limits, whole=whole, hold=follow) for group in groups]
        for _, file, chunk in heapq.merge(*past, key=lambda entry: entry[0]):
            self.send_matching(file, chunk, final=whole and file.pos >= limits[file.name])

    def _load_indexes(self, files: List[LogFile], limits: Dict[str, int], *, wait: bool, over: bool) -> None:
        """Read the time indexes; wait at most ``COVER_LIMIT`` s until they cover the files, then complete them."""
        deadline = time.monotonic() + (COVER_LIMIT if wait and not over else 0.0)
        while True:
            for file in files:
                file.times.refresh()
            missing = [file for file in files if not file.times.covers(limits[file.name])]
            if not missing or time.monotonic() >= deadline:
                break
            time.sleep(0.02)
        for file in missing if wait or over else ():
            file.times.complete()

    def _apply_since_until(self, file: LogFile, limit: int) -> int:
        """Move the file's position to the time ``since``; returns the offset to stop at, by ``until``."""
        file.skip_dropped()
        if self.since is not None and not self.logs.resumed(file):
            self._move_to(file, file.line_start(min(limit, file.times.size_before(self.since))))
        if self.until is not None:
            past = file.times.size_until(self.until)
            return max(file.pos, min(limit, past if past == file.size else file.line_start(past)))
        return limit

    def _move_to(self, file: LogFile, position: int) -> None:
        """Move forward to a position that was asked for, without reporting dropped bytes before it."""
        if position > file.pos:
            file.pos, file.dropped = position, 0

    def _skip_to_last(self, groups: List[Group], limits: Dict[str, int], count: int, *, whole: bool) -> None:
        """Move each file's position so that each worker's last ``count`` lines are left."""
        workers: Dict[Optional[int], List[Tuple[Tuple[int, Head], str, int]]] = {}
        positions: Dict[str, int] = {}
        for group in groups:
            for file in group.files:
                if not self.logs.resumed(file):
                    lines = workers.setdefault(file.local_rank, [])
                    lines.extend(self._last_lines(group, file, limits[file.name], count, whole=whole))
                    positions[file.name] = limits[file.name] if whole else file.last_redraw(limits[file.name])
        for lines in workers.values():
            for _, name, start in sorted(lines)[max(0, len(lines) - count) :]:
                positions[name] = min(positions[name], start)
        for name, position in positions.items():
            self._move_to(self.logs.files[name], position)

    def _last_lines(
        self, group: Group, file: LogFile, limit: int, count: int, *, whole: bool
    ) -> Iterator[Tuple[Tuple[int, Head], str, int]]:
        """(sort key, file, start) of the file's last ``count`` lines that match, from their last unit that does."""
        high = limit if whole else file.line_start(limit)
        end, wanted = high, self._wanted(file) or (lambda _at, _line: True)
        for start, line in file.lines_back(file.pos, high):
            if count <= 0:
                return
            found = _last_wanted(start, line, wanted)
            if found is not None:
                yield (file.start or 0, group.head(file, end)), file.name, found
                count -= 1
            end = start

    def _past_chunks(
        self, group: Group, limits: Dict[str, int], *, whole: bool, hold: bool
    ) -> Iterator[Tuple[int, LogFile, Union[LogChunk, Woven]]]:
        """(time, file, chunk) of a group's chunks."""
        timed = [file.name for file in group.files if file.timed]
        for file in group.files:
            file.timed = True
        for file, chunk in group.chunks(limits, limits if whole else (), hold=hold):
            yield chunk.time or 0, file, chunk
        for file in group.files:
            file.timed = file.name in timed

    # New lines

    def send_caught_up(self) -> None:
        """Send the offset up to which each file was read, in as many frames as needed; the last frame is marked."""
        offsets = list(self.logs.offsets().items())
        for begin in range(0, len(offsets) or 1, MAX_OFFSETS):
            end = begin + MAX_OFFSETS
            self.request.send(b"", caught_up=end >= len(offsets), offsets=dict(offsets[begin:end]))

    def live(self) -> None:
        """Send what is written from now on, until the run has ended or the time ``until`` has passed."""
        watch = FolderWatch(self.logs.folder, self.spool.folder)
        started = self.logs.newest_start
        stalls = self.worker_ends.stalls
        try:
            while True:
                over, is_past_until = self.ended(), self._until_passed()
                began = time.monotonic()
                groups = self.groups.of(file for file in self.logs.wanted() if file.name not in self.past_until)
                started, started_before = self.logs.newest_start, started
                if started > started_before:
                    self.request.send(b"", began=started)
                if self.worker_ends.grown():
                    self.request.send(b"", exited=self.worker_ends.count)
                if self.worker_ends.stalls > stalls:
                    stalls = self.worker_ends.stalls
                    self.request.send(b"", stalled=stalls)
                sent = sum([self._advance(group, over) for group in groups])
                if over or (is_past_until and not sent):
                    return
                if not sent:
                    watch.wait(POLL_INTERVAL)
                elif sent < MAX_BODY:
                    time.sleep(max(0.0, began + BATCH_DELAY - time.monotonic()))
        finally:
            watch.close()

    def _until_passed(self) -> bool:
        return self.until is not None and time.time_ns() > self.until + 10**9

    def _advance(self, group: Group, over: bool) -> int:
        """Send the new chunks of a group; returns how many bytes were read."""
        limits, begun = group.sizes(), sum(file.pos for file in group.files)
        whole = []
        for file in group.files:
            size = limits[file.name]
            if over:
                file.times.complete()
            elif file.timed and size > file.pos:
                file.times.refresh()
            if over or (size > file.pos and self._is_resting(file, size)):
                whole.append(file.name)
        chunks = read = 0
        for file, chunk in group.chunks(limits, whole, hold=self.timed and not over):
            self.send_matching(file, chunk, final=over and file.pos >= limits[file.name])
            chunks, read = chunks + 1, read + len(chunk.body)
            if not over and (chunks >= CHUNKS_PER_TURN or read >= BYTES_PER_TURN):
                break
        return sum(file.pos for file in group.files) - begun

    def _is_resting(self, file: LogFile, size: int) -> bool:
        """Whether an unfinished line may be shown: the request wants such lines, and it has not grown for a while."""
        if not self.asked.partials or self.pattern:
            return False
        now = time.monotonic()
        seen = self.grown.get(file.name)
        if not seen or seen[0] != size:
            self.grown[file.name] = (size, now)
            return False
        return now - seen[1] > PARTIAL_REST

    # Sending

    def send_matching(self, file: LogFile, chunk: Union[LogChunk, Woven], *, final: bool) -> None:
        """Send the parts of a chunk that pass the filters, after a report of bytes dropped before it."""
        if file.dropped and isinstance(chunk, LogChunk):
            self.filters.pop(file.name, None)  # what it holds was begun before the gap
            self.sender.dropped(file, chunk, file.dropped)
            file.dropped = 0
        if self.until is not None and (chunk.time or 0) > self.until:
            self.past_until.add(file.name)
            return
        if self.since is not None and (chunk.time or 0) < self.since:
            return
        wanted = self._wanted(file)
        if wanted is None:
            self.sender.send(file, chunk)
            return
        for of, piece in chunk.split() if isinstance(chunk, Woven) else [(file, chunk)]:
            lines = self.filters.setdefault(of.name, LineFilter(wanted))
            for part in lines.filter(piece, final=final and of is file):
                self.sender.send(of, part)

    def _wanted(self, file: LogFile) -> Optional[Wanted]:
        """The filter for a file's lines; None passes all."""
        search = _line_search(self.pattern) if self.pattern else None
        if file.name == AGENT_LOG and not self.asked.teardown:
            return lambda at, line: not self.worker_ends.hides(at, line) and (search is None or search(line))
        return (lambda _at, line: search(line)) if search else None


def _last_wanted(start: int, line: bytes, wanted: Wanted) -> Optional[int]:
    """Where the last unit of a line that is wanted begins, as ``LineFilter`` tests them; None if none is."""
    at = start + len(line)
    for unit in reversed(line.splitlines(True) or [b""]):
        at -= len(unit)
        if wanted(at, unit.rstrip(b"\r\n")):
            return at
    return None


def _line_search(pattern: "re.Pattern[str]") -> Callable[[bytes], object]:
    """A function that searches a line as text; each invalid UTF-8 sequence becomes U+FFFD, as on the terminal."""
    search = pattern.search
    return lambda line: search(line.decode(errors="replace"))  # naming the encoding takes twice as long


def _compile_pattern(pattern: Optional[str]) -> "Optional[re.Pattern[str]]":
    try:
        return re.compile(pattern) if pattern else None
    except (re.error, OverflowError, RecursionError) as error:
        raise Refused("--grep %s: %s" % (pattern, error), "write a Python regular expression") from error
