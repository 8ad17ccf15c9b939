"""The logs of a run: which lines, from many hosts, merged, and shown.

    Selection → tail on each host → frames → Merge → Renderer → bytes

Not here: opening streams (the caller has the hosts), what a run's end means (verdict.py).
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from clusterddp.logs.lines import LogLine
from clusterddp.logs.merge import Arrived, Broken, Ended, Event, Merge, backoff
from clusterddp.logs.render import JsonRenderer, LineReader, Renderer, TextRenderer
from clusterddp.logs.screen import TerminalRenderer
from clusterddp.logs.selection import Position, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import IO

__all__ = [
    "Arrived",
    "Broken",
    "Ended",
    "Event",
    "JsonRenderer",
    "LineReader",
    "LogLine",
    "Merge",
    "Position",
    "Renderer",
    "Selection",
    "TerminalRenderer",
    "TextRenderer",
    "backoff",
    "lines",
    "renderer_for",
    "written",
]


def renderer_for(
    output: IO[bytes],
    *,
    as_json: bool = False,
    timestamps: bool = False,
    environment: Mapping[str, str] = os.environ,
    notice: Callable[[str], None] = lambda _: None,
) -> Renderer:
    """The renderer for an output: JSON, a terminal's, or plain text."""
    if as_json:
        return JsonRenderer(notice)
    if not output.isatty() or environment.get("TERM") == "dumb":
        return TextRenderer(timestamps=timestamps, notice=notice)
    return TerminalRenderer(
        width=lambda: shutil.get_terminal_size().columns,
        colour=not environment.get("NO_COLOR"),
        timestamps=timestamps,
        notice=notice,
    )


def written(events: Iterable[Event], renderer: Renderer) -> bytes:
    """The bytes that a batch of events adds to the output; breaks become notices."""
    pieces = []
    for event in events:
        if isinstance(event, Arrived):
            pieces.append(renderer.feed(event.host, event.frame))
        elif isinstance(event, Ended) or event.retry is None:
            pieces.append(renderer.end(event.host))
        if isinstance(event, Broken):
            renderer.notice(_said(event))
    return b"".join(pieces)


def lines(merge: Merge, reader: LineReader | None = None) -> Iterator[LogLine]:
    """Every line of a merge, until all hosts have ended.

    Raises:
        ClusterddpError: a host's stream broke for good.
    """
    reader = reader or LineReader()
    for event in (event for batch in merge for event in batch):
        if isinstance(event, Arrived):
            yield from reader.feed(event.host, event.frame)
        elif isinstance(event, Ended):
            yield from reader.end(event.host)
        elif event.retry is None:
            raise event.error


def _said(event: Broken) -> str:
    if event.retry is None:
        return f"no more logs of {event.host}: {event.error}"
    return f"logs of {event.host} are interrupted: {event.error.message}; trying again"
