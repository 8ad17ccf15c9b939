"""Resume reading: compute the offsets after the lines of an earlier ``logs --json``, or of ``run.logs()``."""

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


def offsets_after(lines: Iterable[LogLine]) -> Offsets:
    """Return the offsets after these lines; the part of one attempt can be used as ``Selection.start``."""
    offsets: Offsets = {}
    for line in lines:
        files = offsets.setdefault(line.attempt, {}).setdefault(line.host, {})
        files[line.file] = max(line.next, files.get(line.file, 0))
    return offsets


def read_lines(path: Path, run: str) -> Iterator[LogLine]:
    """Yield the lines that an earlier ``logs --json`` of this run wrote to a file, without a truncated one."""
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if text[-1:] != b"\n":
                return
            whole = text[max(0, text.rfind(b'{"time":')) :]  # appended output may follow a truncated line
            try:
                line = _decode(whole)
            except (ValueError, TypeError):
                message = f"--after {path}: line {number} is none of `logs --json`"
                raise UsageError(message, remedy="name a file that it wrote") from None
            if line.run != run:
                raise UsageError(f"--after {path}: line {number} is of run {line.run}, not {run}")
            yield line


def _decode(text: bytes) -> LogLine:
    """Decode the line in one JSON object; raise ValueError or TypeError if it is invalid."""
    value = parse_json(text)
    checked = Fields(value)
    for name in ("run", "host", "stream"):
        checked.text(name)
    for name in ("attempt", "offset", "next"):
        checked.number(name)
    for name in ("round", "rank", "local_rank"):
        checked.maybe_number(name)
    return LogLine(**{name: value[name] for name in _NAMES & value.keys()})
