"""Select, merge and show the log lines of many hosts.

Selection → tail on each host → frames → checked → Merge → Renderer → bytes
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from clusterddp.logs.fold import Fold
from clusterddp.logs.incoming import checked
from clusterddp.logs.lines import LogLine
from clusterddp.logs.merge import Event, FrameArrived, Merge, StreamBroken, StreamEnded, backoff, brief_backoff
from clusterddp.logs.render import BOLD, RESET, JsonRenderer, LineReader, Renderer, TextRenderer
from clusterddp.logs.resume import Offsets, places_after, read_lines
from clusterddp.logs.save import Saver
from clusterddp.logs.screen import TerminalRenderer
from clusterddp.logs.selection import Position, Selection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import IO

__all__ = [
    "BOLD",
    "RESET",
    "Event",
    "Fold",
    "FrameArrived",
    "JsonRenderer",
    "LineReader",
    "LogLine",
    "Merge",
    "Offsets",
    "Position",
    "Renderer",
    "Saver",
    "Selection",
    "StreamBroken",
    "StreamEnded",
    "TerminalRenderer",
    "TextRenderer",
    "backoff",
    "brief_backoff",
    "checked",
    "coloured",
    "lines",
    "places_after",
    "read_lines",
    "renderer_for",
]


def renderer_for(
    output: IO[bytes],
    *,
    as_json: bool = False,
    timestamps: bool = False,
    whole: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Renderer:
    """Return the renderer for an output: JSON, a terminal's, or plain text.

    ``whole``: on a terminal, show tracebacks of lost peers in full instead of one line each.
    """
    if as_json:
        return JsonRenderer()
    colour = coloured(output, environment)
    if not _at_terminal(output, environment):
        return TextRenderer(timestamps=timestamps, colour=colour)
    return TerminalRenderer(
        width=lambda: shutil.get_terminal_size().columns, colour=colour, timestamps=timestamps, whole=whole
    )


def coloured(output: IO[bytes], environment: Mapping[str, str] = os.environ) -> bool:
    """Whether an output takes colours: terminals do, all others with ``CLICOLOR_FORCE``, and none with ``NO_COLOR``."""
    forced = bool(environment.get("CLICOLOR_FORCE", "0").strip("0"))
    return not environment.get("NO_COLOR") and (forced or _at_terminal(output, environment))


def _at_terminal(output: IO[bytes], environment: Mapping[str, str]) -> bool:
    return output.isatty() and environment.get("TERM") != "dumb"


def lines(merge: Merge, reader: LineReader | None = None) -> Iterator[LogLine]:
    """Yield every line of a merge, until all hosts have ended.

    Raises:
        ClusterddpError: A host's stream broke and is not reopened.
    """
    reader = reader or LineReader()
    for event in (event for batch in merge for event in batch):
        if isinstance(event, FrameArrived):
            yield from reader.feed(event.host, event.frame)
        elif isinstance(event, StreamEnded):
            yield from reader.end(event.host)
        elif event.retry is None:
            raise event.error
