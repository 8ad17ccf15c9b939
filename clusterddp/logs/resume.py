"""Resuming: the offsets after the lines of an earlier ``logs --json``, or of ``run.logs()``."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.logs.lines import LogLine
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.wire.frames import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Offsets = dict[int, dict[str, dict[str, int]]]  # attempt → host → file → offset
_NAMES = {field.name for field in fields(LogLine)}


def places_after(lines: Iterable[LogLine]) -> Offsets:
    """The offsets after these lines; an attempt's part is ``Selection.start`` for its logs."""
    offsets: Offsets = {}
    for line in lines:
        files = offsets.setdefault(line.attempt, {}).setdefault(line.host, {})
        files[line.file] = max(line.next, files.get(line.file, 0))
    return offsets


def read_lines(path: Path, run: str) -> Iterator[LogLine]:
    """The lines that an earlier ``logs --json`` of this run wrote to a file; one that was cut is left out.

    Raises:
        UsageError: a line is none, or another run's.
    """
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if text[-1:] != b"\n":
                return
            whole = text[max(0, text.rfind(b'{"time":')) :]  # what was appended stands behind a line that was cut
            try:
                line = _decode(whole)
            except (ValueError, TypeError):
                message = f"--after {path}: line {number} is none of `logs --json`"
                raise UsageError(message, remedy="name a file that it wrote") from None
            if line.run != run:
                raise UsageError(f"--after {path}: line {number} is of run {line.run}, not {run}")
            yield line


def _decode(text: bytes) -> LogLine:
    """The line of one JSON object; raises ValueError or TypeError where it is none."""
    value = parse_json(text)
    checked = Fields(value)
    for name in ("run", "host", "stream"):
        checked.text(name)
    for name in ("attempt", "offset", "next"):
        checked.number(name)
    for name in ("round", "rank", "local_rank"):
        checked.maybe_number(name)
    return LogLine(**{name: value[name] for name in _NAMES & value.keys()})
