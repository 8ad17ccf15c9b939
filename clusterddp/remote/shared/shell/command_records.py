"""The records of the operations ``exec``, ``shell`` and ``forward``: requests, answers, and headers of their frames."""

from typing import NamedTuple, Optional, Tuple

from ..probes.facts_records import PythonQuery
from ..run.spool_records import LeftProcess
from ..schema.fields import Fields
from ..schema.record import field, many, maybe, nested, one_of, record

OUT, ERR = "out", "err"


def _code(fields: Fields, name: str) -> int:
    return fields.number(name, 255)


def _cells(fields: Fields, name: str) -> int:
    return fields.number(name, (1 << 16) - 1)


@record
class WorkerPlace(NamedTuple):
    """Where a command runs as a worker would: in which environment of which host, and in which folder."""

    job: PythonQuery = field(nested(PythonQuery))
    host: str = field(Fields.text)
    subfolder: str = field(Fields.text)  # of the workdir


@record
class ExecRequest(NamedTuple):
    """A command: a program with its arguments, or a text for the shell."""

    argv: Tuple[str, ...] = field(Fields.texts)
    shell: Optional[str] = field(Fields.maybe_text)
    place: Optional[WorkerPlace] = field(maybe(nested(WorkerPlace)))  # None: the login's environment and home
    timeout: Optional[float] = field(Fields.maybe_real)  # seconds after which it is ended
    grace: float = field(Fields.real)  # seconds from SIGTERM to SIGKILL


@record
class ExecInput(NamedTuple):
    """The header of a frame to a command."""

    stop: bool = field(Fields.flag, default=False)  # end it


@record
class ExecOutput(NamedTuple):
    """The header of a frame of a command's output."""

    stream: str = field(one_of(OUT, ERR))


@record
class ExecEnd(NamedTuple):
    """How a command ended."""

    code: int = field(_code)
    error: str = field(Fields.text)  # why it was not started, or that its time was over; else empty
    stopped: bool = field(Fields.flag)  # at our request
    left: Tuple[LeftProcess, ...] = field(many(LeftProcess))  # processes of it that still live
    cwd: str = field(Fields.text, default="")
    home: bool = field(Fields.flag, default=False)  # it ran in the home folder because there is no workdir yet


@record
class WindowSize(NamedTuple):
    """The size of a terminal's window; also the header of a frame that changes it."""

    rows: int = field(_cells)
    columns: int = field(_cells)


@record
class ShellRequest(NamedTuple):
    """A login shell in a terminal."""

    window: WindowSize = field(nested(WindowSize))
    term: str = field(Fields.text)  # TERM
    place: Optional[WorkerPlace] = field(maybe(nested(WorkerPlace)))  # None: the login's environment and home
    spool: str = field(Fields.text, default="")  # of the run whose environment and folder it gets instead


@record
class ShellEnd(NamedTuple):
    """How a shell ended."""

    code: int = field(_code)


@record
class ForwardRequest(NamedTuple):
    """A port of the host's loopback, to which a connection is forwarded."""

    port: int = field(Fields.number)
