"""Workers of a run that have stopped at a breakpoint: which there are, and pdb of one of them over its host."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterddp.errors import ClusterddpError, HelperError, RunError
from clusterddp.hosts.ask import ask_list
from clusterddp.hosts.outgoing import Outgoing
from clusterddp.remote.shared.processes.debug_records import (
    REQUESTED,
    AttendRequest,
    BreakInRequest,
    DebugRequest,
    StopReport,
    StopsRequest,
)
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.text.short_duration import short_duration
from clusterddp.remote.shared.wire.frames import parse_json
from clusterddp.runs.ask_workers import each_spool
from clusterddp.text.clean import clean_text

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from clusterddp.hosts.client import Host
    from clusterddp.remote.shared.wire.frames import Frame
    from clusterddp.runs.run_on_hosts import RunOnHosts

_MAX_LINE = 1 << 18  # bytes of one message from a worker
_MAX_WAITING = 200  # messages that nobody has taken yet; then the host has to wait


@dataclass(frozen=True, kw_only=True, slots=True)
class StoppedRank:
    """A worker that waits at ``breakpoint()``, or at an uncaught exception, or has somebody attached."""

    rank: int
    host: str
    local_rank: int
    pid: int
    child: bool  # a process that the worker has forked
    cause: str  # ``breakpoint()``, ``clusterddp debug`` or the exception's class
    file: str
    line: int
    function: str
    left: float  # seconds until it goes on by itself
    attached: bool
    name: str  # of its socket

    @property
    def goes_on(self) -> bool:
        """Whether it runs on afterwards; after an uncaught exception it ends."""
        return self.cause in ("breakpoint()", REQUESTED)

    @property
    def place(self) -> str:
        """Where it is, as people read it."""
        return f"{self.file.rpartition('/')[2]}:{self.line} in {self.function}"

    def __str__(self) -> str:
        who = f"rank {self.rank} ({self.host}:{self.local_rank}"
        who += f", its child {self.pid})" if self.child else ")"
        if self.attached:
            return f"{who}: somebody is attached since it stopped at {self.cause}, {self.place}"
        return f"{who} waits at {self.cause}, {self.place}; it goes on by itself in {short_duration(self.left)}"


def find_stopped(run: RunOnHosts) -> list[StoppedRank]:
    """Return the run's stopped ranks, in order of rank; the error of a host is shown."""

    def ask(host: Host, spool: str) -> list[StoppedRank]:
        reports = ask_list(host, "debug_stops", StopsRequest(spool=spool), StopReport)
        return [StoppedRank(host=host.name, **report._asdict()) for report in reports]

    outcomes = each_spool(run, ask, unheard=True)
    for outcome in outcomes:
        if outcome.error:
            run.cluster.notify(f"not asked for stopped ranks: {outcome.error}")
    return sorted((stop for outcome in outcomes for stop in outcome.value or ()), key=lambda stop: stop.rank)


def stop_rank(run: RunOnHosts, rank: int) -> StoppedRank | None:
    """Stop the worker with this rank where it is, and return the stop; None if no host has it.

    Raises:
        RunError: It cannot be stopped, or a host that may have it does not answer; the message says why.
    """

    def ask(host: Host, spool: str) -> list[StoppedRank]:
        reports = ask_list(host, "break_in", BreakInRequest(spool=spool, rank=rank), StopReport)
        return [StoppedRank(host=host.name, **report._asdict()) for report in reports]

    outcomes = each_spool(run, ask, unheard=True)
    found = [stop for outcome in outcomes for stop in outcome.value or ()]
    reasons = [outcome.reason for outcome in outcomes if outcome.error]
    if reasons and not found:
        raise RunError("; ".join(reasons))
    return found[0] if found else None


class PdbMessage(NamedTuple):
    """What a worker's debugger says: text to show; then a prompt, if a line is asked for, or that the script runs."""

    text: str = ""
    prompt: str | None = None
    running: bool = False


