"""The frames of a host's log stream once they are checked: what merging, showing and saving lines work on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class LogHeader:
    """The first frame: the run and attempt that the logs are of, and the largest error of their times."""

    run: str
    attempt: int
    clock_error_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CaughtUp:
    """All lines of the past were sent, up to these offsets by file; what follows is new."""

    offsets: Mapping[str, int]
    whole: bool = True  # otherwise the offsets of other files follow first


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersStarted:
    """The workers were started again; ``start`` counts from 0."""

    start: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersExited:
    """So many workers have ended so far."""

    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStalled:
    """The stall guard has found the run hung so many times so far."""

    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The stream is complete; ``ended`` is the host's exit record, None while the run goes on."""

    ended: Mapping[str, Any] | None


class FilePart(NamedTuple):
    """Bytes of one log file: which, and whose output they are."""

    file: str  # its name in the spool
    start: int | None  # the start of the workers that it belongs to; None for an agent
    local_rank: int | None  # None for an agent
    rank: int | None  # global rank; None for an agent, and while it is not known
    stream: str  # ``out`` or ``err``
    offset: int  # where the bytes begin
    next: int  # where they end
    time: int | None = None  # when they were written, in ns by the operator's clock; None in an untimed read
    dropped: int = 0  # how many bytes before them are lost: the log limit was reached


class Lines(NamedTuple):
    """Output of one file, or of both streams of a worker in the order in which they were written."""

    part: FilePart
    body: bytes
    second: FilePart | None = None  # what the body holds of the worker's other stream, if anything
    pieces: tuple[int, ...] = ()  # with ``second``: the sizes of pieces that are of ``part`` and of it in turn

    @property
    def files(self) -> tuple[FilePart, ...]:
        """The parts of files that the body holds."""
        return (self.part, self.second) if self.second else (self.part,)

    @property
    def offsets(self) -> Mapping[str, int]:
        """The offset after the body, for each file."""
        return {part.file: part.next for part in self.files}

    def split(self) -> Iterator[Lines]:
        """Yield the same as output of one file each."""
        if not self.second:
            yield self
            return
        files, begin = [self.part, self.second], 0
        next_offsets = [part.offset for part in files]
        for number, size in enumerate(self.pieces):
            offset = next_offsets[number % 2]
            next_offsets[number % 2] += size
            part = files[number % 2]._replace(offset=offset, next=offset + size)
            yield Lines(part=part, body=self.body[begin : begin + size])
            begin += size


LogFrame = LogHeader | CaughtUp | WorkersStarted | WorkersExited | RunStalled | Lines | End
