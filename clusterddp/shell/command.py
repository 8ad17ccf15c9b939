"""What is to be run on hosts, and how it ended on each; what hosts tell of it is checked here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.errors import EXIT_NOT_THE_SCRIPT, HelperError, UsageError
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.wire.frames import Frame, parse_json

if TYPE_CHECKING:
    from clusterddp.inventory import HostEntry

GRACE = 5.0  # seconds between SIGTERM and SIGKILL: a command at hand saves no checkpoint
_STREAMS = ("out", "err")
_MOST_CODE = 255


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A program with its arguments, or a text for the shell; exactly one of both.

    Attributes:
        argv: The program and its arguments; no shell looks at them.
        shell: A text for ``bash -c`` (``sh`` where there is no bash).
        bare: In the login's environment and home; else as a worker has it: setup lines, interpreter, workdir.
        timeout: Seconds after which it is ended; None: no limit.
        grace: Seconds between SIGTERM and SIGKILL when it is ended.
    """

    argv: tuple[str, ...] = ()
    shell: str | None = None
    bare: bool = False
    timeout: float | None = None
    grace: float = GRACE

    def __post_init__(self) -> None:
        """Refuse what is no command.

        Raises:
            UsageError: neither or both of ``argv`` and ``shell`` are given.
        """
        if bool(self.argv) == (self.shell is not None):
            raise UsageError("one command is needed", remedy="write it after --, or as text by --shell")
        if "\0" in "".join((*self.argv, self.shell or "")):
            raise UsageError("a command holds no NUL bytes", remedy="pass it by a file")

    def args(self, entry: HostEntry, workdir: str, subfolder: str) -> dict[str, Any]:
        """The arguments of the operation ``exec`` on a host."""
        return {
            "argv": list(self.argv),
            "shell": self.shell,
            "bare": self.bare,
            "timeout": self.timeout,
            "grace": self.grace,
            "setup": list(entry.setup),
            "env": dict(entry.env),
            "python": entry.python,
            "host": entry.name,
            "workdir": workdir,
            "subfolder": subfolder,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Executed:
    """How a command ended on one host.

    Attributes:
        code: Its exit code, 128+N for signal N; 124: out of time; 125: the host could not be reached, or was lost.
        error: Why it could not be started, that its time was over, or what befell the host; else empty.
        stopped: It was ended on our word.
        left: Processes of it that live on, as ``pid command``: left in the background, or not to be ended.
        cwd: Where it ran; empty if unknown.
        home: There is no workdir yet, so it ran in the home folder.
        output: What it wrote, where it was collected.
    """

    host: str
    code: int
    error: str = ""
    stopped: bool = False
    left: tuple[str, ...] = ()
    cwd: str = ""
    home: bool = False
    output: bytes = b""


def unreached(host: str, error: str) -> Executed:
    """A host that did not answer, or no longer does."""
    return Executed(host=host, code=EXIT_NOT_THE_SCRIPT, error=error)


def output_frame(host: str, frame: Frame, offsets: dict[str, int]) -> Frame:
    """A checked frame of output, as the merge of logs takes it; ``offsets`` counts the bytes of each stream.

    Raises:
        HelperError: it is none.
    """
    stream = frame.header.get("stream")
    if stream not in _STREAMS:
        raise HelperError(host, f"its output is damaged: {str(frame.header)[:80]}")
    offset = offsets.get(stream, 0)
    offsets[stream] = offset + len(frame.body)
    header = {"file": stream, "stream": stream, "rank": None, "local_rank": None, "start": None}
    return Frame({**header, "offset": offset, "next": offsets[stream], "kind": "data"}, frame.body)


def end_frame(host: str, frame: Frame) -> Frame:
    """The checked last frame, as the merge of logs takes it.

    Raises:
        HelperError: it is none.
    """
    try:
        told = parse_json(frame.body)
        ended(host, told)
    except ValueError as error:
        raise HelperError(host, f"its answer is damaged: {error}") from error
    return Frame({"kind": "end"}, json.dumps({"ended": told}).encode())


def ended(host: str, told: Any) -> Executed:
    """What the host told of the end.

    Raises:
        ValueError: it is no such thing.
    """
    fields = Fields(told)
    left = fields.each("left", lambda one: f"{one.number('pid')} {one.text('command')}")
    return Executed(
        host=host,
        code=fields.number("code", _MOST_CODE),
        error=fields.text("error"),
        stopped=fields.flag("stopped"),
        left=left,
        cwd=fields.text("cwd"),
        home=fields.flag("home"),
    )
