"""tail: the log lines of one node's spool, what is there and, with ``follow``, what comes.

Arguments of the operation, all but ``spool`` optional:

    spool         the spool's folder
    from          {file: offset}: where to go on; a file not named is read from its start
    follow        go on until the run has ended
    stream        out, err or both
    ranks, local_ranks   lists; agent: whether the agent's own output is wanted too
    since, until  ns by the operator's clock
    grep          a regular expression, on a line's bytes without its end
    tail          so many last lines of each worker only
    timed         every chunk carries the time of its lines
    partials      unfinished lines too, once they rest

First comes a frame ``hello``; then data frames (see ``_header``), the past ordered by time; in follow mode an
empty frame ``caught_up`` with all offsets, then what comes, as it comes. The result is ``{ended, offsets}``.

Not here: which files (logs/logset.py), how one is cut into chunks (logs/files.py), how lines look (clusterddp/logs).
"""

import heapq
import os
import re
import time
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from ..helper.request import Request
from ..shared.frames import MAX_BODY
from ..spool.layout import Spool
from ..system.bootstrap import Refused
from ..system.inotify import FolderWatch
from .files import Chunk, Grep, LogFile, LogSet

IDLE = 0.1  # seconds between looks when nothing wakes us
GATHER = 0.01  # seconds between two looks at slow output: fewer, fuller frames
REST = 0.2  # seconds after which an unfinished line counts as resting
COVER_LIMIT = 2.0  # seconds to wait for the supervisor to note what a plain read wants
LOCK_LIMIT = 5.0  # seconds from the exit record to the supervisor's end
LOST_LOOK = 1.0  # seconds between looks whether the supervisor lives
START_LIMIT = 60.0  # seconds within which a started node has a supervisor
TURN = 16  # chunks of one file before another's turn


def tail(request: Request) -> Dict[str, Any]:
    """The operation."""
    if not os.path.isdir(request.args["spool"]):
        raise Refused("the run's logs are gone: no %s" % request.args["spool"])
    reader = Tail(request)
    request.send(b"", hello=True, **reader.about())
    return reader.run()