def read_message(line: bytes) -> PdbMessage:
    """Decode one line of a worker's debugger; a line that says nothing known is an empty message. Raises ValueError."""
    data = parse_json(line)
    if type(data) is not dict:
        raise ValueError("no object")
    out, ask = data.get("out"), data.get("ask")
    prompt = clean_text(ask).replace("\n", " ") if isinstance(ask, str) else None
    return PdbMessage(clean_text(out) if isinstance(out, str) else "", prompt, data.get("running") is True)


def _lines(frames: Iterable[Frame]) -> Iterator[bytes]:
    """Split the data of frames into lines; raises ValueError if one is too long."""
    received = b""
    for frame in frames:
        if frame.kind == "data":
            *lines, received = (received + frame.body).split(b"\n")
            yield from lines
            if len(received) > _MAX_LINE:
                raise ValueError("a line of it is too long")


class PdbSession:
    """Pdb of one stopped rank, attached until it is closed. Meanwhile neither time limit nor stall guard end the run.

    A thread receives. ``handle`` is a descriptor that becomes readable whenever ``take`` may have something new.
    """

    def __init__(self, run: RunOnHosts, stop: StoppedRank) -> None:
        self.stop = stop
        self._messages: queue.Queue[PdbMessage | ClusterddpError | None] = queue.Queue(_MAX_WAITING)
        self.handle, self._wake = os.pipe()
        self._outgoing = Outgoing()
        host = run.cluster.launcher_of(run.record).host(run.cluster, run.id, stop.host)
        request = DebugRequest(spool=run.spools.get(stop.host, ""), name=stop.name)
        self._frames = host.stream("debug", to_fields(request), self._outgoing)
        self._attention = _Attention(run)
        threading.Thread(target=self._receive, name="debug", daemon=True).start()
        self._send({"attach": True})

    def _receive(self) -> None:
        """Put all messages into the queue, at the end None or the error that ended them."""
        end: ClusterddpError | None = None
        try:
            with contextlib.closing(self._frames):
                for line in _lines(self._frames):
                    self._put(read_message(line))
        except ClusterddpError as error:
            end = error
        except ValueError as error:
            end = HelperError(self.stop.host, f"rank {self.stop.rank}'s debugger says what cannot be read: {error}")
        self._outgoing.detach()  # who sends gives up, also where it never began
        self._put(end)

    def _put(self, message: PdbMessage | ClusterddpError | None) -> None:
        self._messages.put(message)
        with contextlib.suppress(OSError):  # closed
            os.write(self._wake, b"x")

    def take(self) -> PdbMessage | None:
        """Return the next message, None after the last; waits for it. Raises what ended the connection."""
        message = self._messages.get()
        os.read(self.handle, 1)
        if isinstance(message, ClusterddpError):
            raise message
        return message

    def send_line(self, line: str) -> None:
        """Answer a prompt."""
        self._send({"line": line})

    def interrupt(self) -> None:
        """Stop the script where it is, or pdb's command."""
        self._send({"interrupt": True})

    def detach(self) -> None:
        """Let the rank go on without a debugger; the last messages still come."""
        with contextlib.suppress(ClusterddpError):  # lost: that is a detach, too
            self._outgoing.end()

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(ClusterddpError):  # `take` raises it
            self._outgoing.send(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Detach, and end what belongs to the session."""
        self.detach()
        self._attention.close()


class _Attention:
    """Marks a run as attended on all its hosts. A host that cannot be reached is left out: nobody waits for it."""

    def __init__(self, run: RunOnHosts) -> None:
        self._lock, self._closed = threading.Lock(), False
        self._marks: list[tuple[Outgoing, Generator[Frame]]] = []
        threading.Thread(target=each_spool, args=(run, self._mark), name="attention", daemon=True).start()

    def _mark(self, host: Host, spool: str) -> None:
        outgoing = Outgoing()
        frames = host.stream("attend", to_fields(AttendRequest(spool=spool)), outgoing)
        next(frames)
        with self._lock:
            self._marks.append((outgoing, frames))
            closed = self._closed
        if closed:
            self.close()

    def close(self) -> None:
        """Remove the marks."""
        with self._lock:
            self._closed, marks, self._marks = True, self._marks, []
        for _, frames in marks:
            with contextlib.suppress(ClusterddpError):  # the host is lost, and its mark with it
                frames.close()
