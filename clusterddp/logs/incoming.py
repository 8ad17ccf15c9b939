"""Check a host's log frames: only those of the requested run pass, and every field is read by its type and range.

remote/shared/logs/log_frames.py specifies them.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from clusterddp.errors import HelperError
from clusterddp.logs.checked_frames import (
    CaughtUp,
    End,
    FilePart,
    Lines,
    LogFrame,
    LogHeader,
    RunStalled,
    WorkersExited,
    WorkersStarted,
)
from clusterddp.remote.shared.logs.log_frames import MAX_ATTEMPT, MAX_PIECES, is_run
from clusterddp.remote.shared.run.plan import AGENT_LOG
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.wire.frames import parse_json

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from clusterddp.remote.shared.wire.frames import Frame

_FILE = re.compile(r"([0-9]{1,9})\.([0-9]{1,5})\.(out|err)")
_MAX_START = 10**9
_MAX_RANK = (1 << 31) - 1
_MAX_OFFSET = 1 << 43  # 8 TiB of one process: a copy can be written here, as ext4 ends at 16


def check_frames(frames: Generator[Frame], host: str, run: str, attempt: int) -> Iterator[LogFrame]:
    """Yield the valid frames of a host's ``tail``; closing this generator closes the source. Raises HelperError."""
    header_read = False
    with contextlib.closing(frames):
        for frame in frames:
            try:
                if frame.kind == "end":
                    yield _end(frame.body)
                else:
                    yield read_frame(frame) if header_read else _header(frame, run, attempt)
            except ValueError as error:
                raise HelperError(host, f"its logs are damaged: {error}") from error
            header_read = True


def _header(frame: Frame, run: str, attempt: int) -> LogHeader:
    """Check the first frame of the logs of one attempt of a run."""
    fields = Fields(frame.header)
    if not fields.flag("hello"):
        raise ValueError("its logs do not begin with what they are of")
    identity = fields.check("run", is_run, "a run's id"), fields.number("attempt", MAX_ATTEMPT)
    if identity != (run, attempt):
        raise ValueError(f"they are of run {identity[0]}, attempt {identity[1]}, not of {run}, {attempt}")
    return LogHeader(run=run, attempt=attempt, clock_error_ns=fields.number("clock_error_ns"))


def _end(body: bytes) -> End:
    """Check the result of the operation: ``{ended}``."""
    fields = Fields(parse_json(body))
    return End(ended=fields.raw("ended") if fields.given("ended") else None)


def read_frame(frame: Frame) -> LogFrame:
    """Check a frame after the first and before the last; raises ValueError if it is invalid."""
    fields = Fields(frame.header)
    if fields.given("caught_up"):
        return CaughtUp(offsets=_offsets(fields), whole=fields.flag("caught_up"))
    if fields.given("began"):
        return WorkersStarted(start=fields.number("began", _MAX_START))
    if fields.given("exited"):
        return WorkersExited(count=fields.number("exited", _MAX_RANK))
    if fields.given("stalled"):
        return RunStalled(count=fields.number("stalled", _MAX_RANK))
    return _lines(fields, frame.body)


def _lines(fields: Fields, body: bytes) -> Lines:
    """Check a frame of output."""
    file = fields.text("file")
    rank = fields.number("rank", _MAX_RANK) if fields.given("rank") else None
    if fields.given("open"):
        fields.flag("open")
    pieces = _pieces(fields, len(body)) if fields.given("pieces") else ()
    part = _part(fields, file, rank, sum(pieces[::2]) if pieces else len(body))
    _refuse_contradiction(fields, part)
    if not pieces:
        return Lines(part=part, body=body)
    if part.local_rank is None:
        raise ValueError("pieces of what has one stream")
    second_file = f"{part.start}.{part.local_rank}.{'err' if part.stream == 'out' else 'out'}"
    second = _part(fields.part("second"), second_file, rank, sum(pieces[1::2]))
    return Lines(part=part, body=body, second=second, pieces=pieces)


def _part(fields: Fields, file: str, rank: int | None, size: int) -> FilePart:
    """Read which file a frame's ``size`` bytes are of, and where in it they are."""
    match = _FILE.fullmatch(file)
    offset = fields.number("offset", _MAX_OFFSET)
    if fields.number("next") != offset + size:
        raise ValueError("next is not the offset after the lines")
    return FilePart(
        file=file,
        start=int(match[1]) if match else None,
        local_rank=int(match[2]) if match else None,
        rank=rank,
        stream=match[3] if match else "out",
        offset=offset,
        next=offset + size,
        time=fields.number("time") if fields.given("time") else None,
        dropped=fields.number("dropped", offset) if fields.given("dropped") else 0,
    )


def _refuse_contradiction(fields: Fields, part: FilePart) -> None:
    """Refuse lines of a file that is no log, or is not the one that the other fields name."""
    named = fields.maybe_number("start"), fields.maybe_number("local_rank"), fields.text("stream")
    if named != (part.start, part.local_rank, part.stream) or (part.start is None and part.file != AGENT_LOG):
        raise ValueError(f"file is not what the rest of its header says: {part.file[:80]!r}")


def _pieces(fields: Fields, size: int) -> tuple[int, ...]:
    """Read ``pieces``, the sizes of alternating pieces of two streams."""
    pieces = fields.numbers("pieces")
    if pieces and (not 2 <= len(pieces) <= MAX_PIECES or 0 in pieces or sum(pieces) != size):
        raise ValueError("pieces are not what the lines consist of")
    return pieces


def _offsets(fields: Fields) -> Mapping[str, int]:
    """Read ``offsets``: how far each file has been read."""
    offsets = fields.mapping("offsets", lambda inner, name: inner.number(name, _MAX_OFFSET))
    for name in offsets:
        if name != AGENT_LOG and not _FILE.fullmatch(name):
            raise ValueError(f"offsets names no file of logs: {name[:80]!r}")
    return offsets
