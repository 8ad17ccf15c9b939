"""Log lines on a terminal: at the bottom is the line that is being written.

One unfinished line is shown at a time, the latest, cut to the width; it is cleared before anything else is
written, so no rank's text is ever glued to another's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.logs.clean import clean
from clusterddp.logs.peer_errors import folded, without_rank
from clusterddp.logs.render import RESET, TextRenderer
from clusterddp.text.folding import columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.logs.lines import Span
    from clusterddp.logs.view import FileView
    from clusterddp.remote.shared.wire.frames import Frame

_CLEAR = b"\r\x1b[K"


class TerminalRenderer(TextRenderer):
    """Labelled text for a terminal.

    Args:
        width: Tells how many columns there are.
        colour: Whether labels are coloured (not with ``NO_COLOR``).
        timestamps: As TextRenderer's.
        whole: Tracebacks of lost peers are shown whole, else as a line each.
    """

    partials = True

    def __init__(
        self,
        *,
        width: Callable[[], int],
        colour: bool = True,
        timestamps: bool = False,
        whole: bool = False,
    ) -> None:
        super().__init__(timestamps=timestamps, colour=colour)
        self._whole = whole
        self._width = width
        self.reset = RESET
        self._bottom: FileView | None = None  # whose unfinished line stands at the bottom
        self._drawn = b""

    def feed(self, host: str, frame: Frame) -> bytes:
        """What a frame adds: lines above the bottom, and the bottom anew."""
        lines = super().feed(host, frame)
        view = self.views.get((host, frame.header.get("file", "")))
        if view is not None and view.splitter.unfinished():
            self._bottom = view
        return self._draw(lines)

    def end(self, host: str) -> bytes:
        """What is left of a host that sends no more."""
        return self._draw(super().end(host))

    def hide(self) -> bytes:
        """Clear the bottom, and show the folded lines."""
        return self._clear() + super().hide()

    def late(self) -> bytes:
        """The folded lines whose time is up, above the bottom."""
        lines = super().late()
        return self._draw(lines) if lines else b""

    def lines(self, view: FileView, span: Span) -> list[bytes]:
        """The lines only: redraws show at the bottom."""
        return [text for _, _, text in view.splitter.lines_of(span, None)]

    def shown(self, view: FileView, text: bytes) -> bytes:
        """Whole lines without what our labels say already, and with tracebacks of lost peers folded."""
        text = without_rank(view.header["rank"], text)
        return text if self._whole else folded(text)

    def _draw(self, lines: bytes) -> bytes:
        bottom = self._bottom_line()
        if not lines and bottom == self._drawn:
            return b""
        cleared = self._clear()
        self._drawn = bottom
        return cleared + lines + bottom

    def _clear(self) -> bytes:
        cleared, self._drawn = _CLEAR if self._drawn else b"", b""
        return cleared

    def _bottom_line(self) -> bytes:
        view = self._bottom
        text = view.splitter.unfinished() if view else b""
        if view is None or not text:
            self._bottom = None
            return b""
        time = view.header.get("time")
        room = self._width() - 1 - len(self.plain_prefix(view, time))
        return self.prefix(view, time) + fitted(clean(without_rank(view.header["rank"], text)), room) + self.reset


def fitted(text: bytes, width: int) -> bytes:
    """As much of a line as fits; escapes take no room."""
    kept, room, escape = [], width, False
    for character in text.decode(errors="replace").replace("\t", " "):
        escape = escape or character == "\x1b"
        room -= 0 if escape else columns(character)
        if room < 0:
            break
        kept.append(character)
        escape = escape and character != "m"
    return "".join(kept).encode()
