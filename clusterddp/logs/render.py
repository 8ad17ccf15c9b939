"""Render frames as bytes for a file or a pipe: labelled text, or JSON. Pure: nothing is written here.

Bulk output is labelled a chunk at a time; lines are examined one by one only if something in the chunk requires it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import fields
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING

from clusterddp.logs.checked_frames import Lines, LogHeader
from clusterddp.logs.lines import LogLine, Span
from clusterddp.logs.merge import FrameArrived, StreamBroken, StreamEnded
from clusterddp.logs.view import FileView
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterddp.logs.checked_frames import FilePart, LogFrame
    from clusterddp.logs.fold import Fold, HeldLine
    from clusterddp.logs.merge import Event

NO_RUN = LogHeader(run="", attempt=0, clock_error_ns=0)  # of hosts that run a command, and say nothing first
MAX_HELD = 32 << 20  # bytes of unfinished lines and redraws of one host
_NEWLINE = 10
INDEX_STEP_MS = 100.0  # how often a supervisor records file sizes: a line may be this much older than its time


def timestamp(time_ns: int | None) -> str:
    """Format a time as ``-t`` shows it: local, in milliseconds, with its zone, as ``--since`` accepts it."""
    if time_ns is None:
        return "-"
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().isoformat(timespec="milliseconds")


class FrameReader:
    """Splits frames into spans by file; a subclass renders a span."""

    def __init__(self) -> None:
        self.notices: list[str] = []  # messages for the user; the caller that shows them removes them
        self.views: dict[tuple[str, str], FileView] = {}
        self.headers: dict[str, LogHeader] = {}  # by host
        self._received: dict[str, int] = {}  # host → bytes received since its held lines were last measured

    def spans(self, host: str, frame: LogFrame) -> list[tuple[FileView, Span]]:
        """Return the whole lines in a frame, as spans; a header only says what follows."""
        if isinstance(frame, Lines):
            return self.spans_of_both(host, frame) if frame.second else self._spans_of_file(host, frame)
        if isinstance(frame, LogHeader):
            if self.headers.get(host, frame).attempt != frame.attempt:
                self.views = {key: view for key, view in self.views.items() if key[0] != host}
            self.headers[host] = frame
        return []

    def spans_of_both(self, host: str, lines: Lines) -> list[tuple[FileView, Span]]:
        """Return the whole lines in a frame that holds lines of both streams of a worker."""
        return [span for part in lines.split() for span in self._spans_of_file(host, part)]

    def _spans_of_file(self, host: str, lines: Lines) -> list[tuple[FileView, Span]]:
        """Return the whole lines in a frame that holds output of one file."""
        part = lines.part
        view = self.view_of(host, part)
        found = view.splitter.feed(lines.body, part.offset, part.time)
        view.part = part
        if part.dropped:
            size = counted(part.dropped, "byte")
            self.notices.append(f"{view.label.decode()}dropped: {size}, the log limit was reached")
            found.append(Span(part.offset - part.dropped, b"", part.time, part.dropped))
        spans = [(view, span) for span in found]
        received = self._received[host] = self._received.get(host, 0) + len(lines.body)
        if received >= MAX_HELD // 2:  # until then, the held lines cannot have grown by more than this
            self._received[host] = 0
            spans.extend(self._limit_held(host))
        return spans

    def _limit_held(self, host: str) -> Iterator[tuple[FileView, Span]]:
        """If a host's unfinished lines take too much memory, yield what has arrived of them."""
        views = [view for view in self.views.values() if view.host == host]
        if sum(view.splitter.held for view in views) > MAX_HELD // 2:
            for view in views:
                for span in view.splitter.cut():
                    yield view, span

    def view_of(self, host: str, part: FilePart) -> FileView:
        """Return the state of showing a host's file."""
        view = self.views.get((host, part.file))
        if view is None:
            view = self.views[host, part.file] = FileView(host, part)
        return view

    def unfinished_spans(self, host: str) -> Iterator[tuple[FileView, Span]]:
        """Yield the unfinished lines of a host that sends nothing more."""
        for view in [view for view in self.views.values() if view.host == host]:
            for span in view.splitter.close():
                yield view, span


