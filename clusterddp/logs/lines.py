r"""Split one file's bytes into lines as they arrive, with the same result however the bytes were cut.

A line ends with ``\n``, ``\r\n``, or ``\r\r\n`` (what a pty makes of the second). Another ``\r`` ends a redraw: text
that the next text is drawn over. A terminal shows each redraw for a moment; other outputs show one every 10 s of
recorded time, and the last. A line over 8 MiB is split, and so are a host's unfinished lines when they take too much
memory together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clusterddp.remote.shared.logs.log_units import first_unit, last_unit
from clusterddp.remote.shared.run.plan import AGENT_LOG
from clusterddp.remote.shared.wire.frames import LONGEST_LINE

if TYPE_CHECKING:
    from collections.abc import Iterator


REDRAW_INTERVAL = 10 * 10**9  # ns of recorded time between two redraws shown as lines
_MAX_LINE_END = 2  # bytes
_MAX_BOTTOM = 4096  # bytes of a line for a terminal's last row, which is drawn again with each frame

TextLine = tuple[int, int, bytes]  # offset, offset after it, text


class Span(NamedTuple):
    """Contiguous bytes of whole lines and redraws; at the end of a file the last line end may be missing."""

    offset: int
    data: bytes
    time: int | None  # ns by the operator's clock
    dropped: int = 0  # bytes lost after ``offset``; then there is no data


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One line of a worker or an agent."""

    # when it was written, in seconds since the epoch by the operator's clock; None in an untimed read
    time: float | None
    time_error_ms: float  # the maximum error of ``time``
    run: str
    attempt: int
    round: int | None  # the start of the workers on that host that it belongs to, counted from 0; None for an agent
    rank: int | None  # global rank; None for an agent
    host: str
    local_rank: int | None
    stream: str
    offset: int  # where it begins in its file, in bytes
    next: int  # where the line after it begins; pass it on to continue reading there
    text: str  # without its line end; bytes that are not UTF-8 are replaced
    # the number of bytes dropped here because of the log limit; then this is not a line, and the text is empty
    dropped: int = 0

    @property
    def file(self) -> str:
        """The line's file in the spool, as ``Selection.start`` names it."""
        return AGENT_LOG if self.local_rank is None else f"{self.round}.{self.local_rank}.{self.stream}"


class LineSplitter:
    """Splits the bytes of one file."""

    def __init__(self) -> None:
        self._unfinished = bytearray()  # the unfinished line
        self._start = 0  # offset of the unfinished line
        self._time: int | None = None  # time of its last bytes
        self._next: int | None = None  # offset after the last bytes
        self._redraw: Span | None = None  # the latest redraw, if not shown yet
        self._shown_at: int | None = None  # time of the redraw shown last

    def feed(self, body: bytes, offset: int, time: int | None) -> list[Span]:
        """Take the bytes at ``offset``; return the lines and redraws now complete. A gap ends an unfinished line."""
        spans = [] if self._next in (None, offset) else self.close()
        self._next = offset + len(body)
        if self._unfinished[-1:] == b"\r" and body[:1] not in (b"", b"\n") and body[:2] not in (b"\r", b"\r\n"):
            # The \r was a lone one, which ended a redraw: that has a time of its own.
            spans.append(self._take_first(len(self._unfinished)))
        self._time = time
        if not self._unfinished:
            self._start = offset
            if body[-1:] == b"\n":
                spans.append(Span(offset, body, time))
                return spans
        return spans + self._gather(body)

    def at_line_start(self, offset: int) -> bool:
        """Whether a new line can begin at ``offset``: nothing is missing before it, and no line is incomplete."""
        return not self._unfinished and self._next in (None, offset)

    def skip(self, offset: int) -> None:
        """Continue at ``offset``, past whole lines that were already shown."""
        self._next = offset
        self._redraw = None

    def _gather(self, body: bytes) -> list[Span]:
        """Append bytes to the unfinished line; return the lines and redraws now complete."""
        spans = []
        searched = max(0, len(self._unfinished) - 1)
        self._unfinished += body
        if len(self._unfinished) > LONGEST_LINE + _MAX_LINE_END:
            spans = self._split_overlong()
            searched = 0
        cut = last_unit(self._unfinished, searched)
        if cut == len(self._unfinished) - 1 and self._unfinished.endswith(b"\r\r"):  # a newline may follow
            cut = last_unit(self._unfinished[:cut])
        if cut:
            spans.append(self._take_first(cut))
        return spans

    def close(self) -> list[Span]:
        """Return the unfinished line, or else the last redraw if it was not shown."""
        span = self._take_first(len(self._unfinished))
        span = span._replace(data=span.data.rstrip(b"\r"))
        if self._redraw and not span.data.strip():
            span = self._redraw
        self._redraw = None
        return [span] if span.data else []

    def unfinished(self) -> bytes:
        """Return the first bytes of the unfinished line, or of the latest redraw, for a terminal's last row."""
        text = bytes(self._unfinished[:_MAX_BOTTOM]).rstrip(b"\r")
        return text if text.strip() or not self._redraw else self._redraw.data[:_MAX_BOTTOM]

    @property
    def held(self) -> int:
        """The number of bytes buffered here until the rest of their line arrives."""
        return len(self._unfinished) + (len(self._redraw.data) if self._redraw else 0)

    def cut(self) -> list[Span]:
        """Return what has arrived of the unfinished line; the rest becomes another line. Drop the redraw."""
        self._redraw = None
        size = len(self._unfinished.rstrip(b"\r"))  # a final \r may be a part of a line end
        return [self._take_first(size)] if size else []

    def drop_redraw(self) -> None:
        """Forget the latest redraw, because a line that ended with a newline was shown after it."""
        self._redraw = None

    def lines_of(self, span: Span, interval: int | None = REDRAW_INTERVAL) -> Iterator[TextLine]:
        """Yield the lines of a span to show, with one redraw every ``interval`` ns; None: no redraws."""
        offset = span.offset
        for unit in _units(span.data):
            start, offset = offset, offset + len(unit)
            text = unit.rstrip(b"\r\n")
            if unit[-1:] != b"\r":
                self._redraw = None
                yield start, offset, text
            elif text.strip():
                self._redraw = Span(start, text, span.time)
                if self._is_redraw_due(span.time or 0, interval):
                    self._redraw = None
                    yield start, offset, text

    def _is_redraw_due(self, time: int, interval: int | None) -> bool:
        """Whether a redraw is to be shown: the last one was shown ``interval`` ns ago, or more."""
        if interval is None or (self._shown_at is not None and time - self._shown_at < interval):
            return False
        self._shown_at = time
        return True

    def _take_first(self, size: int) -> Span:
        """Remove the first bytes of what is unfinished, and return them."""
        span = Span(self._start, bytes(self._unfinished[:size]), self._time)
        del self._unfinished[:size]
        self._start += size
        return span

    def _split_overlong(self) -> list[Span]:
        """Cut pieces of LONGEST_LINE bytes off the first line or redraw while it is longer than that."""
        spans = []
        while (first_unit(self._unfinished) or len(self._unfinished)) > LONGEST_LINE + _MAX_LINE_END:
            spans.append(self._take_first(LONGEST_LINE))
        return spans


def _units(data: bytes) -> list[bytes]:
    """Split the data into lines and redraws of progress bars, each with the newline or carriage return that ends it."""
    units: list[bytes] = []
    for unit in data.splitlines(keepends=True):
        if unit == b"\r\n" and units and units[-1].strip() and units[-1][-1:] == b"\r":
            units[-1] += unit  # what looked like a redraw is the line
        else:
            units.append(unit)
    return units
