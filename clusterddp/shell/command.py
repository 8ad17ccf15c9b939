"""A command to be run on hosts, and how it ended on each; hosts' answers are checked here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError, UsageError
from clusterddp.logs.checked_frames import End, FilePart, Lines
from clusterddp.remote.shared.probes.facts_records import PythonQuery
from clusterddp.remote.shared.processes.exit_codes import EXIT_NOT_THE_SCRIPT
from clusterddp.remote.shared.schema.fields import DamagedError, Fields
from clusterddp.remote.shared.schema.record import read_record, record_in, to_fields
from clusterddp.remote.shared.shell.command_records import ExecEnd, ExecOutput, ExecRequest, WorkerPlace
from clusterddp.remote.shared.wire.frames import parse_json

if TYPE_CHECKING:
    from clusterddp.hosts.client import Host
    from clusterddp.remote.shared.wire.frames import Frame

GRACE = 5.0  # seconds between SIGTERM and SIGKILL; short, as such a command has no checkpoint to save


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A program with its arguments, or a text for the shell; exactly one of the two."""

    argv: tuple[str, ...] = ()  # the program and its arguments; no shell interprets them
    shell: str | None = None  # a text for ``bash -c`` (``sh`` if there is no bash)
    # run it in the login's environment and home; else as a worker runs: setup lines, interpreter, workdir
    bare: bool = False
    timeout: float | None = None  # seconds after which it is ended; None for no limit
    grace: float = GRACE  # seconds between SIGTERM and SIGKILL when it is ended

    def __post_init__(self) -> None:
        """Refuse a command with neither or both of ``argv`` and ``shell``, or with NUL bytes."""
        if bool(self.argv) == (self.shell is not None):
            raise UsageError("one command is needed", remedy="write it after --, or as text by --shell")
        if "\0" in "".join((*self.argv, self.shell or "")):
            raise UsageError("a command holds no NUL bytes", remedy="pass it by a file")

    def args(self, host: Host, workdir: str, subfolder: str) -> dict[str, Any]:
        """The arguments of the operation ``exec`` on a host."""
        place = None if self.bare else worker_place(host, workdir, subfolder)
        return to_fields(
            ExecRequest(argv=self.argv, shell=self.shell, place=place, timeout=self.timeout, grace=self.grace)
        )


def worker_place(host: Host, workdir: str, subfolder: str) -> WorkerPlace:
    """Where a command runs on a host as a worker would."""
    entry = host.entry
    job = PythonQuery(setup=tuple(entry.setup), env=dict(entry.env), python=entry.python, workdir=workdir)
    return WorkerPlace(job=job, host=entry.name, subfolder=subfolder)


@dataclass(frozen=True, kw_only=True, slots=True)
class Executed:
    """How a command ended on one host."""

    host: str
    code: int  # its exit code; 128+N for signal N, 124 after its time limit, 125 if the host was not reached, or lost
    # why it was not started, that its time was over, what happened to the host, or that its output is cut; else empty
    error: str = ""
    stopped: bool = False  # whether it was ended at our request
    # processes of it that still live, as ``pid command``: in the background, or impossible to end
    left: tuple[str, ...] = ()
    cwd: str = ""  # the folder it ran in; empty if unknown
    home: bool = False  # whether it ran in the home folder because there is no workdir yet
    output: bytes = b""  # what it wrote, if that was collected


def unreached(host: str, error: str) -> Executed:
    """The result for a host that did not answer, or no longer does."""
    return Executed(host=host, code=EXIT_NOT_THE_SCRIPT, error=error)


def output_frame(host: str, frame: Frame, offsets: dict[str, int]) -> Lines:
    """Check a frame of output and convert it to the form that merging logs takes; ``HelperError`` if it is damaged.

    ``offsets`` counts the bytes of each stream.
    """
    try:
        stream = read_record(ExecOutput, frame.header, "output").stream
    except DamagedError as error:
        raise HelperError(host, f"its output is damaged: {str(frame.header)[:80]}") from error
    offset = offsets.get(stream, 0)
    offsets[stream] = offset + len(frame.body)
    part = FilePart(
        file=stream, stream=stream, rank=None, local_rank=None, start=None, offset=offset, next=offsets[stream]
    )
    return Lines(part=part, body=frame.body)


def end_frame(host: str, frame: Frame) -> End:
    """Check the last frame and convert it to the form that merging logs takes; ``HelperError`` if it is damaged."""
    try:
        answer = parse_json(frame.body)
        read_end(host, answer)
    except ValueError as error:
        raise HelperError(host, f"its answer is damaged: {error}") from error
    return End(ended=answer)


def read_end(host: str, answer: Any) -> Executed:
    """Decode a host's report of the end; ``ValueError`` if it is damaged."""
    end = record_in(Fields(answer), ExecEnd)
    left = tuple(f"{process.pid} {process.command}" for process in end.left)
    return Executed(
        host=host, code=end.code, error=end.error, stopped=end.stopped, left=left, cwd=end.cwd, home=end.home
    )
