"""Choose the renderer for an output, and read lines without one."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from clusterddp.logs.merge import FrameArrived, StreamEnded
from clusterddp.logs.render import JsonRenderer, LineReader, Renderer, TextRenderer
from clusterddp.logs.screen import TerminalRenderer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO

    from clusterddp.logs.lines import LogLine
    from clusterddp.logs.merge import Event


def renderer_for(
    output: IO[bytes], *, as_json: bool = False, timestamps: bool = False, whole: bool = False
) -> Renderer:
    """Return the renderer for an output: JSON, a terminal's (``whole``: folds no tracebacks), or plain text."""
    if as_json:
        return JsonRenderer()
    colour = coloured(output)
    if not _at_terminal(output):
        return TextRenderer(timestamps=timestamps, colour=colour)
    return TerminalRenderer(
        width=lambda: shutil.get_terminal_size().columns, colour=colour, timestamps=timestamps, whole=whole
    )


def coloured(output: IO[bytes]) -> bool:
    """Whether an output takes colours: terminals do, all others with ``CLICOLOR_FORCE``, and none with ``NO_COLOR``."""
    forced = bool(os.environ.get("CLICOLOR_FORCE", "0").strip("0"))
    return not os.environ.get("NO_COLOR") and (forced or _at_terminal(output))


def _at_terminal(output: IO[bytes]) -> bool:
    return output.isatty() and os.environ.get("TERM") != "dumb"


def lines(batches: Iterable[list[Event]]) -> Iterator[LogLine]:
    """Convert batches of log events to log lines; raises ClusterddpError if a host's log stream failed for good."""
    reader = LineReader()
    for event in (event for batch in batches for event in batch):
        if isinstance(event, FrameArrived):
            yield from reader.feed(event.host, event.frame)
        elif isinstance(event, StreamEnded):
            yield from reader.end(event.host)
        elif event.retry is None:
            raise event.error