class Renderer(FrameReader, ABC):
    """A FrameReader whose output is bytes for stdout."""

    partials = False  # whether it can show unfinished lines
    timed = False  # whether it needs the lines' times

    def __init__(self) -> None:
        super().__init__()
        self.unwritten = bytearray()  # what was drawn; the caller that writes it removes it

    @abstractmethod
    def render(self, view: FileView, span: Span) -> bytes:
        """Render one span."""

    def draw(self, events: Iterable[Event]) -> bytes:
        """Return what a batch of events adds to the output; messages for the user are added to ``notices``."""
        pieces = []
        for event in events:
            if isinstance(event, FrameArrived):
                pieces.append(self.feed(event.host, event.frame))
            elif isinstance(event, StreamEnded) or event.retry is None:
                pieces.append(self.end(event.host))
            if isinstance(event, StreamBroken):
                self.notices.append(event.notice)
        pieces.append(self.late())
        if self.notices:
            pieces.append(self.hide())
        return b"".join(pieces)

    @staticmethod
    def shows(events: Iterable[Event]) -> bool:
        """Whether a batch has lines, or a host's stream ends or breaks off in it."""
        return any(not isinstance(event, FrameArrived) or event.body for event in events)

    def feed(self, host: str, frame: LogFrame) -> bytes:
        """Return what a frame adds to the output."""
        return b"".join([self.render(view, span) for view, span in self.spans(host, frame)])

    def end(self, host: str) -> bytes:
        """Return the rest of a host that sends nothing more; a last line without a newline gets one."""
        return b"".join([self.render(view, span) for view, span in self.unfinished_spans(host)])

    def fold(self, fold: Fold) -> None:
        """From now on, show equal lines of several ranks as one; renderers without labels ignore this."""

    def wait(self) -> float | None:
        """Return the seconds until ``draw`` must be called even without events, or None. Any thread may call it."""
        return None

    def late(self) -> bytes:
        """Return held lines that are now due."""
        return b""

    def hide(self) -> bytes:
        """Return held lines and clear temporary text, before something else is written to the terminal."""
        return b""


# From the sixteen colours: no red, which is for errors; no dark blue, unreadable on black; only bright ones that are
# readable on white. Ranks may share a colour: the label tells them apart.
_COLOURS = (b"\x1b[36m", b"\x1b[33m", b"\x1b[35m", b"\x1b[32m", b"\x1b[94m", b"\x1b[95m")
BOLD, _DIM, RESET = b"\x1b[1m", b"\x1b[2m", b"\x1b[0m"


class TextRenderer(Renderer):
    """Renders labelled text for files and pipes, with the time of every line and coloured labels if wanted."""

    def __init__(self, *, timestamps: bool = False, colour: bool = False) -> None:
        super().__init__()
        self.timed = timestamps
        self.reset = RESET if colour else b""  # appended to a line that contains escapes
        self._colour = colour
        self._fold: Fold | None = None

    def fold(self, fold: Fold) -> None:
        """From now on, show equal lines of several ranks as one."""
        self._fold = fold

    def wait(self) -> float | None:
        """Return the seconds until a held line is due; None if no line is held."""
        return self._fold.wait() if self._fold else None

    def late(self) -> bytes:
        """Return the folded lines that are due."""
        return self.folded(self._fold.due()) if self._fold else b""

    def hide(self) -> bytes:
        """Return all folded lines."""
        return self.folded(self._fold.all()) if self._fold else b""

    def spans_of_both(self, host: str, lines: Lines) -> list[tuple[FileView, Span]]:
        """Return the frame as one span if its pieces are whole lines of one time, so that all are labelled together."""
        views = [self.view_of(host, part) for part in lines.files]
        at_start = [view.splitter.at_line_start(part.offset) for view, part in zip(views, lines.files, strict=True)]
        together = len({part.time for part in lines.files}) == 1 and _pieces_are_whole(lines)
        if self._fold or not together or not all(at_start):
            return super().spans_of_both(host, lines)
        for view, part in zip(views, lines.files, strict=True):
            view.splitter.skip(part.next)
        return [(views[0], Span(lines.part.offset, lines.body, lines.part.time))]

    def plain_prefix(self, view: FileView, time: int | None) -> bytes:
        """Return the prefix of a line, without colour."""
        return timestamp(time).encode() + b" " + view.label if self.timed else view.label

    def prefix(self, view: FileView, time: int | None) -> bytes:
        """Return the prefix of a line: the label in its rank's colour."""
        rank = view.part.rank
        return self._in_colour(_DIM if rank is None else _COLOURS[rank % len(_COLOURS)], self.plain_prefix(view, time))

    def _in_colour(self, colour: bytes, plain: bytes) -> bytes:
        """Colour a prefix, but for its last space; without colours return it as it is."""
        return colour + plain[:-1] + RESET + b" " if self._colour else plain

    def render(self, view: FileView, span: Span) -> bytes:
        """Render one span with labels."""
        text = span.data
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        if b"\r" in text or span.data.startswith(b"\r\n"):  # that may end what was taken for a redraw
            lines = self.lines(view, span)
            text = b"".join([line + b"\n" for line in lines])
        else:
            view.splitter.drop_redraw()
        if not text:
            return b""
        text = self.shown(view, text if text[-1:] == b"\n" else text + b"\n")
        if self._fold:
            attempt = self.headers.get(view.host, NO_RUN).attempt
            return self.folded(self._fold.take(view, attempt, span.time, text))
        return self.labelled(self.prefix(view, span.time), text)

    def shown(self, view: FileView, text: bytes) -> bytes:  # noqa: ARG002 - for subclasses
        """Return the part of whole lines that is shown; in a file or a pipe, all of them."""
        return text

    def folded(self, lines: Iterable[HeldLine]) -> bytes:
        """Render lines that were held, each labelled with its ranks."""
        return b"".join([self.labelled(self.folded_prefix(line), line.text + b"\n") for line in lines])

    def folded_prefix(self, line: HeldLine) -> bytes:
        """Return the prefix of a line that was held; with several ranks it is bold, with the time of the first."""
        if len(line.ranks) < 2:
            return self.prefix(line.view, line.time)
        plain = timestamp(line.time).encode() + b" " + line.label if self.timed else line.label
        return self._in_colour(BOLD, plain)

    def lines(self, view: FileView, span: Span) -> list[bytes]:
        """Return the lines of a span that has redraws."""
        return [text for _, _, text in view.splitter.lines_of(span)]

    def labelled(self, prefix: bytes, text: bytes) -> bytes:
        """Put the prefix before each line, and remove terminal escapes other than colours from the text."""
        text = clean(text)
        end = self.reset + b"\n" if self.reset and b"\x1b" in text else b"\n"
        return prefix + text[:-1].replace(b"\n", end + prefix) + end