class Tail:
    """One reader of one spool."""

    def __init__(self, request: Request) -> None:
        args = self.args = request.args
        self.request = request
        self.spool = Spool(args["spool"])
        self.plan = self.spool.plan()
        self.offset_ns = int(self.plan.get("clock_offset_ns") or 0)
        self.since, self.until = self._host_time("since"), self._host_time("until")
        self.timed = bool(args.get("timed") or self.since or self.until)
        self.pattern = _compiled(args.get("grep"))
        self.logs = LogSet(self.spool, args, timed=self.timed)
        self.greps: Dict[str, Grep] = {}
        self.passed: Set[str] = set()  # files that have come to ``until``
        self.grown: Dict[str, Tuple[int, float]] = {}  # file → (size, when it was first seen so large)
        self.lost_look = self.exit_seen = 0.0

    def _host_time(self, name: str) -> Optional[int]:
        value = self.args.get(name)
        return None if value is None else int(value) + self.offset_ns

    def about(self) -> Dict[str, Any]:
        """What the operator needs to know once."""
        error = self.plan.get("clock_error_ns") or 0
        return {"run": self.spool.run, "attempt": self.spool.attempt, "clock_error_ns": error}

    def run(self) -> Dict[str, Any]:
        """Everything, to the result."""
        over = self.over()
        while not over and self.spool.exit_record():
            time.sleep(GATHER)  # the supervisor's last moment
            over = self.over()
        self.history(over)
        if self.args.get("follow") and not over:
            self.request.send(b"", caught_up=True, offsets=self.logs.offsets())
            self.live()
        ended = self.spool.exit_record()
        return {"ended": ended, "offsets": self.logs.offsets()}

    def over(self) -> bool:
        """Whether nothing more will be written: look before the last read."""
        now = time.monotonic()
        record = self.spool.exit_record()
        if record:
            self.exit_seen = self.exit_seen or now
            return bool(record.get("pending")) or not self.spool.alive() or now - self.exit_seen > LOCK_LIMIT
        if now - self.lost_look < LOST_LOOK and self.lost_look:
            return False
        self.lost_look = now
        if os.path.exists(self.spool.path("supervisor.json")):  # written once the lock is held
            return not self.spool.alive()
        return time.time() - os.stat(self.spool.folder).st_mtime > START_LIMIT

    # The past

    def history(self, over: bool) -> None:
        """What is there now, ordered by time."""
        files = self.logs.wanted()
        follow = bool(self.args.get("follow")) and not over
        limits = {file.name: file.size for file in files}
        self._cover(files, limits, wait=not follow, over=over)
        whole = over or (not follow and bool(self.args.get("partials")))
        for file in files:
            limits[file.name] = self._bound(file, min(limits[file.name], file.index.covered))
        if self.args.get("tail") is not None:
            self._skip_to_last(files, limits, int(self.args["tail"]), whole=whole)
        past = [self._past(file, limits[file.name], whole=whole) for file in files]
        for file, chunk in heapq.merge(*past, key=lambda pair: pair[1].time or 0):
            self.pass_on(file, chunk, final=whole and chunk.next >= limits[file.name])

    def _cover(self, files: List[LogFile], limits: Dict[str, int], *, wait: bool, over: bool) -> None:
        """Read the indexes; wait until they hold what is there, and give up on a supervisor that notes nothing."""
        deadline = time.monotonic() + (COVER_LIMIT if wait and not over else 0.0)
        while True:
            for file in files:
                file.index.refresh()
            missing = [file for file in files if file.index.covered < limits[file.name]]
            if not missing or time.monotonic() >= deadline:
                break
            time.sleep(0.02)
        for file in missing if wait or over else ():
            file.settle()

    def _bound(self, file: LogFile, limit: int) -> int:
        """Move the file's place to ``since``; the end by ``until``."""
        file.skip_gone()
        if self.since is not None and not self.logs.begun(file):
            self._go_to(file, file.line_start(min(limit, file.index.size_before(self.since))))
        if self.until is not None:
            past = file.index.size_until(self.until)
            return max(file.pos, min(limit, past if past == file.size else file.line_start(past)))
        return limit

    def _go_to(self, file: LogFile, place: int) -> None:
        """Move on: what is gone before a place that was asked for is nobody's loss."""
        if place > file.pos:
            file.pos, file.dropped = place, 0

    def _skip_to_last(self, files: List[LogFile], limits: Dict[str, int], count: int, *, whole: bool) -> None:
        """Move each file's place so that each worker's last ``count`` lines are left."""
        workers: Dict[Optional[int], List[Tuple[int, str, int]]] = {}
        places: Dict[str, int] = {}
        for file in files:
            if not self.logs.begun(file):
                lines = workers.setdefault(file.local_rank, [])
                lines.extend(self._last(file, limits[file.name], count, whole=whole))
                places[file.name] = limits[file.name] if whole else file.line_start(limits[file.name])
        for lines in workers.values():
            for _, name, start in sorted(lines)[max(0, len(lines) - count) :]:
                places[name] = min(places[name], start)
        for name, place in places.items():
            self._go_to(self.logs.files[name], place)

    def _last(self, file: LogFile, limit: int, count: int, *, whole: bool) -> Iterator[Tuple[int, str, int]]:
        """(time, file, start) of the file's last lines that match."""
        high = limit if whole else file.line_start(limit)
        end = high
        for start, line in file.lines_back(file.pos, high):
            if count <= 0:
                return
            if not self.pattern or self.pattern.search(line):
                entry = file.index.at(end)
                yield (entry[0] if entry else 0, file.name, start)
                count -= 1
            end = start

    def _past(self, file: LogFile, limit: int, *, whole: bool) -> Iterator[Tuple[LogFile, Chunk]]:
        timed, file.timed = file.timed, True
        chunk = file.chunk(limit, whole=whole)
        while chunk:
            yield file, chunk
            chunk = file.chunk(limit, whole=whole)
        file.timed = timed

    # What comes

    def live(self) -> None:
        """What comes, until the run is over or ``until`` has passed."""
        watch = FolderWatch(self.logs.folder, self.spool.folder)
        try:
            while True:
                over, passed = self.over(), self._until_passed()
                began = time.monotonic()
                files = [file for file in self.logs.wanted() if file.name not in self.passed]
                sent = sum([self._advance(file, over) for file in files])
                if over or (passed and not sent):
                    return
                if not sent:
                    watch.wait(IDLE)
                elif sent < MAX_BODY:
                    time.sleep(max(0.0, began + GATHER - time.monotonic()))
        finally:
            watch.close()

    def _until_passed(self) -> bool:
        return self.until is not None and time.time_ns() > self.until + 10**9

    def _advance(self, file: LogFile, over: bool) -> int:
        """Send what a file has; returns how many bytes."""
        before, size = file.pos, file.size
        if over:
            file.settle()
        elif file.timed and size > file.pos:
            file.index.refresh()
        whole = over or (size > file.pos and self._rests(file, size))
        turns = 0
        while turns < TURN or over:
            chunk = file.chunk(size, whole=whole)
            if not chunk:
                break
            self.pass_on(file, chunk, final=over and file.pos >= size)
            turns += 1
        return file.pos - before

    def _rests(self, file: LogFile, size: int) -> bool:
        """Whether an unfinished line may be shown: wanted, and not grown for a while."""
        if not self.args.get("partials") or self.pattern:
            return False
        now = time.monotonic()
        seen = self.grown.get(file.name)
        if not seen or seen[0] != size:
            self.grown[file.name] = (size, now)
            return False
        return now - seen[1] > REST

    # Sending

    def pass_on(self, file: LogFile, chunk: Chunk, *, final: bool) -> None:
        """Send a chunk, or what the filters leave of it; before it, how much is gone there."""
        if file.dropped:
            self.greps.pop(file.name, None)  # what it holds was begun before the gap
            header = _header(file, Chunk(chunk.offset, b"", chunk.time), self.offset_ns)
            self.request.send(b"", dropped=file.dropped, **header)
            file.dropped = 0
        if self.until is not None and (chunk.time or 0) > self.until:
            self.passed.add(file.name)
            return
        if self.since is not None and (chunk.time or 0) < self.since:
            return
        if self.pattern is None:
            self._send(file, chunk)
            return
        grep = self.greps.setdefault(file.name, Grep(self.pattern))
        for part in grep.filter(chunk, final=final):
            self._send(file, part)

    def _send(self, file: LogFile, chunk: Chunk) -> None:
        self.request.send(chunk.body, **_header(file, chunk, self.offset_ns))


def _header(file: LogFile, chunk: Chunk, offset_ns: int) -> Dict[str, Any]:
    """A data frame's header: ``time`` is the operator's; ``open`` when the body ends within a line."""
    header: Dict[str, Any] = {
        "file": file.name,
        "start": file.start,
        "local_rank": file.local_rank,
        "rank": file.rank,
        "stream": file.stream,
        "offset": chunk.offset,
        "next": chunk.next,
    }
    if chunk.time is not None:
        header["time"] = chunk.time - offset_ns
    if chunk.body[-1:] not in (b"", b"\n"):
        header["open"] = True
    return header


def _compiled(pattern: Optional[str]) -> "Optional[re.Pattern[bytes]]":
    try:
        return re.compile(pattern.encode()) if pattern else None
    except re.error as error:
        raise Refused("--grep %s: %s" % (pattern, error), "write a Python regular expression") from error
