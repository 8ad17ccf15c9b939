"""A run's events on one host: one JSON object a line, appended by the supervisor, the shims and the hook.

Each record is one O_APPEND write, so writers need no lock. A full disk may cut a record short: the next writer begins a
new line, and readers skip what they cannot decode.
"""

import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ..shared.run.plan import AGENT_LOG
from ..shared.schema.json_text import to_json
from ..shared.wire.frames import parse_json

if TYPE_CHECKING:
    from ..shared.run.event_schema import NodeEvent

QUOTING_FIELDS = ("reason", "error", "packages")  # fields that may quote a program's output
OUR_REASONS = ("stopping", "ended")  # events whose reason we wrote; readers compare it, so it is not redacted


def append_event(path: str, name: str, **fields: Any) -> bool:
    """Append one event to an events file (made with mode 0600 when missing); whether the whole record was written.

    ``fields`` are JSON values; ``time`` (ns since the epoch) is now by default. Never raises OSError: no event is worth
    a worker.
    """
    record: Dict[str, Any] = {"event": name, "time": time.time_ns()}
    record.update(fields)
    quoted = [] if name in OUR_REASONS else [text for text in QUOTING_FIELDS if fields.get(text)]
    if quoted:
        from .quoted import redaction_of  # most events quote nothing

        redaction = redaction_of(os.path.dirname(path))
        record.update((text, redaction.value(fields[text])) for text in quoted)
    line = to_json(record).encode() + b"\n"
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        line = _missing_newline(fd) + line
        return os.write(fd, line) == len(line)
    except OSError:
        return False
    finally:
        os.close(fd)


def agent_bytes(spool: str) -> Optional[int]:
    """How many bytes the agent of a spool has written to its log; None where that cannot be read."""
    try:
        return os.stat(os.path.join(spool, "logs", AGENT_LOG)).st_size
    except OSError:
        return None


def _missing_newline(fd: int) -> bytes:
    """A newline when the last record was cut short, else nothing."""
    size = os.fstat(fd).st_size
    return b"\n" if size and os.pread(fd, 1, size - 1) != b"\n" else b""


def read_events(path: str) -> "List[NodeEvent]":
    """All events of a file, in order; lines that cannot be decoded are skipped, and a missing file has none."""
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    return [record for record in map(_decode, lines) if record is not None]


def _decode(line: bytes) -> "Optional[NodeEvent]":
    from ..shared.run.event_schema import maybe_event  # a worker's shim only writes events

    try:
        return maybe_event(parse_json(line))
    except ValueError:  # half a line, after a full disk or a killed writer
        return None
