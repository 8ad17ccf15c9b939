"""Show log lines on a terminal, with the line that is still being written at the bottom."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterddp.logs.checked_frames import Lines
from clusterddp.logs.render import RESET, TextRenderer
from clusterddp.remote.shared.verdict.failures import is_lost_peer
from clusterddp.text.clean import clean
from clusterddp.text.folding import columns

if TYPE_CHECKING:
    from collections.abc import Callable
    from re import Match

    from clusterddp.logs.checked_frames import LogFrame
    from clusterddp.logs.lines import Span
    from clusterddp.logs.view import FileView

_TRACEBACK = re.compile(rb"(?m)^Traceback \(most recent call last\):\n((?:[ \t].*\n)+)(\S.*)$")
_COLLECTIVE_ERROR = re.compile(rb"(?i)gloo|nccl|torch\.distributed")
_CLOSED_ERROR = re.compile(rb"(?i)connection (was )?(likely )?(closed|reset)|remote process")


def remove_rank(rank: int | None, text: bytes) -> bytes:
    """Remove torch's ``[rank3]:`` before each line if that is the rank whose lines they are."""
    if rank is None or b"[rank" not in text:
        return text
    return re.sub(rb"(?m)^\[rank%d\]:(?: |(?=\[)|$)" % rank, b"", text)


def fold_tracebacks(text: bytes) -> bytes:
    """Replace each traceback of a lost peer by one line: its exception, and its number of lines."""
    if b"Traceback" not in text:  # searching with the following space as well takes 8 times as long
        return text
    return _TRACEBACK.sub(_fold_if_lost_peer, text)


def _fold_if_lost_peer(traceback: Match[bytes]) -> bytes:
    """Replace a traceback if its exception says that another rank has closed the connection."""
    frames, error = traceback.groups()
    is_lost = (
        _COLLECTIVE_ERROR.search(error) and _CLOSED_ERROR.search(error) and is_lost_peer(error.decode(errors="replace"))
    )
    if not is_lost:
        return traceback[0]
    return b"%s (its traceback of %d lines: --show-all)" % (error, frames.count(b"\n") + 2)


_CLEAR = b"\r\x1b[K"


class TerminalRenderer(TextRenderer):
    """Renders labelled text for a terminal; ``width`` returns its number of columns."""

    partials = True

    def __init__(
        self, *, width: Callable[[], int], colour: bool = True, timestamps: bool = False, whole: bool = False
    ) -> None:
        super().__init__(timestamps=timestamps, colour=colour)
        self._whole = whole
        self._width = width
        self.reset = RESET
        self._bottom_view: FileView | None = None  # whose unfinished line stands at the bottom
        self._drawn = b""  # the bottom line, as it was drawn last

    def feed(self, host: str, frame: LogFrame) -> bytes:
        """Return what a frame adds: lines above the bottom line, and the bottom line redrawn."""
        lines = super().feed(host, frame)
        view = self.views.get((host, frame.part.file)) if isinstance(frame, Lines) else None
        if view is not None and view.splitter.unfinished():
            self._bottom_view = view
        return self._draw(lines)

    def end(self, host: str) -> bytes:
        """Return the rest of a host that sends nothing more."""
        return self._draw(super().end(host))

    def hide(self) -> bytes:
        """Clear the bottom line, and return the folded lines."""
        return self._clear() + super().hide()

    def late(self) -> bytes:
        """Return the folded lines that are due, above the bottom line."""
        lines = super().late()
        return self._draw(lines) if lines else b""

    def lines(self, view: FileView, span: Span) -> list[bytes]:
        """Return only the lines: redraws are shown at the bottom."""
        return [text for _, _, text in view.splitter.lines_of(span, None)]

    def shown(self, view: FileView, text: bytes) -> bytes:
        """Remove ranks that our labels already show; unless ``whole``, fold tracebacks of lost peers."""
        text = remove_rank(view.part.rank, text)
        return text if self._whole else fold_tracebacks(text)

    def _draw(self, lines: bytes) -> bytes:
        """Return lines, and the bottom line below them if it has moved or changed."""
        bottom = self._bottom_line()
        if not lines and bottom == self._drawn:
            return b""
        cleared = self._clear()
        self._drawn = bottom
        return cleared + lines + bottom

    def _clear(self) -> bytes:
        """Return what erases the bottom line."""
        cleared, self._drawn = _CLEAR if self._drawn else b"", b""
        return cleared

    def _bottom_line(self) -> bytes:
        """Return the unfinished line that came last, cut to the terminal's width; empty if there is none."""
        view = self._bottom_view
        text = view.splitter.unfinished() if view else b""
        if view is None or not text:
            self._bottom_view = None
            return b""
        line = self.prefix(view, view.part.time) + clean(remove_rank(view.part.rank, text))
        return cut_to_width(line, self._width() - 1) + self.reset


def cut_to_width(text: bytes, width: int) -> bytes:
    """Cut a line to the width; escapes take no columns."""
    characters, room, escape = [], width, False
    for character in text.decode(errors="replace").replace("\t", " "):
        escape = escape or character == "\x1b"
        room -= 0 if escape else columns(character)
        if room < 0:
            break
        characters.append(character)
        escape = escape and character != "m"
    return "".join(characters).encode()