def _pieces_are_whole(lines: Lines) -> bool:
    """Whether every piece of a frame consists of lines that end with a newline, and none is a redraw."""
    body = lines.body
    return b"\r" not in body and all(body[end - 1] == _NEWLINE for end in accumulate(lines.pieces))


class LineReader(FrameReader):
    """Converts frames to LogLines; ``run.logs()`` yields them."""

    def feed(self, host: str, frame: LogFrame) -> list[LogLine]:
        """Return the lines that a frame completes."""
        return [line for view, span in self.spans(host, frame) for line in self.render(view, span)]

    def end(self, host: str) -> list[LogLine]:
        """Return the rest of a host that sends nothing more."""
        return [line for view, span in self.unfinished_spans(host) for line in self.render(view, span)]

    def render(self, view: FileView, span: Span) -> list[LogLine]:
        """Convert one span to lines."""
        part, header = view.part, self.headers.get(view.host, NO_RUN)
        gap = [(span.offset, span.offset + span.dropped, b"")] if span.dropped else None
        return [
            LogLine(
                time=None if span.time is None else round(span.time / 1e9, 6),
                time_error_ms=round(header.clock_error_ns / 1e6 + INDEX_STEP_MS, 3),
                run=header.run,
                attempt=header.attempt,
                round=part.start,
                rank=part.rank,
                host=view.host,
                local_rank=part.local_rank,
                stream=part.stream,
                offset=offset,
                next=following,
                text=text.decode(errors="replace"),
                dropped=span.dropped,
            )
            for offset, following, text in gap or view.splitter.lines_of(span)
        ]


class JsonRenderer(Renderer):
    """Renders one JSON object per line, with the fields of LogLine."""

    timed = True

    def __init__(self) -> None:
        super().__init__()
        self._lines = LineReader()
        self._lines.headers = self.headers

    def render(self, view: FileView, span: Span) -> bytes:
        """Render one span as JSON lines."""
        return "".join([_json(line) for line in self._lines.render(view, span)]).encode()


_FIELDS = tuple(field.name for field in fields(LogLine) if field.name != "dropped")
_encode = json.JSONEncoder().encode


def _json(line: LogLine) -> str:
    """Encode a line as `logs --json` prints it."""
    value = {name: getattr(line, name) for name in _FIELDS}
    if line.dropped:
        value["dropped"] = line.dropped
    return _encode(value) + "\n"


class JsonOutputRenderer(Renderer):
    """Renders one JSON object ``{host, stream, text}`` for each line of a command that belongs to no run."""

    def render(self, view: FileView, span: Span) -> bytes:
        """Render one span as JSON lines."""
        stream = view.part.stream
        texts = [text.decode(errors="replace") for _, _, text in view.splitter.lines_of(span)]
        lines = [json.dumps({"host": view.host, "stream": stream, "text": text}) + "\n" for text in texts]
        return "".join(lines).encode()
